"""`apply`: what it promises about the tree, and each way in which it refuses."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from checkout import (
    CORE,
    FILES,
    FIRST_PATCH,
    HEADER,
    OVERLAY,
    Checkout,
    make_sdist,
    refused,
    tree_id,
)

from tools.base import process
from tools.base.errors import ToolError
from tools.base.outcome import Outcome

# ---- the tree


def test_tree_is_release_plus_overlays_plus_series(checkout: Checkout) -> None:
    expected = dict(FILES)
    expected["vllm/core.py"] = CORE.replace("+= 2", "+= 3").encode()
    expected["crlf.txt"] = b"one\r\nzwei\r\nthree\r\n"
    expected["vllm/tagma.py"] = OVERLAY
    assert checkout.files() == expected


def test_one_commit_each_for_import_overlays_and_patches(checkout: Checkout) -> None:
    log = checkout.tree.repository.git("log", "--format=%s|%an <%ae>|%ad").text
    assert [line.split("|")[0] for line in log.splitlines()] == [
        "crlf: a second line",
        "core: count by three",
        "Lay the overlays",
        "Import vllm 1.0",
    ]
    assert "A. Müller <a@example.com>" in log


def test_same_inputs_give_the_same_commit_ids(
    make_checkout: Callable[..., Checkout],
) -> None:
    ids = {make_checkout(name).tree.state.commit for name in ("one", "two")}
    assert len(ids) == 1


def test_second_run_rewrites_no_file(checkout: Checkout) -> None:
    def stamps() -> dict[Path, int]:
        paths = checkout.project.build.rglob("*")
        return {p: p.stat().st_mtime_ns for p in paths if p.name != ".lock"}

    before = stamps()
    assert checkout.apply().outcome is Outcome.UNCHANGED
    assert stamps() == before


def test_changed_patch_moves_only_its_files(checkout: Checkout) -> None:
    untouched = checkout.project.tree / "README.md"
    before = untouched.stat().st_mtime_ns
    path = checkout.project.patches / "0001-count.patch"
    path.write_text(FIRST_PATCH.replace("+= 3", "+= 4"))
    checkout.apply(relock=True)
    assert b"+= 4" in checkout.files()["vllm/core.py"]
    assert untouched.stat().st_mtime_ns == before


def test_lock_refuses_another_tree_and_shows_both_ids(checkout: Checkout) -> None:
    locked = (checkout.project.root / "upstream" / "tree.lock").read_text().strip()
    (checkout.project.root / "vllm_overlay" / "tagma.py").write_text("NAME = ''\n")
    error = refused(checkout, Outcome.WRONG_TREE)
    assert locked in error.details[0]
    assert any("--lock" in step for step in error.next_steps)


def test_caches_and_editor_files_are_no_overlays(checkout: Checkout) -> None:
    folder = checkout.project.root / "vllm_overlay"
    for name in ("__pycache__/a.pyc", ".ruff_cache/x", ".tagma.py.swp", "tagma.py~"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("litter")
    assert checkout.apply().outcome is Outcome.UNCHANGED


def test_removed_overlay_leaves_the_tree(checkout: Checkout) -> None:
    (checkout.project.root / "vllm_overlay" / "tagma.py").unlink()
    (checkout.project.root / "vllm_overlay" / "other.py").write_text("")
    checkout.apply(relock=True)
    assert "vllm/tagma.py" not in checkout.files()
    assert "vllm/other.py" in checkout.files()


# ---- hostile surroundings


def test_hostile_git_configuration_changes_nothing(
    make_checkout: Callable[..., Checkout],
    hostile_config: Path,
    calm: Callable[[], None],
) -> None:
    hostile = make_checkout("hostile")
    assert not (hostile_config / "ran").exists()
    calm()
    plain = make_checkout("plain")
    assert hostile.tree.state.commit == plain.tree.state.commit
    assert hostile.files() == plain.files()


def test_enclosing_repository_that_ignores_the_build_folder_is_untouched(
    make_checkout: Callable[..., Checkout], tmp_path: Path
) -> None:
    outer = tmp_path / "outer"
    outer.mkdir()
    (outer / ".gitignore").write_text("/checkout/build/\n")
    subprocess.run(["git", "init", "-q", outer], check=True)
    before = sorted((outer / ".git").rglob("*"))
    checkout = make_checkout("outer/checkout")
    assert checkout.files()["vllm/core.py"] != FILES["vllm/core.py"]
    assert sorted((outer / ".git").rglob("*")) == before


def test_enclosing_repository_that_does_not_ignore_the_build_folder_is_named(
    make_checkout: Callable[..., Checkout], tmp_path: Path
) -> None:
    checkout = make_checkout(lock=False)
    subprocess.run(["git", "init", "-q", checkout.project.root], check=True)
    error = refused(checkout, Outcome.BAD_PLACE)
    assert str(checkout.project.root) in error.message
    assert not checkout.project.build.exists()


def test_second_run_at_the_same_time_is_refused(checkout: Checkout) -> None:
    with checkout.project.lock():
        done = checkout.cli("apply", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["outcome"] == "locked"


# ---- the series


def test_missing_patch_is_named(checkout: Checkout) -> None:
    (checkout.project.patches / "0001-count.patch").unlink()
    assert "0001-count.patch" in refused(checkout, Outcome.BAD_SERIES).message


def test_unlisted_patch_is_named(checkout: Checkout) -> None:
    checkout.write_patch("0009-new.patch", FIRST_PATCH, listed=False)
    assert "0009-new.patch" in refused(checkout, Outcome.BAD_SERIES).message


def test_duplicate_patch_is_named(checkout: Checkout) -> None:
    with (checkout.project.patches / "series").open("a") as series:
        series.write("0001-count.patch\n")
    assert "twice" in refused(checkout, Outcome.BAD_SERIES).message


def test_series_may_hold_comments_blank_lines_and_no_final_newline(
    checkout: Checkout,
) -> None:
    (checkout.project.patches / "series").write_text(
        "# a comment\n\n0001-count.patch  # why\n\n0002-crlf.patch"
    )
    assert checkout.apply().outcome is Outcome.UNCHANGED


def test_patch_without_header_field_is_named(checkout: Checkout) -> None:
    path = checkout.project.patches / "0001-count.patch"
    path.write_text(FIRST_PATCH.replace("Forwarded: no\n", ""))
    assert "Forwarded" in refused(checkout, Outcome.BAD_PATCH).message


def test_failing_patch_shows_patch_file_hunk_expected_and_found(
    checkout: Checkout,
) -> None:
    path = checkout.project.patches / "0001-count.patch"
    path.write_text(FIRST_PATCH.replace("-    total += 2", "-    total += 9"))
    error = refused(checkout, Outcome.PATCH_FAILED)
    text = "\n".join((error.message, *error.details))
    for part in (
        "0001-count.patch",
        "vllm/core.py",
        "@@ -8,3",
        "expected:     total += 9",
        "found:        total += 2",
    ):
        assert part in text


def test_hunk_is_never_moved_to_a_similar_function(checkout: Checkout) -> None:
    """git apply would accept the offset and change the wrong function."""
    path = checkout.project.patches / "0001-count.patch"
    path.write_text(
        HEADER.format(subject="core: wrong place")
        + "diff --git a/vllm/core.py b/vllm/core.py\nindex 1..2 100644\n"
        "--- a/vllm/core.py\n+++ b/vllm/core.py\n"
        "@@ -7,1 +7,2 @@ def first():\n     total = 0\n+    total += 5\n"
    )
    error = refused(checkout, Outcome.PATCH_FAILED)
    assert any("line 2, 8" in line for line in error.details)


def test_patch_of_a_missing_file_is_refused(checkout: Checkout) -> None:
    path = checkout.project.patches / "0001-count.patch"
    path.write_text(FIRST_PATCH.replace("vllm/core.py", "vllm/gone.py"))
    assert "no such file" in refused(checkout, Outcome.PATCH_FAILED).message


def test_overlay_must_not_replace_an_upstream_file(checkout: Checkout) -> None:
    (checkout.project.root / "vllm_overlay" / "core.py").write_text("")
    assert "vllm/core.py" in refused(checkout, Outcome.BAD_OVERLAY).message


# ---- edits in the tree


@pytest.mark.parametrize("kind", ["changed", "added", "removed", "staged", "committed"])
def test_edited_tree_is_never_overwritten_silently(
    checkout: Checkout, kind: str
) -> None:
    edit(checkout, kind)
    error = refused(checkout, Outcome.TREE_EDITED)
    keep = "export" if kind == "committed" else "refresh"
    assert any(keep in step for step in error.next_steps)
    assert any("--drop" in step for step in error.next_steps)


@pytest.mark.parametrize("kind", ["changed", "added", "removed", "staged", "committed"])
def test_dropped_edits_are_kept_as_a_patch(checkout: Checkout, kind: str) -> None:
    pristine = checkout.files()
    edit(checkout, kind)
    edited = checkout.files()
    applied = checkout.apply(drop=True)
    assert checkout.files() == pristine
    assert applied.dropped
    repository = checkout.tree.repository
    repository.git("apply", applied.dropped)
    assert checkout.files() == edited


def test_kept_edits_say_what_they_are(checkout: Checkout) -> None:
    """By `git log`, months later: which command kept them, and which files."""
    edit(checkout, "added")
    edit(checkout, "changed")
    checkout.apply(drop=True)
    shown = checkout.tree.repository.git(
        "log", "--format=%B", "--glob=refs/tagma/dropped", "-1"
    )
    assert shown.text.splitlines() == [
        "apply --drop: keep vllm/core.py and 1 more",
        "",
        "vllm/core.py",
        "vllm/mine.py",
    ]


def edit(checkout: Checkout, kind: str) -> None:
    tree, repository = checkout.project.tree, checkout.tree.repository
    if kind == "added":
        (tree / "vllm" / "mine.py").write_text("mine = 1\n")
    elif kind == "removed":
        (tree / "README.md").unlink()
    else:
        (tree / "vllm" / "core.py").write_text(CORE.replace("+= 1", "+= 7"))
    if kind == "staged":
        repository.git("add", "-A")
    if kind == "committed":
        repository.git("commit", "--all", "--quiet", "-m", "mine")


# ---- killed at any moment


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_every_git_call_the_next_run_recovers(
    make_checkout: Callable[..., Checkout],
    tmp_path: Path,
    killing_git: Callable[..., dict[str, str]],
    when: str,
) -> None:
    reference = make_checkout("reference")
    expected = reference.files()
    killed = make_checkout("killed", lock=False)
    shutil.copy(
        reference.project.pin_file.with_name("tree.lock"),
        killed.project.pin_file.with_name("tree.lock"),
    )
    kills = 0
    for at in range(1, 100):
        shutil.rmtree(killed.project.build, ignore_errors=True)
        env = killing_git(tmp_path / "shim", at, when)
        done = killed.cli("apply", "--source", str(killed.sdist), env=env)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        kills += 1
        killed.apply()
        assert killed.files() == expected
        assert killed.tree.state == reference.tree.state
    assert kills >= 15


def test_killed_while_the_work_tree_moves_the_next_run_completes_it(
    checkout: Checkout,
) -> None:
    expected, state = checkout.files(), checkout.tree.state
    git_dir = checkout.tree.repository.git_dir
    text = checkout.tree.state_file.read_text().replace(
        '"moving": false', '"moving": true'
    )
    checkout.tree.state_file.write_text(text)
    (checkout.project.tree / "vllm" / "core.py").unlink()
    (checkout.project.tree / "README.md").write_text("half wri")
    (git_dir / "index.lock").touch()
    checkout.apply()
    assert checkout.files() == expected
    assert checkout.tree.state == state


def test_left_over_lock_file_of_a_killed_run_does_not_block(checkout: Checkout) -> None:
    (checkout.project.build / ".lock").touch()
    (checkout.project.build / "scratch-left").mkdir()
    assert checkout.apply().outcome is Outcome.UNCHANGED
    assert not (checkout.project.build / "scratch-left").exists()


# ---- the command line


def test_errors_are_one_line_and_the_mend(checkout: Checkout) -> None:
    (checkout.project.patches / "0001-count.patch").unlink()
    done = checkout.cli("apply")
    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr.startswith("error: series lists 0001-count.patch")
    assert "next: " in done.stderr
    assert "Traceback" not in done.stderr
    assert "Traceback" in checkout.cli("--debug", "apply").stderr


def test_usage_errors_exit_with_2(checkout: Checkout) -> None:
    done = checkout.cli("apply", "--source", "a", "--git", "b")
    assert done.returncode == 2


def test_json_has_one_schema(checkout: Checkout) -> None:
    good = json.loads(checkout.cli("apply", "--json").stdout)
    edit(checkout, "changed")
    bad = json.loads(checkout.cli("apply", "--json").stdout)
    assert good.keys() == bad.keys()
    assert (good["exit_code"], bad["exit_code"]) == (0, 1)


def test_unchanged_tree_needs_no_source(checkout: Checkout) -> None:
    """Neither hash nor import: the sdist may even be gone."""
    checkout.sdist.unlink()
    assert checkout.apply().outcome is Outcome.UNCHANGED


def test_child_of_a_killed_run_keeps_the_next_run_out(checkout: Checkout) -> None:
    """The next run must not remove the index.lock of a git that still works."""
    with checkout.project.lock():
        child = subprocess.Popen(["sleep", "30"], pass_fds=process.inherited_files())
    try:
        assert checkout.cli("apply").returncode == 1
    finally:
        child.kill()
        child.wait()
    assert checkout.cli("apply").returncode == 0


def test_edit_of_equal_size_in_the_same_second_is_kept(checkout: Checkout) -> None:
    """git finds it by the index's own time, which the copy must keep."""
    core = checkout.project.tree / "vllm" / "core.py"
    stat = core.stat()
    core.write_text(core.read_text().replace("+= 1", "+= 7"))
    os.utime(core, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    applied = checkout.apply(drop=True)
    assert applied.dropped and "+= 7" in applied.dropped.read_text()


def test_edit_after_a_killed_move_is_kept(checkout: Checkout) -> None:
    replace(checkout.tree.state, moving=True).write(checkout.tree.state_file)
    (checkout.project.tree / "README.md").write_text("edited since\n")
    checkout.apply()
    kept = list((checkout.project.build / "dropped").glob("*.patch"))
    assert len(kept) == 1 and "edited since" in kept[0].read_text()


def test_folder_that_is_not_ours_is_left_alone(
    make_checkout: Callable[..., Checkout],
) -> None:
    checkout = make_checkout(lock=False)
    checkout.project.tree.mkdir(parents=True)
    (checkout.project.tree / "mine.txt").write_text("precious\n")
    assert "mine.txt" in checkout.files()
    refused(checkout, Outcome.TREE_EDITED, relock=True)


def test_ignored_file_is_not_replaced_by_an_added_one(checkout: Checkout) -> None:
    mine = checkout.project.tree / "vllm" / "new.generated"
    mine.write_text("mine\n")
    (checkout.project.root / "vllm_overlay" / "new.generated").write_text("theirs\n")
    error = refused(checkout, Outcome.TREE_EDITED, relock=True)
    assert "new.generated" in error.message


def test_overlay_folder_must_not_replace_an_upstream_file(checkout: Checkout) -> None:
    folder = checkout.project.root / "vllm_overlay" / "core.py"
    folder.mkdir()
    (folder / "x.py").write_text("")
    assert "vllm/core.py" in refused(checkout, Outcome.BAD_OVERLAY).message


def test_patch_of_a_file_without_final_newline_applies(
    make_checkout: Callable[..., Checkout], tmp_path: Path
) -> None:
    checkout = make_checkout(lock=False)
    files = FILES | {"last.txt": b"one\ntwo"}
    make_sdist(checkout.sdist, files)
    checkout.write_pin(tree_id(tmp_path / "files", files))
    diff = (
        "diff --git a/last.txt b/last.txt\nindex 1..2 100644\n--- a/last.txt\n"
        "+++ b/last.txt\n@@ -1,2 +1,2 @@\n one\n-two\n\\ No newline at end of file\n"
        "+zwei\n\\ No newline at end of file\n"
    )
    checkout.write_patch("0003-last.patch", HEADER.format(subject="last") + diff)
    checkout.apply(relock=True)
    assert checkout.files()["last.txt"] == b"one\nzwei"


@pytest.mark.parametrize("cache", ["/dev/null/x", "/proc/x"])
def test_errors_of_the_system_are_no_tracebacks(
    make_checkout: Callable[..., Checkout], cache: str
) -> None:
    checkout = make_checkout(lock=False)
    done = checkout.cli("apply", "--json", env={"TAGMA_CACHE": cache})
    assert done.returncode == 1
    assert json.loads(done.stdout)["message"]
    assert "Traceback" not in done.stderr


def test_usage_errors_are_json_too(checkout: Checkout) -> None:
    done = checkout.cli("apply", "--commit", "x", "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["outcome"] == "usage"


def test_next_steps_name_the_same_checkout(checkout: Checkout) -> None:
    edit(checkout, "changed")
    done = checkout.cli("apply")
    assert f"--project {checkout.project.root} apply --drop" in done.stderr


def test_patch_that_adds_a_submodule_is_refused(checkout: Checkout) -> None:
    """No release can have one, and no work tree of a conflict would keep it."""
    commit = "1" * 40
    diff = (
        "diff --git a/sub b/sub\nnew file mode 160000\n"
        f"index {'0' * 40}..{commit}\n--- /dev/null\n+++ b/sub\n"
        f"@@ -0,0 +1 @@\n+Subproject commit {commit}\n"
    )
    checkout.write_patch("0003-sub.patch", HEADER.format(subject="sub: add it") + diff)
    with pytest.raises(ToolError, match="adds a submodule"):
        checkout.apply(relock=True)
