"""Where the release comes from: every source gives the pinned tree, or nothing."""

import shutil
import threading
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from checkout import FILES, Checkout, make_sdist, refused, tree_id

from tools.base.errors import ToolError
from tools.base.git import Repository
from tools.base.outcome import Outcome
from tools.source.fetch import GitRemote, Sdist


def test_wrong_hash_shows_both_and_keeps_nothing(checkout: Checkout) -> None:
    make_sdist(checkout.sdist, FILES | {"README.md": b"evil\n"})
    checkout.write_pin("1" * 40, sha256="a" * 64)
    error = refused(checkout, Outcome.WRONG_HASH)
    assert "a" * 64 in error.details[0]


def test_unpinned_tree_is_refused(checkout: Checkout) -> None:
    checkout.write_pin("1" * 40)
    assert "1" * 40 in refused(checkout, Outcome.WRONG_TREE).details[0]


@pytest.mark.parametrize("name", ["../../escaped", "../../../escaped"])
def test_member_that_leaves_the_folder_is_refused(
    checkout: Checkout, name: str
) -> None:
    make_sdist(checkout.sdist, FILES | {name: b"x"})
    checkout.write_pin("1" * 40)
    error = refused(checkout, Outcome.UNSAFE_ARCHIVE)
    assert "escaped" in error.message
    assert not list(checkout.project.root.parent.rglob("escaped"))


def test_damaged_archive_is_refused(checkout: Checkout) -> None:
    data = checkout.sdist.read_bytes()
    checkout.sdist.write_bytes(data[: len(data) // 2])
    checkout.write_pin("1" * 40)
    refused(checkout, Outcome.UNSAFE_ARCHIVE)


def test_git_remote_gives_the_same_commits_as_the_sdist(
    make_checkout: Callable[..., Checkout], tmp_path: Path
) -> None:
    from_sdist = make_checkout("from-sdist")
    remote = Repository(tmp_path / "remote")
    tree = tree_id(remote.path, FILES)
    commit = remote.commit_tree(tree, "Release\n", None)
    remote.git("update-ref", "HEAD", commit)
    remote.git("config", "uploadpack.allowAnySHA1InWant", "true")
    clone = make_checkout("from-git", lock=False)
    shutil.copy(
        from_sdist.project.pin_file.with_name("tree.lock"),
        clone.project.pin_file.with_name("tree.lock"),
    )
    with clone.project.lock():
        clone.tree.apply(GitRemote(f"file://{remote.path}", commit))
    assert clone.tree.state.commit == from_sdist.tree.state.commit


def test_git_remote_with_another_tree_names_what_differs(
    checkout: Checkout, tmp_path: Path
) -> None:
    remote = Repository(tmp_path / "remote")
    other = {name: data for name, data in FILES.items() if name != "crlf.txt"}
    commit = remote.commit_tree(tree_id(remote.path, other), "Release\n", None)
    remote.git("update-ref", "HEAD", commit)
    remote.git("config", "uploadpack.allowAnySHA1InWant", "true")
    repository = checkout.tree.repository
    base = f"refs/tagma/base/{repository.tree_of('HEAD~3')}"
    repository.git("update-ref", "refs/keep", base)
    repository.git("update-ref", "-d", base)
    (checkout.project.root / "vllm_overlay" / "new.py").write_text("")
    with checkout.project.lock(), pytest.raises(ToolError) as caught:
        checkout.tree.apply(GitRemote(f"file://{remote.path}", commit))
    assert any("crlf.txt" in line for line in caught.value.details)


class IndexHandler(BaseHTTPRequestHandler):
    """A package index that serves one file, whole or cut short."""

    def __init__(self, sdist: Path, send: Callable[[bytes], bytes], *args: object):
        self.sdist, self.send = sdist, send
        super().__init__(*args)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        if self.path.endswith(".tar.gz"):
            data = self.sdist.read_bytes()
            body = self.send(data)
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
        else:
            body = f'<a href="/f/{self.sdist.name}">{self.sdist.name}</a>'.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def serve_index(monkeypatch: pytest.MonkeyPatch):
    servers: list[ThreadingHTTPServer] = []

    def serve(sdist: Path, send: Callable[[bytes], bytes] = lambda data: data) -> None:
        server = ThreadingHTTPServer(
            ("127.0.0.1", 0), partial(IndexHandler, sdist, send)
        )
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        url = f"http://127.0.0.1:{server.server_port}/simple"
        monkeypatch.setenv("PIP_INDEX_URL", url)

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def apply_from_index(checkout: Checkout) -> None:
    with checkout.project.lock():
        checkout.tree.apply(Sdist(checkout.project.cache), relock=True)


def test_download_from_the_configured_index_is_cached(
    make_checkout: Callable[..., Checkout], serve_index, monkeypatch
) -> None:
    checkout = make_checkout(lock=False)
    checkout.write_pin(tree_id(checkout.project.root / "t", FILES))
    shutil.rmtree(checkout.project.root / "t")
    serve_index(checkout.sdist)
    apply_from_index(checkout)
    shutil.rmtree(checkout.project.build)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    apply_from_index(checkout)
    assert checkout.files()["README.md"] == FILES["README.md"]


@pytest.mark.parametrize("send", [lambda d: d[: len(d) // 2], lambda d: d[:-1] + b"x"])
def test_truncated_or_altered_download_keeps_nothing(
    make_checkout: Callable[..., Checkout], serve_index, send
) -> None:
    checkout = make_checkout(lock=False)
    serve_index(checkout.sdist, send)
    with pytest.raises(ToolError) as caught:
        apply_from_index(checkout)
    assert caught.value.outcome in (Outcome.WRONG_HASH, Outcome.OFFLINE)
    assert not [p for p in checkout.project.cache.rglob("*") if p.is_file()]
    assert not (checkout.project.tree / "README.md").exists()


def test_no_network_and_no_cache_names_the_option(
    make_checkout: Callable[..., Checkout],
) -> None:
    checkout = make_checkout(lock=False)
    with pytest.raises(ToolError) as caught:
        apply_from_index(checkout)
    assert caught.value.outcome is Outcome.OFFLINE
    assert any("--source" in step for step in caught.value.next_steps)
