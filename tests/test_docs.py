"""Every command and every path that the documents show is there."""

import json
import re
import shlex
from pathlib import Path

import pytest

from mimose_bench import cli

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "docs/auto.md",
    "docs/cases.md",
    "docs/choosing.md",
    "docs/planners.md",
    "docs/design.md",
    "docs/reproduce.md",
    "docs/simulation.md",
    "docs/sweep.md",
    "docs/tasks.md",
    "docs/use.md",
    "docs/zoo.md",
    "examples/README.md",
]
COMMANDS = [
    (page, line.strip())
    for page in PAGES
    for line in (ROOT / page).read_text(encoding="utf-8").splitlines()
    if line.startswith("    mimose-bench ")
]


def options_of(verb):
    import typer

    command = typer.main.get_command(cli.app).commands[verb]
    return {name for p in command.params for name in (*p.opts, *p.secondary_opts)}


@pytest.mark.parametrize(("page", "line"), COMMANDS, ids=[line for _, line in COMMANDS])
def test_a_command_in_the_documents_exists(page, line):
    _, verb, *arguments = shlex.split(line)
    given = {argument for argument in arguments if argument.startswith("--")}
    assert given <= options_of(verb)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    links = [t for t in re.findall(r"\]\(([^)]+)\)", text) if not t.startswith("http")]
    for target in links:
        name, _, heading = target.partition("#")
        path = (ROOT / page).parent / name if name else ROOT / page
        assert path.exists(), target
        if heading:
            titles = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), flags=re.M)
            assert heading in [re.sub(r"[^\w-]", "", t.lower().replace(" ", "-")) for t in titles]


def test_every_page_and_example_is_linked():
    def links(page):
        text = (ROOT / page).read_text(encoding="utf-8")
        return set(re.findall(r"\]\(([^)#]+)[^)]*\)", text))

    assert {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} <= links("README.md")
    programs = {path.name for path in (ROOT / "examples").glob("*.py")}
    assert programs <= links("examples/README.md")
    assert "cases.md" in links("docs/use.md")


def test_make_targets_in_the_documents_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for target in re.findall(r"^    make ([a-z-]+)", text, flags=re.M):
            assert re.search(rf"^{target}:", makefile, flags=re.M), target


def test_the_readme_names_the_test_command():
    assert re.search(r"^    make test$", (ROOT / "README.md").read_text(), flags=re.M)


def test_the_example_of_a_simulated_model_runs(capsys):
    (example,) = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "docs/simulation.md").read_text(), flags=re.M | re.S
    )
    exec(compile(example, "docs/simulation.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 20
    assert any(" keep 0-11 " in line for line in lines)
    assert any(" remake 0" in line for line in lines)


def test_the_example_of_auto_runs(capsys):
    (example,) = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "docs/auto.md").read_text(), flags=re.M | re.S
    )
    exec(compile(example, "docs/auto.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert " sheltered " in lines[0]
    assert re.search(r" responsive .*remake \S+ #[0-9a-f]{8} \[", lines[-1])


def test_autos_picture_shows_the_values_that_are_kept():
    kept = json.loads((ROOT / "docs/reproduced/auto-menu.json").read_text(encoding="utf-8"))
    picture = (ROOT / "docs/auto-saved-values.svg").read_text(encoding="utf-8")
    assert kept["device_label"] in picture
    for bar in kept["curves"]:
        stays = bar["y_unit"] == "none"
        for text in (bar["name"], "must stay" if stays else f"{1e3 * bar['y'][0]:.2f} ms"):
            assert f">{text}<" in picture.replace("&#39;", "'")
