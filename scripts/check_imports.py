"""Check that imports go one way: cli > plots > experiments > mimose, and the layers inside mimose.

    python scripts/check_imports.py [ROOT]

Prints each import that goes the wrong way and exits with 1 if there is any. Imports inside
functions and for type checking count as well: an arrow is an arrow.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

UI = ("typer", "click", "rich", "pandas", "pyarrow", "matplotlib")

# A module (or package, with all in it) and what it must not import.
FORBIDDEN: dict[str, tuple[str, ...]] = {
    "mimose": ("mimose_bench", *UI),
    "mimose.compiled": (
        "torch",
        "mimose.planners",
        "mimose.runtime",
        "mimose.devices",
        "mimose.solvers",
        "mimose.handle",
    ),
    "mimose.solvers": (
        "torch",
        "mimose.planners",
        "mimose.runtime",
        "mimose.devices",
        "mimose.distributed",
    ),
    "mimose.planners": (
        "torch",
        "transformers",
        "mimose.runtime",
        "mimose.devices",
        "mimose.distributed",
    ),
    "mimose.runtime": ("mimose.planners", "mimose.handle", "mimose.distributed"),
    "mimose.devices": ("mimose.planners", "mimose.runtime", "mimose.handle", "mimose.distributed"),
    # Beside the runtime: decisions and bytes are all that it knows of them.
    "mimose.distributed": (
        "mimose.planners",
        "mimose.runtime",
        "mimose.solvers",
        "mimose.handle",
        "mimose.attaching",
    ),
    # Above the handle, and through it to everything below.
    "mimose.integrations": (
        "mimose.runtime",
        "mimose.devices",
        "mimose.distributed",
        "mimose.solvers",
    ),
    "mimose_bench.experiments": ("mimose_bench.plots", "mimose_bench.cli", "typer", "matplotlib"),
    "mimose_bench.plots": ("mimose_bench.cli", "typer", "torch", "transformers"),
}

# The adapters: nothing else in the library imports them, but for what mimose/__init__.py looks up
# when it is asked for, nor the libraries that they are for, which need not be installed.
ADAPTERS = "mimose.integrations"
ADAPTED = ("transformers", "accelerate", "lightning", "pytorch_lightning", "peft")

# The contracts that everything rests on: the standard library and one another only.
CONTRACTS = (
    "mimose.plan",
    "mimose.plan_parts",
    "mimose.plan_text",
    "mimose.menu",
    "mimose.graph_bits",
    "mimose.eviction",
    "mimose.schedule",
    "mimose.costs",
    "mimose.units",
    "mimose.records",
)

PLACES = {
    "mimose": "mimose",
    "experiments": "mimose_bench.experiments",
    "plots": "mimose_bench.plots",
}


def modules(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield each module's name once installed, and its file."""
    if (root / "cli.py").exists():
        yield "mimose_bench.cli", root / "cli.py"
    for folder, package in PLACES.items():
        for file in sorted((root / folder).rglob("*.py")):
            parts = file.relative_to(root / folder).with_suffix("").parts
            yield ".".join([package, *(p for p in parts if p != "__init__")]), file


def imports(module: str, file: Path) -> Iterator[tuple[str, int]]:
    """Yield what a module imports, each with its line."""
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"), str(file))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            for alias in node.names:
                yield f"{base}.{alias.name}", node.lineno


def within(name: str, prefix: str) -> bool:
    """Return whether ``name`` is ``prefix`` or lies in it."""
    return name == prefix or name.startswith(prefix + ".")


def problems(root: Path) -> Iterator[str]:
    """Yield a line for each import that goes the wrong way."""
    for module, file in modules(root):
        for target, line in imports(module, file):
            if any(
                within(module, source) and within(target, banned)
                for source, targets in FORBIDDEN.items()
                for banned in targets
            ) or _below_adapters(module, target):
                yield f"{file}:{line}: {module} must not import {target}"
            elif module in CONTRACTS and not (
                target.partition(".")[0] in sys.stdlib_module_names
                or any(within(target, contract) for contract in CONTRACTS)
            ):
                yield f"{file}:{line}: {module} may import the standard library only, not {target}"


def _below_adapters(module: str, target: str) -> bool:
    if not within(module, "mimose") or within(module, ADAPTERS):
        return False
    if within(target, ADAPTERS):
        return module != "mimose"
    return any(within(target, library) for library in ADAPTED)


def main() -> int:
    """Check the tree named on the command line, by default the one this file lies in."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    found = list(problems(root))
    print("\n".join(found) if found else "imports go one way")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
