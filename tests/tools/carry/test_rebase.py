"""`rebase`: what becomes of each patch, and that nothing is lost on the way."""

import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from checkout import CORE, FILES, HEADER, REPOSITORY, Checkout, make_sdist
from rebases import (
    abort,
    copy,
    killed,
    landings,
    proceed,
    put_on,
    resolve,
    run,
    spread,
    start,
    state,
    work,
)
from releases import CONFLICT, release

from tools.base import atomic
from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.carry.finish import Finished
from tools.carry.landing import Landing
from tools.carry.rebase import Rebase
from tools.carry.releases import Releases
from tools.carry.resolutions import Clash, Resolution, learn, solve, split
from tools.source.pin import Pin
from tools.tree.patch import Patch
from tools.tree.transaction import Transaction

OTHER = "def third():\n    value = 0\n    value += 3\n    return value\n"


def patch(path: str, hunk: str, subject: str) -> str:
    return (
        HEADER.format(subject=subject) + f"diff --git a/{path} b/{path}\n"
        f"index 1111111..2222222 100644\n--- a/{path}\n+++ b/{path}\n{hunk}"
    )


# ---- what becomes of a patch


def test_unchanged_lines_land_cleanly_and_the_pin_moves(checkout: Checkout) -> None:
    release(checkout, {"README.md": "# another\n"})
    journal = start(checkout)
    assert landings(journal) == ["clean", "clean"]
    pin = checkout.project.pin_file.read_text()
    assert 'version = "2.0"' in pin
    assert checkout.files()["README.md"] == b"# another\n"
    assert b"+= 3" in checkout.files()["vllm/core.py"]
    # The lock is the new tree's, and the patches are those that `export` writes.
    assert checkout.apply().outcome is Outcome.UNCHANGED
    assert checkout.cli("export", "--check").returncode == 0


def test_lines_that_stand_elsewhere_are_moved(checkout: Checkout) -> None:
    release(checkout, {"vllm/core.py": "import os\n\n\n" + CORE})
    journal = start(checkout)
    assert landings(journal) == ["moved", "clean"]
    text = (checkout.project.patches / "0001-count.patch").read_text()
    assert "@@ -11," in text


def add_patch(checkout: Checkout, name: str, subject: str, hunk: str) -> None:
    """Add a patch of vllm/core.py to the series."""
    checkout.write_patch(name, patch("vllm/core.py", hunk, subject))
    checkout.apply(relock=True)


ADDS = (
    "@@ -1,4 +1,6 @@\n def first():\n     total = 0\n     total += 1\n"
    "+    total += 100\n+    total += 200\n     return total\n"
)


def test_changed_context_is_merged(checkout: Checkout) -> None:
    """Story 6: the blobs of the old release are there to merge with."""
    add_patch(checkout, "0003-add.patch", "core: add more", ADDS)
    release(checkout, {"vllm/core.py": CORE.replace("first():", "first(a=1):")})
    journal = start(checkout)
    assert landings(journal) == ["clean", "clean", "merged"]
    assert b"+= 1\n    total += 100\n" in checkout.files()["vllm/core.py"]


def test_change_that_upstream_has_is_dropped_with_evidence(checkout: Checkout) -> None:
    """Story 3: it neither is reversed nor vanishes without a word."""
    release(
        checkout, {"vllm/core.py": "import os\n\n\n" + CORE.replace("+= 2", "+= 3")}
    )
    old = (checkout.project.patches / "0001-count.patch").read_bytes()
    with checkout.project.lock():
        finished = Rebase(checkout.project).start("2.0")
    assert isinstance(finished, Finished)
    entry = finished.journal.done[0]
    assert entry.landing is Landing.UPSTREAM
    assert any("vllm/core.py:11-13" in line for line in entry.details)
    assert any("total += 3" in line for line in entry.details)
    assert not (checkout.project.patches / "0001-count.patch").exists()
    assert (finished.kept / "patches" / "0001-count.patch").read_bytes() == old
    assert b"+= 3" in checkout.files()["vllm/core.py"]
    report = json.loads(finished.report.with_suffix(".json").read_text())
    assert report["patches"][0]["landing"] == "upstream"


