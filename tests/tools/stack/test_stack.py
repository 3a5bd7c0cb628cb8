"""Editing the series: each command on a real tree, and nothing is ever lost."""

import doctest
import json
import os
import shutil
import signal
import string
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from checkout import CORE, FILES, HEADER, Checkout, make_sdist, tree_id
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tools.stack.stack
import tools.tree.overlay
import tools.tree.series

FIRST = "0001-count.patch"
SECOND = "0002-crlf.patch"
THIRD = "0003-first.patch"
FOURTH = "0004-twice.patch"


@pytest.fixture
def four(checkout: Checkout) -> Checkout:
    """Four patches as `export` writes them; the last builds on the first."""
    add(checkout, THIRD, "core: five", "vllm/core.py", 3, "+= 1", "+= 5")
    add(checkout, FOURTH, "core: six", "vllm/core.py", 9, "+= 3", "+= 6")
    checkout.apply(relock=True)
    checkout.tools("export")
    return checkout


def add(
    checkout: Checkout, name: str, subject: str, path: str, line: int, *texts: str
) -> None:
    """Write a patch of one line of a function, with a line of context."""
    old, new = (f"    total {text}\n" for text in texts)
    before, after = "     total = 0\n", "     return total\n"
    checkout.write_patch(
        name,
        HEADER.format(subject=subject)
        + f"diff --git a/{path} b/{path}\nindex 1..2 100644\n--- a/{path}\n"
        f"+++ b/{path}\n@@ -{line - 1},3 +{line - 1},3 @@\n{before}-{old}+{new}{after}",
    )


def sources(checkout: Checkout) -> dict[str, bytes]:
    """All files of the checkout outside build/."""
    root = checkout.project.root
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.relative_to(root).parts[0] != "build"
    }


def replace_in(checkout: Checkout, name: str, old: str, new: str) -> None:
    path = checkout.project.tree / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def data(checkout: Checkout, *args: str, code: int = 0) -> dict:
    report = json.loads(checkout.tools(*args, "--json", code=code).stdout)
    return report["data"]


def kept(checkout: Checkout) -> list[tuple[str, bytes]]:
    folder = checkout.project.build / "dropped"
    return [(p.name, p.read_bytes()) for p in folder.rglob("*") if p.is_file()]


def in_step(checkout: Checkout) -> None:
    """The tree is what the files make, and exports to these very files."""
    checkout.tools("push", "--all")
    before = sources(checkout)
    checkout.tools("export", "--check")
    tree = checkout.tree.repository.tree_of("HEAD")
    shutil.rmtree(checkout.project.build)
    checkout.apply()
    assert checkout.tree.repository.tree_of("HEAD") == tree
    assert sources(checkout) == before


# ---- moving


def test_pop_and_push_move_by_patches_and_keep_the_overlays(four: Checkout) -> None:
    whole, text = four.files(), sources(four)
    four.tools("pop")
    assert b"+= 3" in four.files()["vllm/core.py"]
    assert data(four, "pop", "2")["applied"] == [FIRST]
    four.tools("pop", "--all")
    assert four.files()["vllm/core.py"] == CORE.encode()
    assert "vllm/tagma.py" in four.files()
    assert data(four, "push", "3")["popped"] == [FOURTH]
    four.tools("push", "--all")
    assert four.files() == whole
    assert sources(four) == text


def test_goto_takes_a_number_a_name_or_its_start(four: Checkout) -> None:
    for query in ("3", "0003", "0003-first", THIRD, "fir"):
        four.tools("goto", "1")
        assert data(four, "goto", query)["applied"][-1] == THIRD


def test_ambiguous_or_unknown_patch_is_refused_with_the_choice(four: Checkout) -> None:
    four.tools("rename", "4", "fire")
    done = four.tools("goto", "fir", code=2)
    assert THIRD in done.stderr and "0004-fire.patch" in done.stderr
    assert FIRST not in done.stderr
    assert FIRST in four.tools("show", "9", code=2).stderr
    assert data(four, "series")["popped"] == []


