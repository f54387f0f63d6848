# make demo   set up, run the main job under each planner, print one table, draw its figures
# make test   set up, then lint and the tests that take minutes

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: setup demo test test-all lint clean
.DELETE_ON_ERROR:

setup: $(INSTALLED)

# torch first and by itself: the rest then finds it there and never builds or replaces it.
$(INSTALLED): pyproject.toml constraints.txt
	@scripts/check_machine.sh $(PYTHON)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: setup
	$(BIN)/mimose-bench demo

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python scripts/check_imports.py
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest -m "not slow and not gpu" -n auto --maxprocesses 4 --dist loadfile

test-all: lint
	$(BIN)/python -m pytest -m "not gpu"

# What was built and cached; results and figures are yours and stay.
clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