def test_upstream_has_it_and_went_on_from_there(checkout: Checkout) -> None:
    """The merge alone sees a conflict: both add lines at one place."""
    add_patch(checkout, "0003-add.patch", "core: add more", ADDS)
    more = "total += 1\n    total += 100\n    total += 200\n    total += 300\n"
    release(checkout, {"vllm/core.py": CORE.replace("total += 1\n", more)})
    journal = start(checkout)
    assert landings(journal) == ["moved", "clean", "upstream"]
    assert any("vllm/core.py:1-5" in line for line in journal.done[2].details)


def test_renamed_file_is_followed_and_named(checkout: Checkout) -> None:
    release(checkout, {"vllm/core.py": None, "vllm/engine.py": CORE})
    journal = start(checkout)
    entry = journal.done[0]
    assert entry.landing is Landing.RENAMED
    assert entry.details == ("vllm/core.py is now vllm/engine.py",)
    assert b"+= 3" in checkout.files()["vllm/engine.py"]
    assert (
        "b/vllm/engine.py"
        in (checkout.project.patches / "0001-count.patch").read_text()
    )


def test_deleted_file_stops_and_tells_where_its_lines_went(checkout: Checkout) -> None:
    longer = CORE.replace("total", "total_of_all_requests")
    moved = OTHER * 9 + longer.partition("\n\n\n")[2]
    base = {"vllm/core.py": longer}
    # 1.0 with longer names, so that lines can be searched for.
    release(checkout, base, "1.5")
    name = checkout.project.patches / "0001-count.patch"
    name.write_text(name.read_text().replace("total", "total_of_all_requests"))
    put_on(checkout, "1.5")
    release(checkout, {"vllm/core.py": None, "vllm/big.py": moved})
    journal = start(checkout)
    assert journal.stopped
    assert journal.stopped.landing is Landing.DELETED
    assert any("vllm/big.py" in line for line in journal.stopped.details)
    with pytest.raises(ToolError, match="upstream deleted it"):
        proceed(checkout)
    # The change is made where the lines went, and the old file goes.
    (work(checkout) / "vllm/core.py").unlink()
    big = work(checkout) / "vllm/big.py"
    big.write_text(big.read_text().replace("+= 2", "+= 3"))
    assert landings(proceed(checkout)) == ["resolved", "clean"]
    assert b"+= 3" in checkout.files()["vllm/big.py"]


BODY = (
    "    one = 1\n    two = 2\n    value = 0\n    value += 2\n    three = 3\n"
    "    return value + one + two + three\n"
)
MEANT = "def meant():\n    first = 1\n    second = 2\n    third = 3\n    fourth = 4\n"
MEANT += f"    fifth = 5\n    sixth = 6\n    seventh = 7\n{BODY}"
WIDE = (
    "@@ -21,6 +21,6 @@\n     one = 1\n     two = 2\n     value = 0\n"
    "-    value += 2\n+    value += 5\n     three = 3\n"
    "     return value + one + two + three\n"
)


def test_text_that_would_land_in_a_similar_function_is_placed_by_the_merge(
    checkout: Checkout,
) -> None:
    """Story 1: git's text apply takes the twin, and exits 0."""
    release(checkout, {"vllm/core.py": CORE + "\n\n" + MEANT}, "1.5")
    put_on(checkout, "1.5")
    add_patch(checkout, "0003-five.patch", "core: add five", WIDE)
    twin = f"def twin():\n{BODY}"
    changed = MEANT.replace("one = 1\n", "one = 11\n")
    release(checkout, {"vllm/core.py": f"{CORE}\n\n{twin}\n\n{changed}"})
    journal = start(checkout)
    entry = journal.done[2]
    assert entry.landing is Landing.MERGED
    assert len(entry.details) == 1
    assert "(twin) without an error" in entry.details[0]
    assert entry.details[0].endswith("(meant)")
    text = checkout.files()["vllm/core.py"].decode()
    assert twin in text
    assert changed.replace("+= 2", "+= 5") in text


