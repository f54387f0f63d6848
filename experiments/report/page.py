"""A report as one HTML page that needs nothing beside it."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup

from mimose_bench.experiments.report.contents import Contents, Drawing
from mimose_bench.experiments.report.statements import NONE, VERDICTS, VERSIONS
from mimose_bench.experiments.tables import is_figure

MARKS = {
    "holds": "✓",
    "outside": "✗",
    "undecided": "?",
    "not measured": "○",
    "reported": "·",
    "failed": "!",
}
"""What stands before each verdict, so that none is told by its colour alone."""

_HERE = Path(__file__).resolve().parent
_LEAST_SCALE = 0.85
"""Least size of a figure relative to the one it was drawn in: below, its text is too small."""


def page(contents: Contents) -> str:
    """Return a report as an HTML document; everything in it but our own markup is escaped."""
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters |= {"markdown": _markdown, "inline": inline, "unbroken": _unbroken}
    environment.tests |= {"figure": is_figure}
    css = Markup((_HERE / "page.css").read_text(encoding="utf-8").strip())
    template = environment.get_template("page.html.j2")
    text = template.render(
        report=contents,
        css=css,
        marks=MARKS,
        nothing=NONE,
        verdicts=VERDICTS,
        versions=VERSIONS,
    )
    return text.lstrip() + "\n"


def inline(drawing: Drawing) -> Markup:
    """Return a figure as an element of the page: named, scaled, its ids its own."""
    svg = drawing.svg[drawing.svg.index("<svg") :]
    for part in ("metadata", "style"):
        svg = re.sub(rf"<{part}\b.*?</{part}>", "", svg, flags=re.DOTALL)
    svg = svg.replace("xlink:href", "href")
    own = f"{drawing.name}-"
    svg = re.sub(r'\bid="', f'id="{own}', svg)
    svg = re.sub(r'href="#', f'href="#{own}', svg)
    svg = re.sub(r"url\(#", f"url(#{own}", svg)
    opening, _, rest = svg.partition(">")
    box = re.search(r'viewBox="[\d.]+ [\d.]+ ([\d.]+) ([\d.]+)"', opening)
    assert box is not None, "matplotlib gives every figure a viewBox"
    width = float(box[1]) * 4 / 3  # Points are drawn as 4/3 pixels.
    style = f"max-width:{width:.0f}px;min-width:{_LEAST_SCALE * width:.0f}px"
    title = html.escape(drawing.alt, quote=True)
    head = f'<svg role="img" aria-label="{title}" style="{style}" {box[0]}>'
    return Markup(head + rest.strip())


def _unbroken(text: str) -> str:
    """Return text in which no line ends between a figure and its unit."""
    return re.sub(r"(?<=\d) (?=\S)", "\u00a0", text)


def _markdown(text: str) -> Markup:
    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    reader.add_render_rule("table_open", _table_open)
    reader.add_render_rule("table_close", _table_close)
    return Markup(reader.render(text))


def _table_open(*_: Any) -> str:
    return '<div class="scroll" role="region" tabindex="0" aria-label="Table"><table>'


def _table_close(*_: Any) -> str:
    return "</table></div>"
