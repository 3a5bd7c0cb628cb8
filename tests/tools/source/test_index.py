"""The package index that pip is configured with, and what to do without one."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.source.fetch import fetch
from tools.source.index import IndexConfig
from tools.source.pin import Artifact

NOWHERE = "http://127.0.0.1:9/simple"


@pytest.fixture
def busy_index() -> Iterator[str]:
    """An index that answers, but cannot serve."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(503)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,)).start()
    yield f"http://127.0.0.1:{server.server_port}/simple"
    server.shutdown()
    server.server_close()


def test_pips_settings_are_read_the_strongest_last() -> None:
    config = IndexConfig.parse(
        "global.index-url='https://a/simple'\n:env:.index-url='https://b/simple'\n"
        "global.extra-index-url='https://c/simple file:///d'\nglobal.proxy='http://p'"
    )
    assert config.urls == ("https://b/simple", "https://c/simple")
    assert config.proxy == "http://p"


def test_an_index_is_in_reach_if_one_answers_whatever_it_says(busy_index: str) -> None:
    assert IndexConfig((NOWHERE, busy_index), (), None).unreachable() == ""
    assert "refused" in IndexConfig((NOWHERE,), (), None).unreachable()


def test_where_no_index_is_configured_none_is_out_of_reach() -> None:
    assert IndexConfig((), (), None).unreachable() == ""


@pytest.mark.parametrize(
    ("option", "steps"),
    [("", ["TAGMA_CACHE"]), ("--source", ["TAGMA_CACHE", "--source"])],
)
def test_without_network_a_missing_file_names_what_helps(
    tmp_path: Path, option: str, steps: list[str]
) -> None:
    with pytest.raises(ToolError) as error:
        fetch(Artifact("vllm", "vllm-1.0.tar.gz", "0" * 64), tmp_path, option)
    assert error.value.outcome is Outcome.OFFLINE
    first, *mends = error.value.next_steps
    assert "network" in first
    assert len(mends) == len(steps)
    for mend, word in zip(mends, steps, strict=True):
        assert word in mend
