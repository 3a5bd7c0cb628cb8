"""One step back from every command that changes the series, byte for byte."""

import json
import shutil
from collections.abc import Callable

import pytest
from checkout import CORE, Checkout
from rebases import copy, killed, spread, state
from releases import release

SECOND = "0002-crlf.patch"


def edit(checkout: Checkout) -> None:
    """Edit a file of upstream's and an overlay."""
    tree = checkout.project.tree
    (tree / "README.md").write_text("ours\n")
    (tree / "vllm/tagma.py").write_text("NAME = 'ours'\n")
    (tree / "vllm/more.py").write_text("MORE = 'ours'\n")


def forget_the_last_commit(checkout: Checkout) -> None:
    checkout.tree.repository.git("reset", "--hard", "--quiet", "HEAD^")


def two_files(checkout: Checkout) -> None:
    """Make a third patch, of two files."""
    (checkout.project.tree / "README.md").write_text("ours\n")
    (checkout.project.tree / "run.sh").write_text("#!/bin/sh\ntrue\n")
    checkout.tools("new", "two: files")


def nothing(checkout: Checkout) -> None:
    pass


# What goes before, the edits that the command takes, and the command.
CHANGES = {
    "refresh": (nothing, edit, ["refresh"]),
    "refresh below the top": (lambda c: c.tools("pop"), edit, ["refresh"]),
    "new": (nothing, edit, ["new", "docs: ours"]),
    "drop": (nothing, nothing, ["drop", "1"]),
    "rename": (nothing, nothing, ["rename", "2", "line-ends"]),
    "split": (two_files, nothing, ["split", "3", "run.sh", "--subject", "run: it"]),
    "fold": (nothing, nothing, ["fold", "2", "--into", "1"]),
    "export": (nothing, forget_the_last_commit, ["export"]),
    "rebase": (nothing, nothing, ["rebase", "2.0"]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_change_is_taken_back_and_made_again_byte_for_byte(
    checkout: Checkout, name: str
) -> None:
    prepare, edits, command = CHANGES[name]
    upstream = CORE.replace("+= 1", "+= 7")
    release(checkout, {"vllm/core.py": f"import os\n\n\n{upstream}"})
    prepare(checkout)
    before = state(checkout)
    edits(checkout)
    checkout.tools(*command)
    after = state(checkout)
    assert after != before
    done = json.loads(checkout.tools("undo", "--json").stdout)
    assert done["data"]["undone"].startswith(command[0])
    assert state(checkout) == before
    assert checkout.tools("status").output.count("current") == 1
    checkout.tools("undo")
    assert state(checkout) == after
    checkout.tools("undo")
    assert state(checkout) == before


def test_last_change_is_taken_back_and_none_before_it(checkout: Checkout) -> None:
    checkout.tools("rename", "1", "one")
    middle = state(checkout)
    checkout.tools("rename", "2", "two")
    checkout.tools("undo")
    assert state(checkout) == middle
    checkout.tools("undo")  # again, and not one step further back
    assert (checkout.project.patches / "0002-two.patch").exists()


def test_change_that_git_took_back_in_part_is_taken_back_whole(
    checkout: Checkout,
) -> None:
    """Git leaves the new file of a rename, unlisted, which stops other commands."""
    before = state(checkout)
    patches = checkout.project.patches
    series, old = (patches / "series").read_bytes(), (patches / SECOND).read_bytes()
    checkout.tools("rename", "2", "line-ends")
    (patches / "series").write_bytes(series)
    (patches / SECOND).write_bytes(old)
    checkout.tools("series", code=3)
    checkout.tools("undo")
    assert state(checkout) == before


def test_nothing_is_taken_back_before_the_first_change(checkout: Checkout) -> None:
    shutil.rmtree(checkout.project.dropped, ignore_errors=True)
    done = json.loads(checkout.tools("undo", "--json", code=2).stdout)
    assert "nothing to take back" in done["message"]


def by_hand(checkout: Checkout) -> None:
    path = checkout.project.patches / "0002-line-ends.patch"
    path.write_bytes(path.read_bytes().replace(b"Why", b"How"))


def in_the_tree(checkout: Checkout) -> None:
    (checkout.project.tree / "README.md").write_text("mine\n")


def in_the_copy(checkout: Checkout) -> None:
    (copied,) = checkout.project.dropped.glob(f"*/patches/{SECOND}")
    copied.write_text("mine\n")


@pytest.mark.parametrize("change", [by_hand, in_the_tree, in_the_copy])
def test_what_changed_since_is_not_overwritten(
    checkout: Checkout, change: Callable[[Checkout], None]
) -> None:
    checkout.tools("rename", "2", "line-ends")
    change(checkout)
    before = state(checkout)
    done = checkout.cli("undo", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["outcome"] in ("out-of-sync", "tree-edited")
    assert state(checkout) == before


def test_overlay_edited_since_stays_as_it_is(checkout: Checkout) -> None:
    checkout.tools("rename", "2", "line-ends")
    overlay = checkout.project.root / "vllm_overlay" / "tagma.py"
    overlay.write_text("NAME = 'mine'\n")
    checkout.apply(relock=True)
    checkout.tools("undo")
    assert (checkout.project.patches / SECOND).exists()
    assert overlay.read_text() == "NAME = 'mine'\n"
    assert checkout.tools("status").output.count("current") == 1


def test_undo_without_a_tree_makes_it(checkout: Checkout) -> None:
    before = state(checkout)
    checkout.tools("drop", "2")
    (checkout.project.cache / "files").mkdir(parents=True, exist_ok=True)
    shutil.rmtree(checkout.project.tree)
    checkout.apply()
    checkout.tools("undo")
    assert state(checkout) == before


def test_killed_undo_is_made_wholly_or_not_at_all(checkout: Checkout) -> None:
    before = state(checkout)
    checkout.tools("drop", "1")
    after = state(checkout)
    whole = copy(checkout, "whole")
    ran, total = killed(lambda: whole.tools("undo"), 10**9)
    assert not ran and total > 30
    ends = set()
    for point in spread(total, 16):
        one = copy(checkout, f"one-{point}")
        assert killed(lambda one=one: one.tools("undo"), point)[0]
        one.tools("apply")
        assert state(one) in (before, after), f"killed at point {point}"
        ends.add(state(one) == before)
        shutil.rmtree(one.project.root)
    assert ends == {True, False}
