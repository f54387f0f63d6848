"""The page in a real browser: nothing is cut off, on a phone as on a desk."""

import re
import shutil
import subprocess

import pytest

from mimose_bench.experiments.report.contents import contents
from mimose_bench.experiments.report.page import page

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")

# The page itself has no script: this one measures it.
MEASURE = """<script>addEventListener("load", () => {
  const least = Math.min(...[...document.querySelectorAll("main *")]
    .filter(e => e.childElementCount === 0 && e.textContent.trim() && !e.closest("svg"))
    .map(e => parseFloat(getComputedStyle(e).fontSize)));
  const wide = [...document.querySelectorAll("body *")].filter(e =>
    !e.closest(".scroll > *, .hidden, thead") && e.getBoundingClientRect().right > innerWidth + 1);
  const found = `${innerWidth} ${document.documentElement.scrollWidth} ${least} ${wide.length}`;
  parent.postMessage(found, "*");
})</script>"""

# A window has a least width on its own, a frame has not.
FRAME = """<!doctype html><title></title>
<script>addEventListener("message", event => { document.title = event.data; })</script>
<iframe src="report.html" style="width:WIDTHpx;height:2000px;border:0"></iframe>"""


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on this machine")
@pytest.mark.parametrize("width", [360, 1400])
def test_nothing_is_cut_off_or_too_small(outcomes, tmp_path, width):
    (tmp_path / "report.html").write_text(page(contents(outcomes)) + MEASURE)
    file = tmp_path / "frame.html"
    file.write_text(FRAME.replace("WIDTH", str(width)))
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    size = f"--window-size={width + 100},2400"
    done = subprocess.run(
        [BROWSER, *options, profile, size, "--dump-dom", f"file://{file}"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    found = re.search(r"<title>(\d+) (\d+) ([\d.]+) (\d+)</title>", done.stdout)
    assert found is not None, done.stderr
    inner, scrolled, least, wide = map(float, found.groups())
    assert inner == width
    assert scrolled <= inner
    assert wide == 0
    assert least >= 11