def test_patch_that_both_would_put_into_another_function_stops(
    checkout: Checkout,
) -> None:
    # The function is gone and a twin stands in its place: text and merge agree.
    release(checkout, {"vllm/core.py": CORE.replace("def second", "def other")})
    journal = start(checkout)
    assert journal.stopped
    assert journal.stopped.landing is Landing.MISPLACED
    assert "made for second and would now change other" in journal.stopped.details[0]
    # It is not accepted without a word.
    with pytest.raises(ToolError, match=r"vllm/core\.py is open: place"):
        proceed(checkout)
    run(checkout, lambda rebase: rebase.take("patch", "vllm/core.py"))
    assert landings(proceed(checkout)) == ["resolved", "clean"]


# ---- a conflict


def test_conflict_stops_with_three_versions_and_what_upstream_did(
    checkout: Checkout,
) -> None:
    before = state(checkout)
    release(checkout, CONFLICT)
    with_release = state(checkout)
    done = checkout.cli("rebase", "2.0", "--json")
    assert done.returncode == 1
    data = json.loads(done.stdout)
    assert data["outcome"] == "conflict"
    assert data["data"]["stopped"]["files"] == ["vllm/core.py"]
    assert any("+    total += 20" in line for line in data["details"])
    assert any("in second" in line for line in data["details"])
    versions = checkout.project.build / "rebase" / "versions" / "vllm"
    texts = [(versions / f"core.py.{name}").read_text() for name in
             ("base", "upstream", "patch")]  # fmt: skip
    assert [text.split("total += ")[2].split("\n")[0] for text in texts] == [
        "2", "20", "3",
    ]  # fmt: skip
    marked = (work(checkout) / "vllm/core.py").read_text()
    assert "<<<<<<< upstream\n" in marked and ">>>>>>> patch\n" in marked
    # Nothing that belongs to the user has changed meanwhile.
    assert state(checkout) == with_release
    assert {k: v for k, v in with_release.items() if "releases" not in k} == before


def test_users_git_finds_the_work_tree_itself(checkout: Checkout) -> None:
    """Story 2: `git apply` in it cannot take another repository for its own."""
    release(checkout, CONFLICT)
    start(checkout)
    folder = work(checkout)
    found = subprocess.run(
        ["git", "-C", folder / "vllm", "rev-parse", "--show-toplevel"],
        capture_output=True,
        text=True,
    )
    assert Path(found.stdout.strip()).samefile(folder)
    shown = subprocess.run(
        ["git", "-C", folder, "diff", "--name-only"], capture_output=True, text=True
    )
    assert shown.stdout == "vllm/core.py\n"


def test_continue_refuses_conflict_marks(checkout: Checkout) -> None:
    release(checkout, CONFLICT)
    start(checkout)
    with pytest.raises(ToolError, match="still has conflict marks"):
        proceed(checkout)


def test_continue_refuses_a_resolution_that_leaves_nothing(checkout: Checkout) -> None:
    release(checkout, CONFLICT)
    start(checkout)
    resolve(checkout, "total += 20")
    with pytest.raises(ToolError, match="nothing is left"):
        proceed(checkout)


def test_continue_refuses_changed_overlays(checkout: Checkout) -> None:
    release(checkout, CONFLICT)
    start(checkout)
    resolve(checkout)
    (work(checkout) / "vllm/tagma.py").write_text("mine\n")
    with pytest.raises(ToolError) as caught:
        proceed(checkout)
    assert caught.value.outcome is Outcome.BAD_OVERLAY


def test_resolution_is_stored_and_used_again_visibly(checkout: Checkout) -> None:
    release(checkout, CONFLICT)
    before = {p.name: p.read_bytes() for p in checkout.project.patches.glob("*")
              if p.is_file()}  # fmt: skip
    start(checkout)
    resolve(checkout)
    journal = proceed(checkout)
    assert landings(journal) == ["resolved", "clean"]
    assert b"+= 23" in checkout.files()["vllm/core.py"]
    (stored,) = (checkout.project.patches / "resolutions").iterdir()
    assert b"0001-count.patch" in stored.read_bytes()
    # Back to the first release, by the copies that the rebase kept.
    kept = Transaction.last(checkout.project).kept
    for path in kept.rglob("*"):
        if path.is_file():
            shutil.copy(path, checkout.project.root / path.relative_to(kept))
    checkout.apply()
    assert all((checkout.project.patches / n).read_bytes() == b
               for n, b in before.items())  # fmt: skip
    done = checkout.cli("rebase", "2.0")
    assert done.returncode == 0, done.stderr
    assert f"vllm/core.py: stored resolution {stored.name}" in done.stdout
    assert b"+= 23" in checkout.files()["vllm/core.py"]


