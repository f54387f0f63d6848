"""Reports of hand-made outcomes: what is counted, what the page and the Markdown say."""

import html.parser
import itertools
import json
import re
from pathlib import Path

import pytest

from mimose_bench import plots
from mimose_bench.experiments.figures import stored
from mimose_bench.experiments.figures.reproduce import CHECKS
from mimose_bench.experiments.report import markdown, recorded_values
from mimose_bench.experiments.report.about import FOLDER
from mimose_bench.experiments.report.contents import Drawing, contents
from mimose_bench.experiments.report.page import page

ROOT = Path(__file__).resolve().parents[3]
SVG = (
    '<?xml version="1.0"?>\n<!DOCTYPE svg PUBLIC "x" "http://www.w3.org/x.dtd">\n'
    '<svg xmlns:xlink="http://www.w3.org/1999/xlink" width="72pt" height="36pt" '
    'viewBox="0 0 72 36" xmlns="http://www.w3.org/2000/svg"><metadata>http://purl.org</metadata>'
    '<defs><style type="text/css">*{color:red}</style></defs><g id="a"><use xlink:href="#a" '
    'clip-path="url(#a)"/><text>words</text></g></svg>'
)
VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(html.parser.HTMLParser):
    """Collects a page's elements and complains of tags that do not match."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.words = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture
def made(outcomes):
    drawing = Drawing(name="drawn", svg=SVG, alt="Everything (Fig 1), simulated v100-32gb")
    return contents(outcomes, ("quick", "all"), {"all": [drawing]})


def test_statements_are_counted_by_version_and_verdict(made):
    counts = {version: dict(count) for version, count in made.tally.items()}
    assert counts == {
        # Of the claims three hold or not, of the criteria one each.
        "ipdps": {"holds": 2, "not measured": 1, "reported": 2, "outside": 2},
        "v1": {"outside": 1, "undecided": 1},
        "other": {"holds": 1},
    }


def test_sections_are_in_order_and_say_the_worst(made):
    assert [(s.name, s.verdict) for s in made.sections] == [
        ("quick", "holds"),
        ("all", "outside"),
        ("broken", "failed"),
    ]


def test_a_claim_in_words(made):
    first, second, *_ = made.sections[1].statements
    assert (first.paper, first.here, first.interval) == ("1.000", "1.020", "1.010 to 1.030")
    assert (first.difference, first.tolerance, first.verdict) == ("+0.020", "± 0.050", "holds")
    assert second.difference == "+0.200"


def test_the_page_parses_and_fetches_nothing(made):
    text = page(made)
    found = Page(text)
    assert {"script", "link", "iframe", "object", "img"}.isdisjoint(t for t, _ in found.elements)
    for tag, attributes in found.elements:
        for name in ("src", "href", "srcset", "data", "action", "poster"):
            value = attributes.get(name)
            assert value is None or value.startswith("#") or tag == "a", (tag, value)
    assert not re.search(r"@import|url\((?!#)|purl\.org", text)


def test_the_page_can_be_read_without_seeing_it(made):
    found = Page(page(made))
    levels = [int(tag[1]) for tag, _ in found.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert all(b <= a + 1 for a, b in itertools.pairwise(levels))
    assert len(found.all("caption")) == len(found.all("table"))
    assert [svg["aria-label"] for svg in found.all("svg")] == [
        "Everything (Fig 1), simulated v100-32gb"
    ]
    ids = [attributes["id"] for _, attributes in found.elements if "id" in attributes]
    assert len(set(ids)) == len(ids)
    for link in found.all("a"):
        assert not link["href"].startswith("#") or link["href"][1:] in ids


def test_what_others_wrote_is_text_and_not_markup(made):
    found = Page(page(made))
    assert sum("<script>alert(1)</script>" in words for words in found.words) >= 4
    text = markdown.report(made)
    assert not re.search(r"(?<!\\)<script", text)
    tables = re.findall(r"(?:^\|.*\n)+", text, flags=re.M)
    assert len(tables) >= 6
    for table in tables:
        columns = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(columns) == 1, table


def test_figures_keep_their_ids_apart_and_their_text(made):
    text = page(made)
    assert 'id="drawn-a"' in text
    assert 'href="#drawn-a"' in text
    assert "url(#drawn-a)" in text
    assert "<text>words</text>" in text
    assert "color:red" not in text


def test_the_markdown_has_every_claim_with_its_verdict(made):
    text = markdown.report(made)
    assert (
        "| so it is | Fig 1 | 1.000 | 1.020 (1.010 to 1.030) | +0.020 | ± 0.050 | holds |" in text
    )
    assert "| first version (1) | arXiv v1, Fig 1 | 1.000 | 1.200 |" in text
    assert "\n1. because\n2. no GPU here\n" in text
    assert "**outside**" in text
    assert "6 of 20 values" in text
    assert "![Everything (Fig 1), simulated v100-32gb](figures/drawn.svg)" in text
    assert "**Failed:** broken" in text


def test_values_behind_a_page_make_the_same_page_once_thinned(outcomes, tmp_path, monkeypatch):
    page_path = tmp_path / "docs" / "reproduce.md"
    problems = recorded_values.write(outcomes, page_path, ("all",))
    assert problems == ["broken failed: what was kept of it stays"]
    whole = page_path.read_text()
    monkeypatch.setattr(recorded_values, "MOST_BYTES", 10)
    recorded_values.write(outcomes, page_path, ("all",))
    assert page_path.read_text() == whole
    kept = json.loads((tmp_path / "docs" / "reproduced" / "all.json").read_text())
    assert (len(kept["rows"]), kept["num_rows"]) == (6, 20)
    assert "platform" not in kept["run"]["environment"]
    # Once more from what is kept: nothing is lost twice.
    again, _ = stored.read_all(page_path.parent / "reproduced")
    assert all(each.is_thinned for each in again)
    drawn, problems = plots.report_drawings(again, tmp_path)
    assert drawn == {}
    assert "all has no figure: its values were thinned out" in problems
    recorded_values.write(again, page_path, ("all",))
    assert page_path.read_text() == whole


def test_a_quick_run_does_not_take_the_place_of_a_whole_one(outcomes, tmp_path):
    page_path = tmp_path / "reproduce.md"
    recorded_values.write(outcomes, page_path, ())
    (whole,) = [each for each in outcomes if each.name == "all"]
    document = {**whole.document, "run": {**whole.run, "quick": True}}
    quick = stored.from_json(document, tmp_path)
    problems = recorded_values.write([quick], page_path, ())
    assert problems == ["all is a quick run: the whole check's values stay"]
    assert not stored.read(tmp_path / "reproduced" / "all.json").is_quick


def test_the_page_on_reproducing_is_what_its_values_make():
    made = recorded_values.generated(ROOT / "docs" / "reproduced", tuple(CHECKS))
    assert (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8") == made, (
        "run mimose-bench report docs/reproduced --docs docs/reproduce.md"
    )


def test_every_text_belongs_to_a_check():
    names = {path.stem for path in FOLDER.glob("*.md")}
    assert names <= {*CHECKS, recorded_values.INTRODUCTION}
