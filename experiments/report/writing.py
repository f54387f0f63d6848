"""Write a report: one HTML page, one Markdown file, the figures that the latter shows."""

from __future__ import annotations

from pathlib import Path

from mimose_bench.experiments.files import write_text
from mimose_bench.experiments.report.contents import Contents
from mimose_bench.experiments.report.markdown import report
from mimose_bench.experiments.report.page import page


def write(contents: Contents, folder: Path) -> list[Path]:
    """Write a report into a folder and return the files.

    Raises:
        ValueError: If the folder cannot be written.
    """
    texts = {
        "report.html": page(contents),
        "report.md": report(contents),
        **{
            f"figures/{drawing.name}.svg": drawing.svg
            for section in contents.sections
            for drawing in section.drawings
        },
    }
    try:
        for name, text in texts.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_text(folder / name, text)
    except OSError as error:
        raise ValueError(
            f"cannot write a report to {folder} ({error.strerror or error}): name a folder that "
            "can be written with --out"
        ) from error
    return [folder / name for name in texts]