def test_stored_resolution_can_be_declined(checkout: Checkout) -> None:
    release(checkout, CONFLICT)
    clash = Clash(b"    total += 20\n", b"    total += 3\n")
    stored = Resolution(clash, b"    total += 23\n", {"Patch": "0001-count.patch"})
    folder = checkout.project.patches / "resolutions"
    folder.mkdir()
    (folder / stored.filename).write_bytes(stored.to_bytes())
    assert checkout.cli("rebase", "2.0", "--no-resolutions").returncode == 1
    assert checkout.cli("rebase", "--abort").returncode == 0
    assert checkout.cli("rebase", "2.0").returncode == 0


def test_changed_resolution_file_is_refused(checkout: Checkout) -> None:
    release(checkout, CONFLICT)
    folder = checkout.project.patches / "resolutions"
    folder.mkdir()
    stored = Resolution(Clash(b"a\n", b"b\n"), b"c\n", {})
    changed = stored.to_bytes().replace(b"a\n", b"z\n")
    (folder / stored.filename).write_bytes(changed)
    with pytest.raises(ToolError) as caught:
        start(checkout)
    assert caught.value.outcome is Outcome.BAD_SERIES


def test_skip_drops_a_patch_and_keeps_copies_of_it_and_of_edits(
    checkout: Checkout,
) -> None:
    release(checkout, CONFLICT)
    patch_file = checkout.project.patches / "0001-count.patch"
    old = patch_file.read_bytes()
    start(checkout)
    resolve(checkout, "total += 777")
    journal = run(checkout, Rebase.skip)
    assert landings(journal) == ["skipped", "clean"]
    assert not patch_file.exists()
    dropped = checkout.project.build / "dropped"
    (kept,) = dropped.glob("*/patches/0001-count.patch")
    assert kept.read_bytes() == old
    assert any("777" in path.read_text() for path in dropped.glob("*.patch"))


def test_abort_keeps_a_copy_of_the_users_edits(checkout: Checkout) -> None:
    release(checkout, CONFLICT)
    before = state(checkout)
    start(checkout)
    resolve(checkout, "total += 777")
    (kept,) = abort(checkout)
    assert "777" in kept.read_text()
    assert state(checkout) == before
    assert not (checkout.project.build / "rebase").exists()


def test_make_clean_waits_for_the_end_of_a_rebase(checkout: Checkout) -> None:
    root = checkout.project.root
    command = ["make", "-C", root, "-f", REPOSITORY / "Makefile", "clean"]
    release(checkout, CONFLICT)
    start(checkout)
    resolve(checkout, "total += 777")
    refused = subprocess.run(command, capture_output=True, text=True)
    assert refused.returncode != 0
    assert "--abort" in refused.stderr.splitlines()[0]
    assert "777" in (work(checkout) / "vllm/core.py").read_text()
    (kept,) = abort(checkout)
    subprocess.run(command, check=True)
    assert list(checkout.project.build.iterdir()) == [kept.parent]


def test_abort_keeps_a_copy_of_resolutions_made_before(checkout: Checkout) -> None:
    release(checkout, CONFLICT | {"crlf.txt": "one\r\nzwo\r\nthree\r\n"})
    start(checkout)
    resolve(checkout)
    assert proceed(checkout).stopped
    (kept,) = abort(checkout)
    (resolution,) = kept.iterdir()
    assert b"+= 23" in resolution.read_bytes()