def test_move_over_edits_is_refused_and_names_refresh(four: Checkout) -> None:
    (four.project.tree / "README.md").write_text("mine\n")
    for command in (("pop",), ("goto", "1"), ("edit", "2"), ("drop", "1")):
        done = four.tools(*command, code=1)
        assert "refresh" in done.stderr
    assert four.files()["README.md"] == b"mine\n"


def test_move_over_commits_is_refused_and_names_export(four: Checkout) -> None:
    (four.project.tree / "README.md").write_text("mine\n")
    git = four.tree.repository.git
    git("commit", "--all", "--quiet", "-m", "mine")
    assert "export" in four.tools("pop", code=1).stderr
    assert four.files()["README.md"] == b"mine\n"


def test_ignored_file_in_the_way_of_a_push_stays(checkout: Checkout) -> None:
    (checkout.project.tree / "notes.md").write_text("note\n")
    checkout.tools("new", "add: notes")
    checkout.tools("pop")
    exclude = checkout.tree.repository.git_dir / "info"
    exclude.mkdir(exist_ok=True)
    (exclude / "exclude").write_text("notes.md\n")
    (checkout.project.tree / "notes.md").write_text("mine\n")
    assert "notes.md" in checkout.tools("push", code=1).stderr
    assert checkout.files()["notes.md"] == b"mine\n"


def test_file_that_becomes_a_folder_is_no_stranger_but_an_ignored_one_is(
    checkout: Checkout,
) -> None:
    tree = checkout.project.tree
    (tree / "README.md").unlink()
    (tree / "README.md").mkdir()
    (tree / "README.md" / "all.txt").write_text("ours\n")
    (tree / "notes.txt").write_text("ours\n")
    checkout.tools("new", "docs: a folder of them")
    checkout.tools("pop")
    checkout.tools("push")
    checkout.tools("pop")
    (tree / ".git" / "info").mkdir(exist_ok=True)
    (tree / ".git" / "info" / "exclude").write_text("/notes.txt\n")
    (tree / "notes.txt").mkdir()
    (tree / "notes.txt" / "mine").write_text("mine\n")
    checkout.tools("push", code=1)
    assert (tree / "notes.txt" / "mine").read_text() == "mine\n"


def test_apply_pushes_what_was_popped(four: Checkout) -> None:
    whole = four.files()
    four.tools("pop", "3")
    done = four.tools("apply")
    assert "applied again" in done.stderr
    assert four.files() == whole


def test_build_refuses_a_tree_with_popped_patches(four: Checkout) -> None:
    four.tools("pop")
    assert "push --all" in four.tools("build", code=1).stderr


def test_series_lists_each_patch_with_its_state(four: Checkout) -> None:
    four.tools("goto", "2")
    states = {p["name"]: p["state"] for p in data(four, "series")["patches"]}
    assert states == dict(
        zip(
            (FIRST, SECOND, THIRD, FOURTH),
            ("applied", "last", "popped", "popped"),
            strict=True,
        )
    )
    assert THIRD in four.tools("series").stdout


def test_show_prints_the_very_bytes(four: Checkout) -> None:
    shown = four.tools("show", "crlf").stdout_bytes
    assert shown == (four.project.patches / SECOND).read_bytes()
    assert data(four, "show", "2")["files"] == ["crlf.txt"]


def test_status_tells_what_is_out_of_step(four: Checkout) -> None:
    four.tools("pop")
    (four.project.root / "vllm_overlay" / "tagma.py").write_text("NAME = 'y'\n")
    path = four.project.patches / FIRST
    path.write_bytes(path.read_bytes().replace(b"Why it", b"How it"))
    (four.project.tree / "README.md").write_text("mine\n")
    before = sources(four), four.files()
    told = data(four, "status")
    assert told["tree"] == "stale"
    assert told["popped"] == [FOURTH]
    assert told["edits"] == ["README.md"]
    assert told["changed"] == ["vllm_overlay/tagma.py", f"patches/{FIRST}"]
    assert (sources(four), four.files()) == before


def test_status_before_the_first_apply(
    make_checkout: Callable[..., Checkout],
) -> None:
    assert data(make_checkout(lock=False), "status")["tree"] == "missing"


# ---- refresh


