"""Nothing is taken for resolved that still differs from a resolution."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from checkout import CORE, Checkout
from rebases import (
    abort,
    landings,
    proceed,
    put_on,
    resolve,
    run,
    start,
    state,
    work,
)
from releases import CONFLICT, release

from tools.base.errors import ToolError
from tools.base.outcome import Outcome

LINES = "".join(f"line {number}\n" for number in range(20))
PICTURE = {"logo.png": "PNG\0base"}
PATCH = "0003-edit-all.patch"


def stop(
    checkout: Checkout,
    base: dict[str, str],
    patch: Callable[[Path], object],
    upstream: dict[str, str | None],
) -> Checkout:
    """Stop a rebase at a patch.

    Args:
        checkout: The checkout.
        base: Files of the old release besides those of every release.
        patch: What the patch does to the tree; it also changes README.md.
        upstream: What the new release changes.
    """
    release(checkout, dict(base), "1.5")
    put_on(checkout, "1.5")
    (checkout.project.tree / "README.md").write_text("# ours\n")
    patch(checkout.project.tree)
    checkout.tools("new", "edit: all")
    release(checkout, base | upstream)
    journal = start(checkout)
    assert journal.stopped and journal.stopped.name == PATCH, landings(journal)
    return checkout


def open_files(checkout: Checkout) -> list[str]:
    """Ask to go on; return the files that are named as open."""
    with pytest.raises(ToolError) as caught:
        proceed(checkout)
    assert caught.value.outcome is Outcome.CONFLICT
    assert any("--skip" in step for step in caught.value.next_steps)
    return [line.split(" ")[0] for line in caught.value.details]


def take(checkout: Checkout, side: str, name: str) -> None:
    done = checkout.cli("rebase", "--take", side, name)
    assert done.returncode == 0, done.stdout + done.stderr


def link(folder: Path) -> None:
    (folder / "notes.txt").unlink()
    (folder / "notes.txt").symlink_to("README.md")


def renamed(old: str, new: str) -> Callable[[Path], object]:
    return lambda folder: (folder / old).rename(folder / new)


def written(name: str, text: str, mode: int = 0o644) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        (folder / name).chmod(mode)

    return write


# What the old release has, what the patch does, what the new release does, the file
# that is open, and what of it each side has: None is no such file.
CASES = {
    "binary": (
        PICTURE,
        written("logo.png", "PNG\0ours"),
        {"logo.png": "PNG\0theirs"},
        {"logo.png": ("PNG\0ours", "PNG\0theirs")},
    ),
    "binary that both add": (
        {},
        written("logo.png", "PNG\0ours"),
        {"logo.png": "PNG\0theirs"},
        {"logo.png": ("PNG\0ours", "PNG\0theirs")},
    ),
    "deleted upstream": (
        {"notes.txt": LINES},
        written("notes.txt", LINES + "ours\n"),
        {"notes.txt": None},
        {"notes.txt": (LINES + "ours\n", None)},
    ),
    "deleted by the patch": (
        {"notes.txt": LINES},
        lambda folder: (folder / "notes.txt").unlink(),
        {"notes.txt": LINES + "theirs\n"},
        {"notes.txt": (None, LINES + "theirs\n")},
    ),
    "file of ours, folder of theirs": (
        {},
        written("notes", "ours\n"),
        {"notes/all.txt": "theirs\n"},
        {"notes": ("ours\n", None), "notes/all.txt": (None, "theirs\n")},
    ),
    "folder of ours, file of theirs": (
        {},
        written("notes/all.txt", "ours\n"),
        {"notes": "theirs\n"},
        {"notes": (None, "theirs\n"), "notes/all.txt": ("ours\n", None)},
    ),
    "mode": (
        {},
        written("notes.sh", "#!/bin/sh\n"),
        {"notes.sh": "#!/bin/sh\n"},  # a release has *.sh as programs
        {"notes.sh": ("#!/bin/sh\n", "#!/bin/sh\n")},
    ),
    "link of ours": (
        {"notes.txt": LINES},
        link,
        {"notes.txt": LINES + "theirs\n"},
        {"notes.txt": ("# ours\n", LINES + "theirs\n")},
    ),
    "renamed by both": (
        {"notes.txt": LINES},
        renamed("notes.txt", "ours.txt"),
        {"notes.txt": None, "theirs.txt": LINES},
        {"ours.txt": (LINES, None)},
    ),
    "renamed upstream, deleted by the patch": (
        {"notes.txt": LINES},
        lambda folder: (folder / "notes.txt").unlink(),
        {"notes.txt": None, "theirs.txt": LINES},
        {"theirs.txt": (None, LINES)},
    ),
    "added to a folder that upstream renamed": (
        {"doc/a.txt": LINES, "doc/b.txt": LINES + "b\n"},
        written("doc/new.txt", "ours\n"),
        {"doc/a.txt": None, "doc/b.txt": None,
         "docs/a.txt": LINES, "docs/b.txt": LINES + "b\n"},
        {"docs/new.txt": ("ours\n", None)},
    ),
}  # fmt: skip


def content(checkout: Checkout, name: str) -> str | None:
    path = checkout.project.tree / name
    return path.read_text() if path.is_file() else None


@pytest.mark.parametrize("side", ["patch", "upstream"])
@pytest.mark.parametrize("case", CASES)
def test_file_without_marks_is_open_until_a_side_is_taken(
    checkout: Checkout, case: str, side: str
) -> None:
    base, patch, upstream, wanted = CASES[case]
    stop(checkout, base, patch, upstream)
    name = next(iter(wanted))
    assert open_files(checkout) == [name]
    take(checkout, side, name)
    assert landings(proceed(checkout))[-1] == "resolved"
    for path, contents in wanted.items():
        assert content(checkout, path) == contents[side == "upstream"], path
    assert content(checkout, "README.md") == "# ours\n"
    assert not [path for path in checkout.files() if "~" in path]
    assert checkout.cli("export", "--check").returncode == 0
    if case == "mode":
        mode = os.stat(checkout.project.tree / name).st_mode & 0o777
        assert bool(mode & 0o100) == (side == "upstream")
    if case == "link of ours":
        assert (checkout.project.tree / name).is_symlink() == (side == "patch")


def test_picture_of_ones_own_is_a_resolution(checkout: Checkout) -> None:
    stop(
        checkout,
        PICTURE,
        written("logo.png", "PNG\0ours"),
        {"logo.png": "PNG\0theirs"},
    )
    (work(checkout) / "logo.png").write_text("PNG\0both")
    assert landings(proceed(checkout))[-1] == "resolved"
    assert content(checkout, "logo.png") == "PNG\0both"


def test_text_and_files_without_marks_are_named_together(checkout: Checkout) -> None:
    """Or the patch would add a file again that upstream deleted."""

    def both(folder: Path) -> None:
        written("notes.txt", LINES + "ours\n")(folder)
        core = folder / "vllm/core.py"
        core.write_text(core.read_text().replace("+= 1", "+= 10"))

    core = CORE.replace("+= 1", "+= 11")
    upstream = {"notes.txt": None, "vllm/core.py": core}
    stop(checkout, {"notes.txt": LINES}, both, upstream)
    assert open_files(checkout) == ["vllm/core.py", "notes.txt"]
    resolve(checkout, "total += 21")
    assert open_files(checkout) == ["notes.txt"]
    (work(checkout) / "notes.txt").unlink()
    assert landings(proceed(checkout))[-1] == "resolved"
    assert content(checkout, "notes.txt") is None
    assert "+= 21" in checkout.files()["vllm/core.py"].decode()


@pytest.mark.parametrize(("side", "value"), [("patch", "+= 3"), ("upstream", "+= 20")])
def test_side_of_marked_text_is_taken_at_the_marks_alone(
    checkout: Checkout, side: str, value: str
) -> None:
    release(checkout, {"vllm/core.py": f"import os\n{CONFLICT['vllm/core.py']}"})
    start(checkout)
    take(checkout, side, "vllm/core.py")
    text = (work(checkout) / "vllm/core.py").read_text()
    assert text.startswith("import os\n") and value in text and "<<<" not in text


def test_modes_that_differ_are_open_after_the_marks_are_gone(
    checkout: Checkout,
) -> None:
    script = "#!/bin/sh\necho ours\n"
    theirs = {"notes.sh": "#!/bin/sh\necho theirs\n"}
    stop(checkout, {}, written("notes.sh", script), theirs)
    assert open_files(checkout) == ["notes.sh"]
    path = work(checkout) / "notes.sh"
    path.write_text("#!/bin/sh\necho both\n")
    assert open_files(checkout) == ["notes.sh"]  # a program upstream, but not here
    take(checkout, "upstream", "notes.sh")
    assert landings(proceed(checkout))[-1] == "resolved"
    assert content(checkout, "notes.sh") == "#!/bin/sh\necho both\n"
    assert os.access(checkout.project.tree / "notes.sh", os.X_OK)


def test_new_file_is_not_dropped_with_a_hunk_that_upstream_has(
    checkout: Checkout,
) -> None:
    """All hunks of the patch stand upstream, but it does more than hunks show."""

    def patch(folder: Path) -> None:
        written("logo.png", "PNG\0ours")(folder)

    stop(checkout, PICTURE, patch, {"logo.png": "PNG\0x", "README.md": "# ours\n"})
    take(checkout, "patch", "logo.png")
    assert landings(proceed(checkout))[-1] == "resolved"
    assert content(checkout, "logo.png") == "PNG\0ours"


def test_file_that_both_delete_or_both_add_alike_is_no_conflict(
    checkout: Checkout,
) -> None:
    release(checkout, {"notes.txt": LINES}, "1.5")
    put_on(checkout, "1.5")
    (checkout.project.tree / "notes.txt").unlink()
    (checkout.project.tree / "same.txt").write_text("same\n")
    (checkout.project.tree / "README.md").write_text("# ours\n")
    checkout.tools("new", "edit: all")
    release(checkout, {"same.txt": "same\n"})
    assert landings(start(checkout))[-1] == "merged"
    assert content(checkout, "notes.txt") is None


def test_choice_is_refused_for_other_files_and_forgotten_with_the_work_tree(
    checkout: Checkout,
) -> None:
    stop(
        checkout,
        PICTURE,
        written("logo.png", "PNG\0ours"),
        {"logo.png": "PNG\0theirs"},
    )
    done = checkout.cli("rebase", "--take", "patch", "README.md", "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["outcome"] == "usage"
    assert checkout.cli("rebase", "--take", "patch").returncode == 2
    take(checkout, "patch", "logo.png")
    status = json.loads(checkout.cli("rebase", "--status", "--json").stdout)
    assert status["data"]["stopped"]["taken"] == {"logo.png": "patch"}
    before = state(checkout)
    abort(checkout)
    assert state(checkout) == before
    with pytest.raises(ToolError):
        run(checkout, lambda rebase: rebase.take("patch", "logo.png"))
