import pytest

from mimose_bench.experiments.data.sources import (
    DataSource,
    HubUnavailableError,
    open_source,
)


def _open(data, answers=True):
    def hub(reason):
        if not answers:
            raise HubUnavailableError("the hub does not answer")
        return "hub", reason

    return open_source(
        data,
        hub=hub,
        path=lambda path, reason: ("path", path, reason),
        synthetic=lambda reason: ("synthetic", reason),
    )


def test_opens_what_is_asked_for():
    assert _open("synthetic") == ("synthetic", "asked for")
    assert _open("hub") == ("hub", "asked for")
    assert _open("dir/train.json") == ("path", "dir/train.json", "asked for")


def test_auto_prefers_the_hub_and_says_why_not():
    assert _open("auto")[0] == "hub"
    assert _open("auto", answers=False) == ("synthetic", "auto: the hub does not answer")


def test_hub_asked_for_and_absent_says_what_to_do():
    with pytest.raises(ValueError, match="does not answer: use --data synthetic or --data PATH"):
        _open("hub", answers=False)


def test_auto_does_not_hide_other_errors():
    def hub(reason):
        raise ValueError("bad vocabulary")

    with pytest.raises(ValueError, match="bad vocabulary"):
        open_source("auto", hub=hub, path=lambda p, r: p, synthetic=lambda r: r)


def test_source_reads_well_and_becomes_plain_data():
    source = DataSource(kind="path", detail="a.json", reason="asked for", notes=("left out 1",))
    assert str(source) == "path: a.json (asked for)"
    assert source.to_json() == {
        "kind": "path",
        "detail": "a.json",
        "reason": "asked for",
        "notes": ["left out 1"],
    }