def test_edit_and_refresh_write_the_patch_and_replay_the_later_ones(
    four: Checkout,
) -> None:
    before = sources(four)
    four.tools("edit", "1")
    (four.project.tree / "README.md").write_text("ours\n")
    done = data(four, "refresh")
    assert done["applied"] == [FIRST]
    assert done["changed"] == [f"patches/{FIRST}", "upstream/tree.lock"]
    assert b"+ours" in (four.project.patches / FIRST).read_bytes()
    assert sources(four)[f"patches/{FOURTH}"] == before[f"patches/{FOURTH}"]
    in_step(four)
    assert four.files()["README.md"] == b"ours\n"
    assert b"+= 6" in four.files()["vllm/core.py"]


def test_refresh_moves_the_hunks_of_later_patches(four: Checkout) -> None:
    four.tools("edit", "2")
    replace_in(four, "vllm/core.py", "def first", "# new\n\ndef first")
    four.tools("refresh")
    assert b"@@ -10,3 +10,3 @@" in (four.project.patches / FOURTH).read_bytes()
    in_step(four)


def test_refresh_dates_only_the_patch_that_was_edited(four: Checkout) -> None:
    four.tools("edit", "1")
    (four.project.tree / "README.md").write_text("ours\n")
    four.tools("refresh")
    dates = [
        data(four, "show", number)["header"]["Last-Update"] for number in ("1", "2")
    ]
    assert dates[0] > dates[1] == "2026-01-02"


def test_cosmetic_changes_are_not_written(four: Checkout) -> None:
    """Blob ids of a later patch and the text behind a hunk's place."""
    path = four.project.patches / FOURTH
    text = path.read_bytes().replace(b"index ", b"index 0000").replace(b"@@ def", b"@@")
    path.write_bytes(text)
    four.apply()
    four.tools("export", "--check")
    assert data(four, "refresh")["changed"] == []
    assert path.read_bytes() == text


def test_refresh_without_edits_writes_nothing(four: Checkout) -> None:
    before = sources(four)
    assert json.loads(four.tools("refresh", "--json").stdout)["outcome"] == "unchanged"
    assert sources(four) == before


def test_edited_added_and_removed_overlays_flow_back(four: Checkout) -> None:
    root = four.project.root
    (root / "vllm_overlay" / "old.py").write_text("old\n")
    four.apply(relock=True)
    four.tools("goto", "2")
    tree = four.project.tree
    (tree / "vllm" / "tagma.py").write_text("NAME = 'new'\n")
    (tree / "vllm" / "old.py").unlink()
    for target in ("csrc/tagma/a.h", "vllm/v1/run.py", "tests/v1/test_a.py"):
        (tree / target).parent.mkdir(parents=True, exist_ok=True)
        (tree / target).write_text("new\n")
    (tree / "vllm" / "v1" / "run.py").chmod(0o755)
    done = data(four, "refresh")
    assert done["changed"] == [
        "csrc_tagma/a.h",
        "tests/vllm/v1/test_a.py",
        "upstream/tree.lock",
        "vllm_overlay/old.py",
        "vllm_overlay/tagma.py",
        "vllm_overlay/v1/run.py",
    ]
    assert (root / "vllm_overlay" / "tagma.py").read_text() == "NAME = 'new'\n"
    assert (root / "vllm_overlay" / "v1" / "run.py").stat().st_mode & 0o100
    assert not (root / "vllm_overlay" / "old.py").exists()
    assert ("old.py", b"old\n") in kept(four)
    in_step(four)


def test_edits_of_patch_and_overlay_are_told_apart(four: Checkout) -> None:
    (four.project.tree / "vllm" / "tagma.py").write_text("NAME = 'new'\n")
    (four.project.tree / "README.md").write_text("ours\n")
    four.tools("refresh")
    assert data(four, "show", "4")["files"] == ["README.md", "vllm/core.py"]
    in_step(four)