def test_second_conflict_comes_after_the_first(checkout: Checkout) -> None:
    release(checkout, CONFLICT | {"crlf.txt": "one\r\nzwo\r\nthree\r\n"})
    journal = start(checkout)
    resolve(checkout)
    journal = proceed(checkout)
    assert journal.stopped and journal.stopped.name == "0002-crlf.patch"
    crlf = work(checkout) / "crlf.txt"
    crlf.write_bytes(b"one\r\nzweizwo\r\nthree\r\n")
    assert landings(proceed(checkout)) == ["resolved", "resolved"]
    assert checkout.files()["crlf.txt"] == b"one\r\nzweizwo\r\nthree\r\n"
    assert len(list((checkout.project.patches / "resolutions").iterdir())) == 2


# ---- refusals


def test_rebase_refuses_to_begin(checkout: Checkout) -> None:
    release(checkout, CONFLICT)
    for version, outcome in (("1.0", Outcome.USAGE), ("x", Outcome.USAGE),
                             ("9.9", Outcome.OFFLINE)):  # fmt: skip
        with pytest.raises(ToolError) as caught:
            start(checkout, version)
        assert caught.value.outcome is outcome
    (checkout.project.tree / "README.md").write_text("mine\n")
    with pytest.raises(ToolError) as caught:
        start(checkout)
    assert caught.value.outcome is Outcome.TREE_EDITED
    assert (checkout.project.tree / "README.md").read_text() == "mine\n"
    assert checkout.cli("rebase").returncode == 2
    assert checkout.cli("rebase", "2.0", "--abort").returncode == 2
    for action in ("--continue", "--skip", "--abort"):
        done = checkout.cli("rebase", action, "--json")
        assert json.loads(done.stdout)["outcome"] == "not-in-progress"


