"""`clean` removes what can be made again, and nothing else."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from checkout import REPOSITORY, Checkout


def work(checkout: Checkout, kind: str) -> None:
    """Leave something in the tree that only the user has."""
    git = checkout.tree.repository.git
    readme = checkout.project.tree / "README.md"
    if kind == "damaged state":
        checkout.tree.state_file.write_text("{")
        return
    if kind == "new file":
        (checkout.project.tree / "new.txt").write_text("mine\n")
        return
    readme.write_text("mine\n")
    if kind == "stash":
        git("stash")
    if kind in ("commit", "branch"):
        git("commit", "--all", "--quiet", "-m", "mine")
    if kind == "branch":
        git("branch", "mine")
        git("reset", "--quiet", "--hard", "HEAD~")


def cleaned(checkout: Checkout) -> Path | None:
    kept = json.loads(checkout.tools("clean", "--json").stdout)["data"]["kept"]
    assert not checkout.project.tree.exists()
    return Path(kept) if kept else None


@pytest.mark.parametrize(
    "kind", ["edit", "new file", "commit", "branch", "stash", "damaged state"]
)
def test_tree_with_work_is_kept_as_it_is(checkout: Checkout, kind: str) -> None:
    work(checkout, kind)
    tree = checkout.tree.repository
    before = tree.git("status", "--porcelain").text, tree.git("for-each-ref").text
    kept = cleaned(checkout)
    assert kept == checkout.project.dropped / "tree-1"
    moved = type(tree)(kept)
    after = moved.git("status", "--porcelain").text, moved.git("for-each-ref").text
    assert after == before
    checkout.apply()
    work(checkout, kind)
    assert cleaned(checkout) == checkout.project.dropped / "tree-2"


def test_tree_without_work_goes_and_comes_again(checkout: Checkout) -> None:
    before = checkout.tree.state
    (checkout.project.build / "venv").mkdir()
    (checkout.project.build / "link").symlink_to(checkout.project.patches)
    (checkout.project.dropped).mkdir()
    (checkout.project.dropped / "copy").write_text("kept\n")
    assert cleaned(checkout) is None
    left = sorted(path.name for path in checkout.project.build.iterdir())
    assert left == [".lock", "dropped"]
    assert (checkout.project.dropped / "copy").is_file()
    assert (checkout.project.patches / "series").is_file()
    checkout.apply()
    assert checkout.tree.state == before


def test_dropped_edits_are_no_reason_to_keep_the_tree(checkout: Checkout) -> None:
    work(checkout, "edit")
    checkout.tools("apply", "--drop")
    assert cleaned(checkout) is None


def test_rebase_under_way_is_not_removed(checkout: Checkout) -> None:
    journal = checkout.project.build / "rebase" / "journal.json"
    journal.parent.mkdir()
    journal.write_text("{}")
    checkout.tools("clean", code=1)
    assert journal.is_file() and checkout.project.tree.is_dir()


def test_make_clean_without_the_tools_keeps_every_tree(checkout: Checkout) -> None:
    shutil.copy(REPOSITORY / "Makefile", checkout.project.root)
    make = ["make", "clean"]
    subprocess.run(make, cwd=checkout.project.root, check=True)
    (kept,) = checkout.project.dropped.iterdir()
    assert (kept / "README.md").is_file()
    assert [path.name for path in checkout.project.build.iterdir()] == ["dropped"]
    subprocess.run(make, cwd=checkout.project.root, check=True)
    assert (kept / "README.md").is_file()