def test_conflict_with_a_later_patch_writes_nothing_and_git_solves_it(
    four: Checkout,
) -> None:
    """The steps that the error names are tried as they are."""
    four.tools("edit", "1")
    replace_in(four, "vllm/core.py", "+= 3", "+= 30")
    before = sources(four), four.files()
    done = four.tools("refresh", "--json", code=1)
    report = json.loads(done.stdout)
    assert report["outcome"] == "conflict"
    assert FOURTH in report["message"]
    assert report["details"] == ["conflict in vllm/core.py"]
    assert (sources(four), four.files()) == before

    git = four.tree.repository.git
    git("commit", "--all", "--amend", "--no-edit", "--quiet")
    assert "popped" in four.tools("export", code=1).stderr
    span = report["next_steps"][0].split()[-1]
    assert git("cherry-pick", span, check=False).status == 1
    assert "cherry-pick" in four.tools("export", code=1).stderr
    assert "cherry-pick" in four.tools("apply", code=1).stderr
    assert sources(four) == before[0]
    text = CORE.replace("+= 1", "+= 5").replace("+= 2", "+= 6")
    (four.project.tree / "vllm" / "core.py").write_text(text)
    git("add", "--all")
    git("-c", "core.editor=true", "cherry-pick", "--continue")
    four.tools("export")
    assert b"+    total += 30" in (four.project.patches / FIRST).read_bytes()
    assert b"-    total += 30" in (four.project.patches / FOURTH).read_bytes()
    in_step(four)


def test_edits_that_undo_the_patch_are_refused(four: Checkout) -> None:
    four.tools("edit", "2")
    git = four.tree.repository.git
    git("checkout", "HEAD~1", "--", "crlf.txt")
    done = four.tools("refresh", code=3)
    assert f"drop {SECOND}" in done.stderr


def test_edits_below_the_first_patch_need_a_new_one(four: Checkout) -> None:
    four.tools("pop", "--all")
    (four.project.tree / "README.md").write_text("ours\n")
    assert "new SUBJECT" in four.tools("refresh", code=1).stderr
    four.tools("new", "docs: ours")
    assert data(four, "series")["applied"] == ["0005-docs-ours.patch"]
    in_step(four)


@pytest.mark.parametrize("name", ["vllm/.core.py.swp", "vllm/core.py~"])
def test_editor_file_is_not_taken_for_source(four: Checkout, name: str) -> None:
    (four.project.tree / name).write_text("x")
    assert name in four.tools("refresh", code=1).stderr


def test_edits_of_a_stale_tree_can_be_put_aside_as_the_error_says(
    four: Checkout,
) -> None:
    (four.project.root / "vllm_overlay" / "tagma.py").write_text("NAME = 'y'\n")
    (four.project.tree / "README.md").write_text("ours\n")
    assert "stash" in four.tools("refresh", code=1).stderr
    git = four.tree.repository.git
    git("stash", "--include-untracked", "--quiet")
    four.tools("apply", "--lock", "--source", str(four.sdist))
    git("stash", "pop", "--quiet")
    four.tools("refresh")
    in_step(four)


# ---- new, drop, rename, split, fold


def test_new_makes_a_patch_behind_the_last_applied_one(four: Checkout) -> None:
    four.tools("goto", "1")
    (four.project.tree / "README.md").write_text("ours\n")
    author = "Jürgen Äß <j@example.com>"
    done = data(four, "new", "docs: ours", "--why", "Because.", "--author", author)
    name = "0005-docs-ours.patch"
    assert done["applied"] == [FIRST, name]
    assert done["popped"] == [SECOND, THIRD, FOURTH]
    shown = data(four, "show", name)
    assert shown["header"]["From"] == author
    assert shown["description"] == "Because."
    in_step(four)


@pytest.mark.parametrize(
    ("options", "origin"),
    [
        ([], "vendor"),
        (["--author", "A. N. Other <a@b>"], "backport"),
        (["--author", "A. N. Other <a@b>", "--origin", "backport, 1f2e"],
         "backport, 1f2e"),
    ],
)  # fmt: skip
def test_new_says_whose_change_it_is(
    four: Checkout, options: list[str], origin: str
) -> None:
    """A backport said `Origin: vendor`; so did what is split off from one."""
    (four.project.tree / "README.md").write_text("ours\n")
    (four.project.tree / "crlf.txt").write_bytes(b"one\r\nours\r\nthree\r\n")
    four.tools("new", "docs: ours", "--why", "Because.", *options)
    assert data(four, "show", "5")["header"]["Origin"] == origin
    four.tools("split", "5", "README.md", "--subject", "docs: the rest")
    assert data(four, "show", "6")["header"]["Origin"] == origin


