"""Train every architecture of the zoo under both planners and write docs/zoo.md.

    python scripts/zoo.py [NAME ...] [--out docs/zoo.md]

Each is trained unattached and then under a budget, on the device cpu, once by each planner;
tests/zoo holds the architectures and what is measured. With names only those are trained, and the
table is printed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "zoo"))

import torch  # noqa: E402
import transformers  # noqa: E402
from zoo_cases import CASES  # noqa: E402
from zoo_conformance import (  # noqa: E402
    EXACT,
    PLANNERS,
    RESPONSIVE,
    Case,
    Outcome,
    quietly,
)

COLUMNS = (
    "architecture",
    "class",
    "blocks",
    "budget",
    "planner",
    "saving steps",
    "let go",
    "recomputed",
    "peak",
    "prediction",
    "equal",
    "note",
)
TEXT = """# The zoo

Architectures of `transformers` {transformers}, built small from their configurations and trained
from the same seed with AdamW: as they are, and attached with a budget, under the default planner
`{default}` and under `{other}`. Sizes differ from step to step (texts of 48 to 96 words, images of
32 to 64 pixels, batches of 4 to 8 images), dropout is on. Every figure is {label}
(torch {torch}), where memory is counted to the byte.
`python scripts/zoo.py` writes this page, `tests/zoo` holds the architectures, and `make test-all`
tests them.

- **budget**: as a share of what unattached training reserves at its peak. It bounds reserved
  bytes and is enforced: a step that would reserve more runs out of memory.
- **saving steps**: those that let values go or recomputed blocks, of those that were planned from
  what sheltered steps had shown; of the last {responsive} steps some measure again.
- **let go**: share of all blocks, over those steps, that let some of their values go and made them
  again; **recomputed**: share of all blocks that were recomputed whole.
- **peak**: highest allocated bytes, sheltered steps included, as a share of the unattached ones;
  not a share of the budget, which bounds reserved bytes, and those are more.
- **prediction**: predicted peak against the measured one, lowest and highest of those steps.
- **equal**: losses, gradients of every step, parameters, buffers and the random state at the end,
  bit by bit; and, after `detach()` and one more step, classes, hooks, attributes and settings.

{summary}

{table}

{notes}
"""
NOTES = """Where a prediction is off by more than {exact:.0%}, the notes name the cause where it was
found. All of these shrink as models grow:

- **earlier table**: the model holds a table of positions for the size that it saw last. A new one
  replaces it in the forward, whose levels depend on the size before by that.
- **held inputs**: what all layers of an encoder take counts as held until those of the decoder are
  over, too.
- **random state**: a recomputed block saves the generator's, 5 KB, which is memory of the device on
  the cpu only. It is counted for kept blocks, too, and shows in models of a few MB.
- **scratch memory** of a block's forward that only its largest sizes need: what is the larger of
  two polynomials is none.

The allocator takes **20 MiB at a time** for tensors beyond 1 MiB, and no smaller one may lie in
them. That is most of these budgets: where a block's forward has such a tensor, and be it for a
moment, all blocks are recomputed, as for the longest texts of XLNet and Funnel. Under budgets of
gigabytes it does not matter.

Layers that are **left out at random** are planned for as if they were called."""


def row(case: Case, planner: str, outcome: Outcome) -> list[str]:
    """Return the table's row of a case under one planner."""
    errors = outcome.prediction_errors
    attached = outcome.attached
    note = [case.note] if case.note else []
    if outcome.violations:
        note.append(f"{outcome.violations} steps beyond the budget")
    return [
        case.name,
        f"`{outcome.class_name}`",
        str(attached.blocks),
        f"{case.share:.0%}",
        planner,
        f"{outcome.saving} of {len(attached.responsive)}",
        f"{outcome.remade_share:.0%}",
        f"{outcome.recomputed_share:.0%}",
        f"{outcome.peak_ratio:.0%}",
        f"{min(errors):+.2%} to {max(errors):+.2%}",
        "yes" if outcome.equal and attached.trace == outcome.plain.trace else "**no**",
        "; ".join(note),
    ]


def failed(case: Case, planner: str, error: Exception) -> list[str]:
    """Return the row of a case that could not be trained."""
    text = str(error).splitlines()[0].partition(". ")[0].replace("|", "/")
    blank = [""] * (len(COLUMNS) - 6)
    what = f"{type(error).__name__}: {text}"
    return [case.name, "`-`", "", f"{case.share:.0%}", planner, *blank, what]


def trained(case: Case) -> Iterator[tuple[str, Outcome | Exception]]:
    """Yield what comes of a case under each planner."""
    plain = None
    for planner in PLANNERS:
        try:
            outcome = quietly(case, planner, plain)
        except Exception as error:  # A row of the table, too.
            yield planner, error
        else:
            plain = outcome.plain
            yield planner, outcome


def summary(outcomes: dict[str, list[Outcome]]) -> str:
    """Return what the whole table comes to."""
    lines = []
    for planner, found in outcomes.items():
        exact = sum(max(map(abs, o.prediction_errors)) < EXACT for o in found)
        equal = sum(o.equal and o.attached.trace == o.plain.trace for o in found)
        kept = sum(not o.violations for o in found)
        lines.append(
            f"- Under `{planner}` {equal} of {len(CASES)} architectures train exactly as without, "
            f"and {kept} keep\n  reserved bytes to the budget in every step: none of these ran out "
            "of memory, ran again or had the\n  allocator hand memory back. Of "
            f"{exact} every peak was predicted within {EXACT:.0%}."
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="architectures; all by default")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "zoo.md")
    options = parser.parse_args()
    unknown = set(options.names) - {case.name for case in CASES}
    if unknown:
        known = ", ".join(case.name for case in CASES)
        parser.error(
            f"no architecture is called {', '.join(sorted(unknown))}: name some of {known}"
        )
    torch.set_num_threads(1)
    rows, label = [COLUMNS, ("---",) * len(COLUMNS)], ""
    outcomes: dict[str, list[Outcome]] = {planner: [] for planner in PLANNERS}
    for case in CASES:
        if options.names and case.name not in options.names:
            continue
        for planner, outcome in trained(case):
            if isinstance(outcome, Exception):
                rows.append(failed(case, planner, outcome))
            else:
                rows.append(row(case, planner, outcome))
                outcomes[planner].append(outcome)
                label = outcome.device_label
            print("  ".join(rows[-1]), file=sys.stderr, flush=True)
    table = "\n".join(f"| {' | '.join(cells)} |".replace("  |", " |") for cells in rows)
    if options.names:
        print(table)
        return
    page = TEXT.format(
        default=PLANNERS[0],
        other=PLANNERS[1],
        transformers=transformers.__version__,
        torch=torch.__version__,
        label=label,
        responsive=RESPONSIVE,
        summary=summary(outcomes),
        table=table,
        notes=NOTES.format(exact=EXACT),
    )
    options.out.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
