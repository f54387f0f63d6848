import http.server
import json
import shutil
import socket
import threading
import time
from pathlib import Path

import datasets
import pytest
from huggingface_hub import constants

from mimose_bench.experiments.data import hub
from mimose_bench.experiments.data.sources import HubUnavailableError
from mimose_bench.experiments.data.squad import from_rows

ROWS = {
    "id": ["a", "b"],
    "title": ["t", "t"],
    "context": ["The sky is blue.", "Grass is green."],
    "question": ["What is blue?", "What is green?"],
    "answers": [
        {"text": ["The sky"], "answer_start": [0]},
        {"text": ["Grass"], "answer_start": [0]},
    ],
}


@pytest.fixture(autouse=True)
def _online(monkeypatch):
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def answering(monkeypatch, request):
    """Serve HTTP with the status given, as the hub's endpoint."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response(request.param)
            self.end_headers()

        def log_message(self, *args):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        yield
        server.shutdown()


@pytest.mark.parametrize(
    ("answering", "expected"), [(200, True), (403, False), (503, False)], indirect=["answering"]
)
def test_reachable_is_an_answer_of_success(answering, expected):
    assert hub.is_reachable() is expected


@pytest.mark.parametrize("answering", [200], indirect=True)
def test_offline_switch_wins(answering, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert not hub.is_reachable()


def test_silence_is_not_waited_for(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        started = time.monotonic()
        assert not hub.is_reachable(0.2)
        assert time.monotonic() - started < 2


def test_refused_connection_and_nonsense(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert not hub.is_reachable()
    monkeypatch.setenv("HF_ENDPOINT", "nonsense")
    assert not hub.is_reachable()


@pytest.fixture
def unreachable(monkeypatch, tmp_path):
    monkeypatch.setattr(hub, "is_reachable", lambda: False)
    cache = tmp_path / "cache"
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", cache)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return cache


def test_nothing_cached_is_said_at_once(unreachable):
    with pytest.raises(HubUnavailableError, match="does not answer and the data set 'squad' is"):
        hub.load_split(("squad", "rajpurkar/squad"), "train")
    assert constants.HF_HUB_OFFLINE is datasets.config.HF_HUB_OFFLINE is False


def test_cached_copy_serves_without_the_hub(unreachable, tmp_path):
    parquet = tmp_path / "train.parquet"
    datasets.Dataset.from_dict(ROWS).to_parquet(parquet)
    built = datasets.load_dataset(
        "parquet", data_files={"train": str(parquet)}, cache_dir=str(tmp_path / "built")
    )
    # The layout in which datasets keeps what came from the hub.
    copy = unreachable / "rajpurkar___squad" / "plain_text" / "0.0.0" / ("0" * 40)
    copy.mkdir(parents=True)
    for file in Path(built["train"].cache_files[0]["filename"]).parent.iterdir():
        if file.is_file():
            shutil.copy(file, copy / file.name.replace("parquet-train", "squad-train"))
    info = json.loads((copy / "dataset_info.json").read_text())
    info.update(builder_name="parquet", dataset_name="squad", config_name="plain_text")
    (copy / "dataset_info.json").write_text(json.dumps(info))

    questions, omitted = from_rows(hub.load_split(("squad", "rajpurkar/squad"), "train"))
    assert [q.name for q in questions] == ["a", "b"]
    assert len(omitted) == 0


@pytest.fixture
def asked(monkeypatch):
    """Stand in for ``datasets``; returns the requests, told apart by whether the hub is asked."""
    requests = []
    rows = datasets.Dataset.from_dict({"number": list(range(5))})

    def load_dataset(name, config=None, split=None, streaming=False):
        offline = datasets.config.HF_HUB_OFFLINE
        requests.append((name, config, "cache" if offline else "hub", streaming))
        if offline and name != "old/name":
            raise ConnectionError("not cached")
        return rows.to_iterable_dataset() if streaming else rows

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "is_reachable", lambda: True)
    return requests


def test_first_rows_are_streamed_and_no_more_downloaded(asked):
    found = hub.load_split(("new/name", "other/name"), "train", "en-fr", first=3)
    assert [row["number"] for row in found] == [0, 1, 2]
    assert asked == [
        ("new/name", "en-fr", "cache", False),
        ("other/name", "en-fr", "cache", False),
        ("new/name", "en-fr", "hub", True),
    ]


def test_first_rows_come_from_a_cached_copy_if_there_is_one(asked):
    for first in (3, 9):
        found = hub.load_split(("new/name", "old/name"), "train", "en-fr", first=first)
        assert found["number"] == list(range(5))[:first]
    assert {source for _, _, source, _ in asked} == {"cache"}


def test_whole_split_of_a_configuration(asked):
    assert len(hub.load_split(("new/name",), "train", "qqp")) == 5
    assert asked == [("new/name", "qqp", "cache", False), ("new/name", "qqp", "hub", False)]


def test_cached_copy_is_taken_without_asking(asked, monkeypatch):
    monkeypatch.setattr(hub, "is_reachable", lambda: pytest.fail("asked the hub"))
    assert len(hub.load_split(("new/name", "old/name"), "train")) == 5


def test_folder_that_hides_the_data_set_is_not_taken_for_it(asked, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old" / "name").mkdir(parents=True)
    with pytest.raises(HubUnavailableError, match=r"a file or folder old/name in the working"):
        hub.load_split(("old/name",), "train")
    assert asked == []


class _Loader:
    """Stands for a class with ``from_pretrained`` whose model is cached, or is not."""

    def __init__(self, cached, online=None):
        self.cached, self.online = cached, online

    def from_pretrained(self, name, local_files_only=False):
        if local_files_only:
            if not self.cached:
                raise OSError("not here")
            return f"cached {name}"
        if self.online is None:
            raise ConnectionError("broke off\nand more")
        return self.online


def test_cached_model_is_taken_without_asking(monkeypatch):
    monkeypatch.setattr(hub, "is_reachable", lambda: pytest.fail("asked the hub"))
    assert hub.from_hub_or_cache(_Loader(cached=True), "bert", "the model") == "cached bert"


def test_model_comes_from_the_hub_if_it_answers(monkeypatch):
    monkeypatch.setattr(hub, "is_reachable", lambda: True)
    assert hub.from_hub_or_cache(_Loader(False, "fresh"), "bert", "the model") == "fresh"
    with pytest.raises(HubUnavailableError, match=r"the model 'bert' could not .*broke off\)$"):
        hub.from_hub_or_cache(_Loader(False), "bert", "the model")


def test_model_without_a_fast_tokenizer_is_unavailable(monkeypatch):
    monkeypatch.setattr(hub, "from_hub_or_cache", lambda *args, **options: object())
    with pytest.raises(HubUnavailableError, match="no fast tokenizer of 'slow'"):
        hub.load_tokenizer("slow")