def test_export_of_a_picked_commit_advises_its_origin(four: Checkout) -> None:
    """What it advises is followed as it stands."""
    tree = four.project.tree
    (tree / "README.md").write_text("theirs\n")
    commit = "5df63a7205df63a7205df63a7205df63a7205df6"
    text = f"docs: theirs\n\nBecause.\n\n(cherry picked from commit {commit})\n"
    git = ["git", "-C", str(tree)]
    subprocess.run([*git, "commit", "--quiet", "--all", "-m", text], check=True)
    advice = next(
        line.partition("last one: ")[2]
        for line in four.tools("export", code=3).stderr.splitlines()
        if "--trailer" in line
    )
    advice = advice.replace("build/tree", str(tree))
    subprocess.run(["sh", "-ec", advice], check=True, stdout=subprocess.DEVNULL)
    four.tools("export")
    assert data(four, "show", "5")["header"]["Origin"] == f"backport, {commit}"


def test_paths_that_git_quotes_are_read(four: Checkout) -> None:
    (four.project.tree / "docs").mkdir()
    (four.project.tree / "docs" / 'a "b" é.md').write_text("x\n")
    four.tools("new", "docs: quoted", "--why", "Because.")
    assert data(four, "show", "5")["files"] == ['docs/a "b" é.md']
    in_step(four)


@pytest.mark.parametrize("why", ["a\n---\nb", "diff --git a/x b/x"])
def test_new_refuses_text_that_would_end_the_header(four: Checkout, why: str) -> None:
    (four.project.tree / "README.md").write_text("ours\n")
    before = sources(four)
    four.tools("new", "docs: ours", "--why", why, code=2)
    assert sources(four) == before


def test_new_without_edits_is_refused(four: Checkout) -> None:
    four.tools("new", "nothing", code=2)


def test_drop_keeps_a_copy_that_it_names(four: Checkout) -> None:
    text = (four.project.patches / SECOND).read_bytes()
    folder = Path(data(four, "drop", "crlf")["kept"])
    assert (folder / "patches" / SECOND).read_bytes() == text
    assert data(four, "series")["applied"] == [FIRST, THIRD, FOURTH]
    in_step(four)
    shutil.rmtree(four.project.build)


def test_dropped_patch_comes_back_from_its_copy(four: Checkout) -> None:
    before = sources(four)
    folder = Path(data(four, "drop", "2")["kept"])
    shutil.copytree(folder, four.project.root, dirs_exist_ok=True)
    four.apply()
    assert sources(four) == before


def test_drop_of_a_patch_that_a_later_one_needs_is_solved_by_git(
    four: Checkout,
) -> None:
    """Nothing is written; the steps that the error names are tried as they are."""
    before = sources(four), four.files()
    report = json.loads(four.tools("drop", "1", "--json", code=1).stdout)
    assert FOURTH in report["message"]
    assert (sources(four), four.files()) == before
    git = four.tree.repository.git
    rebase = report["next_steps"][0].split(" rebase ")[1].split()
    assert git("rebase", *rebase, check=False).status == 1
    assert "rebase" in four.tools("export", code=1).stderr
    text = CORE.replace("+= 1", "+= 5").replace("+= 2", "+= 6")
    (four.project.tree / "vllm" / "core.py").write_text(text)
    git("add", "--all")
    git("-c", "core.editor=true", "rebase", "--continue")
    folder = Path(data(four, "export")["kept"])
    assert (folder / "patches" / FIRST).read_bytes() == before[0][f"patches/{FIRST}"]
    assert data(four, "series")["applied"] == [SECOND, THIRD, FOURTH]
    in_step(four)


