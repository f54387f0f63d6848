"""The hand-written text on each check: what it claims, how it is read, why results differ.

``experiments/figures/about/NAME.md`` holds it, without any figure that was measured: those come
from the check's outcome. What follows a line ``## Why results differ`` is shown after the results.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "figures" / "about"
WHY = "## Why results differ"


def about(name: str) -> tuple[str, str]:
    """Return the text before and the text after a check's results, as Markdown; empty if none."""
    path = FOLDER / f"{name}.md"
    if not path.exists():
        return "", ""
    before, _, after = path.read_text(encoding="utf-8").partition(WHY)
    return before.strip(), after.strip()