def test_second_rebase_is_refused_while_one_is_under_way(checkout: Checkout) -> None:
    release(checkout, CONFLICT)
    start(checkout)
    with pytest.raises(ToolError) as caught:
        start(checkout)
    assert caught.value.outcome is Outcome.IN_PROGRESS
    done = checkout.cli("rebase", "--status", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["data"]["phase"] == "stopped"


def test_release_that_changed_after_it_was_recorded_is_refused(
    checkout: Checkout,
) -> None:
    """Story 9."""
    release(checkout, CONFLICT)
    before = state(checkout)
    (kept,) = checkout.project.cache.rglob("vllm-2.0.tar.gz")
    make_sdist(kept, FILES | {"README.md": b"replaced\n"})
    links = checkout.project.root.parent / "links"
    links.mkdir()
    shutil.copy(kept, links)
    done = checkout.cli("rebase", "2.0", "--json", env={"PIP_FIND_LINKS": str(links)})
    assert json.loads(done.stdout)["outcome"] == "wrong-hash"
    assert state(checkout) == before


def test_new_release_is_taken_with_the_hash_that_the_index_states(
    checkout: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = "__commit_id__ = commit_id = 'g0123456789'\n"
    files = FILES | {"vllm/_version.py": version.encode()}
    folder = tmp_path / "simple" / "vllm"
    folder.mkdir(parents=True)
    sha256 = make_sdist(folder / "vllm-2.0.tar.gz", files)
    page = f'<a href="vllm-2.0.tar.gz#sha256={sha256}">vllm-2.0.tar.gz</a>'
    (folder / "index.html").write_text(
        f"<!DOCTYPE html><html><body>{page}</body></html>"
    )
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/simple"
    monkeypatch.setenv("PIP_INDEX_URL", url)
    try:
        start(checkout)
    finally:
        server.shutdown()
        server.server_close()
    pin = Pin.read(checkout.project.pin_file)
    assert (pin.version, pin.sdist.sha256) == ("2.0", sha256)
    assert pin.commit == "0123456789"
    # From now on another file of this name is refused, whatever the index says.
    assert Releases.read(checkout.project.releases_file).pins["2.0"].sdist == pin.sdist


def test_release_with_an_overlays_file_is_refused(checkout: Checkout) -> None:
    release(checkout, {"vllm/tagma.py": "upstream's\n"})
    with pytest.raises(ToolError) as caught:
        start(checkout)
    assert caught.value.outcome is Outcome.BAD_OVERLAY
    assert not (checkout.project.build / "rebase").exists()


def test_patches_changed_meanwhile_are_not_overwritten(checkout: Checkout) -> None:
    release(checkout, CONFLICT)
    start(checkout)
    resolve(checkout)
    path = checkout.project.patches / "0002-crlf.patch"
    mine = path.read_bytes().replace(b"+zwei", b"+deux")
    path.write_bytes(mine)
    with pytest.raises(ToolError) as caught:
        proceed(checkout)
    assert caught.value.outcome is Outcome.OUT_OF_SYNC
    assert path.read_bytes() == mine


def test_header_fields_and_author_survive(checkout: Checkout) -> None:
    """Story 8."""
    path = checkout.project.patches / "0001-count.patch"
    path.write_text(path.read_text().replace("Origin: vendor\n",
                                             "Origin: vendor\nBug: 12\n"))  # fmt: skip
    checkout.apply(relock=True)
    before = Patch.parse(path.name, path.read_bytes())
    release(checkout, {"vllm/core.py": "import os\n\n\n" + CORE})
    start(checkout)
    after = Patch.parse(path.name, path.read_bytes())
    assert after.fields == before.fields
    assert (after.fields["From"], after.fields["Bug"]) == (
        "A. Müller <a@example.com>", "12",
    )  # fmt: skip
    assert after.description == before.description


def test_hostile_git_configuration_changes_nothing(
    make_checkout: Callable[..., Checkout],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Story 7: of the rebase, with a conflict that the user resolves."""

    def result(name: str) -> dict[str, bytes]:
        checkout = make_checkout(name)
        release(checkout, CONFLICT | {"README.md": "moved\n" * 50})
        start(checkout)
        resolve(checkout)
        proceed(checkout)
        # Each sdist has its own hash, since it holds the time of its making.
        hashed = ("upstream/pin", "upstream/rel", "upstream/reports/")
        return {
            name: content
            for name, content in state(checkout).items()
            if not name.startswith(hashed)
        }

    expected = result("plain")
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(
        "[core]\nautocrlf = true\neol = crlf\n[commit]\ngpgSign = true\n"
        "[diff]\nnoprefix = true\nrenames = false\nalgorithm = patience\ncontext = 9\n"
        "[merge]\nrenames = false\nconflictStyle = merge\nff = only\n"
        "[rerere]\nenabled = true\nautoUpdate = true\n[am]\nthreeWay = false\n"
        "[user]\nname = Mallory\nemail = m@x\n[apply]\nwhitespace = fix\n"
        "[protocol]\nversion = 0\nallow = never\n"
    )
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "merge.conflictStyle")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "merge")
    assert result("plain2") == expected


# ---- under way


def test_rebase_under_way_shows_in_status_and_other_commands(
    checkout: Checkout,
) -> None:
    release(checkout, CONFLICT)
    assert json.loads(checkout.cli("status", "--json").stdout)["data"]["under_way"] == (
        ""
    )
    start(checkout)
    done = json.loads(checkout.cli("status", "--json").stdout)
    assert done["data"]["under_way"] == "a rebase to 2.0"
    assert "a rebase to 2.0 is under way" in done["message"]
    assert "rebase --status" in done["next_steps"][0]
    for command in (["series"], ["show", "1"], ["lint"], ["apply"]):
        told = checkout.cli(*command)
        assert told.returncode == 0, told.stderr
        assert "a rebase to 2.0 is under way" in told.stderr
    abort(checkout)
    assert "under way" not in checkout.cli("series").stderr


@pytest.mark.parametrize(
    "command",
    [
        *("drop 1", "rename 1 x", "fold 2 --into 1", "refresh", "export", "undo"),
        *("new x", "pop", "push", "goto 1", "edit 1", "split 1 x --subject y"),
        "rebase 2.0",
    ],
)
def test_series_and_tree_stay_while_a_rebase_is_under_way(
    checkout: Checkout, command: str
) -> None:
    release(checkout, CONFLICT)
    start(checkout)
    before = state(checkout)
    done = checkout.cli(*command.split(), "--json")
    data = json.loads(done.stdout)
    assert data["outcome"] == "in-progress"
    assert any("rebase --continue" in step for step in data["next_steps"])
    assert state(checkout) == before


def test_apply_of_changed_inputs_waits_for_the_rebase(checkout: Checkout) -> None:
    release(checkout, CONFLICT)
    start(checkout)
    (checkout.project.root / "vllm_overlay" / "tagma.py").write_text("NAME = 'x'\n")
    before = state(checkout)
    done = checkout.cli("apply", "--lock", "--json")
    assert json.loads(done.stdout)["outcome"] == "in-progress"
    assert state(checkout) == before


# ---- killed


def test_killed_rebase_can_be_finished_at_any_point_and_undone_up_to_its_switch(
    checkout: Checkout,
) -> None:
    """Story 5: `--continue` gives the bytes of a run that was not killed."""
    release(
        checkout, {"vllm/core.py": "import os\n\n\n" + CORE.replace("+= 1", "+= 7")}
    )
    before = state(checkout)
    whole = copy(checkout, "whole")
    ran, total = killed(lambda: start(whole), 10**9)
    assert not ran and total > 60
    after = state(whole)
    seen = set()
    for point in spread(total):
        one = copy(checkout, f"finish-{point}")
        assert killed(lambda one=one: start(one), point)[0]
        other = copy(one, f"undo-{point}")
        journal = Rebase(one.project).journal
        switching = Transaction.pending(one.project) is not None
        seen.add((journal is not None, switching))
        if journal:
            proceed(one)
        elif 'version = "1.0"' in one.project.pin_file.read_text():
            assert state(one) == before  # nothing had begun
            start(one)
        else:
            one.apply()
        if journal and not switching:
            abort(other)
            assert state(other) == before, f"undone after point {point}"
        assert state(one) == after, f"finished after point {point}"
        assert not (one.project.build / "rebase").exists()
        for checked in (one, other):
            shutil.rmtree(checked.project.root)
    assert seen >= {(True, False), (True, True)}


def test_killed_continue_keeps_the_users_resolution(checkout: Checkout) -> None:
    release(checkout, CONFLICT)
    before = state(checkout)
    start(checkout)
    resolve(checkout)
    whole = copy(checkout, "whole")
    ran, total = killed(lambda: proceed(whole), 10**9)
    assert not ran
    after = state(whole)
    for point in spread(total, 12):
        one = copy(checkout, f"finish-{point}")
        assert killed(lambda one=one: proceed(one), point)[0]
        other = copy(one, f"undo-{point}")
        switching = Transaction.pending(one.project) is not None
        if Rebase(one.project).journal:
            proceed(one)
            if not switching:
                abort(other)
                assert state(other) == before, f"undone after point {point}"
        else:
            one.apply()
        assert state(one) == after, f"finished after point {point}"
        for checked in (one, other):
            shutil.rmtree(checked.project.root)


def half_switched(checkout: Checkout) -> Checkout:
    """Kill a rebase when some files are new and some are old."""
    release(checkout, {"vllm/core.py": "import os\n\n\n" + CORE})
    write = atomic.write

    def die_at_the_pin(path: Path, data: bytes, mode: int | None = None) -> None:
        if path == checkout.project.pin_file:
            os.kill(os.getpid(), signal.SIGKILL)
        write(path, data, mode)

    def step() -> None:
        atomic.write = die_at_the_pin
        start(checkout)

    assert killed(step, 10**9)[0]
    assert Rebase(checkout.project).journal
    pin, patches = checkout.project.pin_file, checkout.project.patches
    assert 'version = "1.0"' in pin.read_text()
    assert "@@ -11," in (patches / "0001-count.patch").read_text()
    return checkout


@pytest.mark.parametrize(
    "command",
    ["apply", "export", "series", "pop", "refresh", "rebase --continue"],
)
def test_next_command_completes_half_switched_files(
    checkout: Checkout, command: str
) -> None:
    """Story 4: an export in the middle would delete patches."""
    whole = copy(checkout, "whole")
    one = half_switched(checkout)
    shutil.copy(one.project.releases_file, whole.project.releases_file)
    start(whole)
    done = one.cli(*command.split(), "--json")
    assert done.returncode == 0, done.stdout
    assert not (one.project.build / "rebase").exists()
    if command == "pop":
        assert one.cli("push", "--all").returncode == 0
    assert state(one) == state(whole)


def test_status_says_that_files_are_half_replaced(checkout: Checkout) -> None:
    """And not that a patch should be added to series, or removed."""
    one = half_switched(checkout)
    done = json.loads(one.cli("status", "--json").stdout)
    assert done["data"]["tree"] == "interrupted"
    assert "rebase 2.0 was interrupted" in done["message"]
    assert [step.split()[-1] for step in done["next_steps"]] == ["apply"]
    told = json.loads(one.cli("rebase", "--status", "--json").stdout)
    assert told["data"]["phase"] == "switch"
    assert "--abort" not in "".join(told["next_steps"])
    assert one.cli("show", "1").returncode == 0
    assert Rebase(one.project).journal is None  # that completed it


def test_abort_after_a_kill_in_the_switch_says_what_is_done(
    checkout: Checkout,
) -> None:
    one = half_switched(checkout)
    done = json.loads(one.cli("rebase", "--abort", "--json").stdout)
    assert done["outcome"] == "not-in-progress"
    assert "is completed now" in done["message"]
    assert any("undo" in step for step in done["next_steps"])
    assert 'version = "2.0"' in one.project.pin_file.read_text()


def test_killed_abort_can_be_repeated(checkout: Checkout) -> None:
    release(checkout, CONFLICT)
    before = state(checkout)
    start(checkout)
    resolve(checkout, "total += 777")
    whole = copy(checkout, "undone")
    ran, total = killed(lambda: abort(whole), 10**9)
    assert not ran and state(whole) == before
    for point in spread(total, 12):
        again = copy(checkout, f"again-{point}")
        assert killed(lambda again=again: abort(again), point)[0]
        if Rebase(again.project).journal:
            abort(again)
        assert state(again) == before, f"undone after point {point}"
        kept = (again.project.build / "dropped").glob("*.patch")
        assert any("777" in path.read_text() for path in kept)
        shutil.rmtree(again.project.root)


# ---- resolutions


def test_resolutions_are_read_back_byte_for_byte() -> None:
    clash = Clash(b"a\r\n", b"")
    about = {"Patch": "0001-ä.patch", "File": "x"}
    resolution = Resolution(clash, b"no newline", about)
    again = Resolution.parse(resolution.filename, resolution.to_bytes())
    assert again == resolution


def test_learned_resolutions_solve_the_same_conflict() -> None:
    marked = (
        b"top\n<<<<<<< upstream\na\n||||||| base\no\n=======\nb\n>>>>>>> patch\n"
        b"mid\n<<<<<<< upstream\nc\n=======\n>>>>>>> patch\nend\n"
    )
    solved = b"top\na and b\nmid\nend\n"
    learned = learn(marked, solved, {})
    assert [resolution.text for resolution in learned] == [b"a and b\n", b""]
    stored = {resolution.clash.id: resolution for resolution in learned}
    assert solve(marked, stored) == solved
    # Elsewhere in another file, the same two texts meet again.
    assert solve(b"new\n" + marked, stored) == b"new\n" + solved
    assert solve(marked.replace(b"\na\n", b"\nz\n"), stored) is None
    assert len(split(marked)[1]) == 2


def test_text_that_looks_like_a_mark_is_not_stored() -> None:
    """A heading of reStructuredText, say; git itself takes it for a mark too."""
    about = {"Patch": "0001-a.patch"}
    heading = Resolution(Clash(b"Title\n=======\n", b"b\n"), b"c\n", about)
    assert not heading.is_readable
    marked = b"<<<<<<< upstream\na\n=======\nTitle\n=======\n>>>>>>> patch\nend\n"
    (made,) = learn(marked, b"c\nend\n", about)  # on the other side it does no harm
    assert solve(marked, {made.clash.id: made}) == b"c\nend\n"


def test_nothing_is_learned_when_the_text_around_changed_too() -> None:
    marked = b"top\n<<<<<<< upstream\na\n=======\nb\n>>>>>>> patch\nend\n"
    assert learn(marked, b"TOP\nb\nend\n", {}) == []