def test_new_patch_that_conflicts_can_be_made_at_the_end(four: Checkout) -> None:
    four.tools("goto", "1")
    replace_in(four, "vllm/core.py", "+= 3", "+= 30")
    before = sources(four), four.files()
    done = four.tools("new", "core: thirty", code=1)
    assert "stash --include-untracked" in done.stderr
    assert (sources(four), four.files()) == before
    git = four.tree.repository.git
    git("stash", "--include-untracked", "--quiet")
    four.tools("push", "--all")
    assert git("stash", "pop", "--quiet", check=False).status == 1
    text = CORE.replace("+= 1", "+= 5").replace("+= 2", "+= 30")
    (four.project.tree / "vllm" / "core.py").write_text(text)
    four.tools("new", "core: thirty")
    assert b"+= 30" in four.files()["vllm/core.py"]
    in_step(four)


def test_drop_leaves_the_place_in_the_series(four: Checkout) -> None:
    four.tools("goto", "3")
    assert data(four, "drop", "2")["applied"] == [FIRST, THIRD]
    assert data(four, "drop", "4")["applied"] == [FIRST, THIRD]


def test_rename_keeps_number_header_and_place(four: Checkout) -> None:
    before = data(four, "show", "2")
    four.tools("rename", "2", "line-ends.patch")
    after = data(four, "show", "2")
    assert after["name"] == "0002-line-ends.patch"
    assert after["header"] == before["header"]
    assert data(four, "series")["applied"][1] == "0002-line-ends.patch"
    in_step(four)


def test_rename_to_a_present_name_is_refused(checkout: Checkout) -> None:
    add(checkout, "0001-other.patch", "o", "vllm/core.py", 3, "+= 1", "+= 5")
    checkout.apply(relock=True)
    checkout.tools("rename", "count", "other", code=2)


def test_comments_in_the_series_survive_every_change(four: Checkout) -> None:
    series = four.project.patches / "series"
    series.write_text(
        f"# first\n\n{FIRST} # one\n# of two\n{SECOND}\n{THIRD}\n{FOURTH}\n# end"
    )
    four.tools("drop", "2")
    assert series.read_text() == (
        f"# first\n\n{FIRST} # one\n# of two\n{THIRD}\n{FOURTH}\n# end\n"
    )


def test_split_by_files_and_fold_give_the_tree_back(four: Checkout) -> None:
    tree = four.files()
    four.tools("edit", "1")
    (four.project.tree / "README.md").write_text("ours\n")
    (four.project.tree / "docs.md").write_text("docs\n")
    four.tools("refresh")
    four.tools("split", "1", "*.md", "--subject", "docs: ours", "--why", "Docs.")
    name = "0005-docs-ours.patch"
    assert data(four, "series")["applied"] == [FIRST, name]
    assert data(four, "show", name)["files"] == ["README.md", "docs.md"]
    assert data(four, "show", "1")["files"] == ["vllm/core.py"]
    in_step(four)
    folder = Path(data(four, "fold", name, "--into", "4")["kept"])
    assert (folder / "patches" / name).is_file()
    shown = data(four, "show", "4")
    assert shown["files"] == ["README.md", "docs.md", "vllm/core.py"]
    assert "docs: ours" in shown["description"] and "Docs." in shown["description"]
    in_step(four)
    added = {"README.md": b"ours\n", "docs.md": b"docs\n"}
    assert four.files() == tree | added


@pytest.mark.parametrize(
    ("parts", "moved"),
    [
        (["alike.txt:1"], {"one"}),
        (["alike.txt:[23]"], {"two", "three"}),
        (["alike.txt:3", "added.md"], {"three", "added"}),
        (["alike.txt:1", "*:2", "*:3"], {"one", "two", "three"}),
    ],
)
def test_split_by_hunks_moves_just_those(
    four: Checkout, parts: list[str], moved: set[str]
) -> None:
    """The lines around each are alike, and the first hunk shifts the others."""
    alike = four.project.tree / "alike.txt"
    block = ["begin", "", "", "", "end"]
    four.tools("edit", "1")
    alike.write_text("\n".join(block * 5))
    four.tools("refresh")
    four.tools("push", "--all")
    lines = block * 5
    lines[22] = "three"  # of the last block, without a line end behind it
    lines[12:14] = ["two"]
    lines[2:2] = ["one"] * 5
    alike.write_text("\n".join(lines))
    (four.project.tree / "added.md").write_text("added\n")
    four.tools("new", "docs: all")
    tree = four.files()
    four.tools("split", "docs-all", *parts, "--subject", "docs: some")
    assert four.files() == tree
    in_step(four)

    def added(patch: str) -> set[str]:
        lines = data(four, "show", patch)["diff"].splitlines()
        return {line[1:] for line in lines if line[0] == "+" and line[1] != "+"}

    assert added("docs-some") == moved
    assert added("docs-all") == {"one", "two", "three", "added"} - moved


