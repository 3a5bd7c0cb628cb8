"""`verify-source`: the sdist beside a git repository of upstream's."""

import json
from pathlib import Path

import pytest
from checkout import FILES, Checkout, make_sdist, tree_id

from tools.base.git import Repository


@pytest.fixture
def upstream(checkout: Checkout, tmp_path: Path) -> Repository:
    """Upstream's git with the tag v1.0; the sdist has what build tools add."""
    remote = Repository(tmp_path / "upstream")
    files = FILES | {"docs/left-out.md": b"not in the sdist\n"}
    tag(remote, files, "v1.0")
    shipped = FILES | {"PKG-INFO": b"Name: vllm\n", "vllm.egg-info/x": b""}
    make_sdist(checkout.sdist, shipped)
    commit = remote.git("rev-parse", "v1.0").text
    checkout.write_pin(tree_id(tmp_path / "files", shipped), commit=commit[:9])
    return remote


def tag(remote: Repository, files: dict[str, bytes], name: str) -> None:
    commit = remote.commit_tree(tree_id(remote.path, files), "Release\n", None)
    remote.git("update-ref", f"refs/tags/{name}", commit)


def verify(checkout: Checkout, remote: Repository, *args: str, code: int = 0) -> dict:
    done = checkout.tools(
        *("verify-source", "--git", str(remote.path), "--source", str(checkout.sdist)),
        *(*args, "--json"),
        code=code,
    )
    return json.loads(done.stdout)["data"]


def test_faithful_sdist_differs_by_generated_and_left_out_files(
    checkout: Checkout, upstream: Repository
) -> None:
    found = verify(checkout, upstream)
    assert found["faithful"] and found["same"] == len(FILES)
    assert found["generated"] == ["PKG-INFO", "vllm.egg-info/x"]
    assert found["missing"] == ["docs/left-out.md"]


def test_altered_and_smuggled_files_are_named(
    checkout: Checkout, upstream: Repository
) -> None:
    files = {k: v for k, v in FILES.items() if k != "crlf.txt"} | {"run.sh": b"other\n"}
    (upstream.path / "crlf.txt").unlink()
    tag(upstream, files, "other")
    found = verify(checkout, upstream, "--commit", "other", code=1)
    assert found["changed"] == ["run.sh"]
    assert found["added"] == ["crlf.txt"]
    assert not found["pinned"]


def test_unknown_tag_is_named(checkout: Checkout, upstream: Repository) -> None:
    upstream.git("update-ref", "-d", "refs/tags/v1.0")
    done = checkout.tools(
        *("verify-source", "--git", str(upstream.path)),
        *("--source", str(checkout.sdist)),
        code=1,
    )
    assert "refs/tags/v1.0" in done.stderr