def test_split_names_the_parts_there_are(four: Checkout) -> None:
    refused = four.tools("split", "1", "vllm/core.py:2", "--subject", "x", code=2)
    assert "no part is named vllm/core.py:2 in 0001-count.patch" in refused.stderr
    assert "vllm/core.py:1" in refused.stderr
    four.tools("split", "1", "vllm/core.py:1", "--subject", "x", code=2)


@pytest.mark.parametrize(
    "patch, into", [("4", "1"), ("1", "4"), ("2", "1"), ("1", "2")]
)
def test_fold_keeps_the_final_tree(four: Checkout, patch: str, into: str) -> None:
    tree = four.files()
    four.tools("fold", patch, "--into", into)
    assert len(data(four, "series")["applied"]) == 3
    in_step(four)
    assert four.files() == tree


def test_split_of_all_or_no_files_is_refused(four: Checkout) -> None:
    for glob in ("*", "nothing"):
        four.tools("split", "1", glob, "--subject", "x", code=2)


# ---- surroundings


def edit_all(checkout: Checkout) -> None:
    """One go through the commands, whose result must never depend on anything."""
    checkout.tools("edit", "1")
    (checkout.project.tree / "README.md").write_text("ours\r\n")
    (checkout.project.tree / "vllm" / "tagma.py").write_text("NAME = 'new'\r\n")
    checkout.tools("refresh")
    checkout.tools("split", "1", "README.md", "--subject", "docs: ours")
    checkout.tools("fold", "crlf", "--into", "1")
    checkout.tools("push", "--all")


def test_hostile_git_configuration_changes_no_edit(
    make_checkout: Callable[..., Checkout],
    hostile_config: Path,
    calm: Callable[[], None],
) -> None:
    hostile = make_checkout("hostile")
    edit_all(hostile)
    assert not (hostile_config / "ran").exists()
    calm()
    plain = make_checkout("plain")
    edit_all(plain)
    pin = "upstream/pin.toml"  # names each one's own sdist
    assert sources(hostile) | {pin: b""} == sources(plain) | {pin: b""}
    assert hostile.tree.state.commit == plain.tree.state.commit


def test_rewrite_killed_at_every_git_call_is_made_wholly_or_not_at_all(
    four: Checkout, tmp_path: Path, killing_git: Callable[..., dict[str, str]]
) -> None:
    """After a kill the next run ends in one of two states, byte for byte."""
    four.tools("edit", "1")
    (four.project.tree / "README.md").write_text("ours\n")
    start = tmp_path / "start"
    shutil.copytree(four.project.root, start, symlinks=True)
    before = sources(four)
    four.tools("refresh")
    after, tree = sources(four), four.files()
    kills = 0
    for at in range(1, 200, 9):
        shutil.rmtree(four.project.root)
        shutil.copytree(start, four.project.root, symlinks=True)
        env = killing_git(tmp_path / "shim", at, "after" if at % 2 else "before")
        done = four.cli("refresh", env=env)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        kills += 1
        assert four.files() == tree
        four.tools("series")  # recovers
        assert sources(four) in (before, after)
        four.tools("refresh")
        assert sources(four) == after
        assert four.files() == tree
    assert kills >= 5


@pytest.mark.parametrize("at", range(6))
def test_rewrite_killed_between_two_files_is_completed(
    four: Checkout, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Every file is replaced in one step; the run dies before step `at`."""
    four.tools("edit", "1")
    (four.project.tree / "README.md").write_text("ours\n")
    (four.project.tree / "vllm" / "tagma.py").write_text("NAME = 'new'\n")

    class Killed(BaseException):
        pass

    replaced = []

    def replace(source: str, target: str) -> None:
        if Path(target).is_relative_to(four.project.root / "patches") or replaced:
            if len(replaced) == at:
                raise Killed
            replaced.append(target)
        rename(source, target)

    rename = os.replace
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", replace)
        with suppress(Killed, AssertionError):
            four.tools("refresh")
    four.tools("series")
    four.tools("refresh")
    assert (four.project.root / "vllm_overlay" / "tagma.py").read_text() == (
        "NAME = 'new'\n"
    )
    in_step(four)


def test_edit_since_a_killed_rewrite_is_kept(
    four: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    (four.project.tree / "README.md").write_text("ours\n")
    with monkeypatch.context() as patched:
        patched.setattr(
            "tools.tree.recovery.carry_out",
            lambda *args: (_ for _ in ()).throw(OSError()),
        )
        four.tools("refresh", code=1)
    (four.project.tree / "README.md").write_text("edited since\n")
    (four.project.patches / FOURTH).write_text("also edited since\n")
    four.tools("series")
    assert (FOURTH, b"also edited since\n") in kept(four)
    assert any(b"+edited since" in text for _, text in kept(four))
    assert four.files()["README.md"] == b"ours\n"
    in_step(four)


def test_patch_already_upstream_stops_apply_and_stays_in_the_series(
    checkout: Checkout, tmp_path: Path
) -> None:
    """`patch --batch` would reverse it, `git am -3` would leave it out."""
    files = FILES | {"vllm/core.py": CORE.replace("+= 2", "+= 3").encode()}
    make_sdist(checkout.sdist, files)
    checkout.write_pin(tree_id(tmp_path / "files", files))
    before, tree = sources(checkout), checkout.files()
    done = checkout.tools("apply", "--lock", "--source", str(checkout.sdist), code=3)
    assert FIRST in done.stderr
    assert (sources(checkout), checkout.files()) == (before, tree)


@pytest.mark.parametrize("operation", ["rebase-merge", "MERGE_HEAD", "sequencer"])
def test_nothing_is_exported_in_the_middle_of_an_operation(
    four: Checkout, operation: str
) -> None:
    (four.tree.repository.git_dir / operation).mkdir()
    before = sources(four)
    for command in (("export",), ("refresh",), ("pop",), ("apply",), ("drop", "1")):
        assert "under way" in four.tools(*command, code=1).stderr
    assert sources(four) == before


def test_export_that_removes_a_patch_keeps_a_copy(four: Checkout) -> None:
    text = (four.project.patches / FOURTH).read_bytes()
    four.tree.repository.git("reset", "--hard", "--quiet", "HEAD~1")
    folder = Path(data(four, "export")["kept"])
    assert (folder / "patches" / FOURTH).read_bytes() == text


def test_functions_do_what_their_examples_say() -> None:
    for module in (tools.tree.overlay, tools.tree.series, tools.stack.stack):
        result = doctest.testmod(module)
        assert result.attempted and not result.failed


# ---- any series


names = st.sampled_from(["README.md", "crlf.txt", "run.sh", "vllm/core.py", "a b.txt"])
lines = st.text(string.ascii_letters + " \t\r+-@#é", max_size=12)
contents = st.lists(lines, max_size=8).map("\n".join) | st.none()


@settings(
    max_examples=8,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(series=st.lists(st.dictionaries(names, contents, min_size=1), max_size=4))
def test_apply_export_apply_is_the_identity_for_any_series(
    make_checkout: Callable[..., Checkout], series: list[dict[str, str | None]]
) -> None:
    """Any contents: no final newline, tabs, CR, lines that look like diff lines."""
    checkout = make_checkout(f"any{next(counter)}")
    for edits in series:
        for name, text in edits.items():
            path = checkout.project.tree / name
            if text is not None:
                path.write_bytes(text.encode())
            elif path.exists():
                path.unlink()
        if checkout.tree.repository.changed_paths():
            checkout.tools("new", "core: same subject each time")
    whole = checkout.files()
    in_step(checkout)
    assert checkout.files() == whole
    for _ in checkout.tree.commits(checkout.tree.state)[1:]:
        checkout.tools("pop")
    assert checkout.tree.repository.tree_of("HEAD") == checkout.tree.repository.tree_of(
        checkout.tree.state.overlays
    )
    checkout.tools("push", "--all")
    assert checkout.files() == whole


counter = iter(range(1000))
