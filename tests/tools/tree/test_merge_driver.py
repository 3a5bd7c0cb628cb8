"""Two people and git alone: what they did apart merges, what they did at once stops."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from checkout import FIRST_PATCH, HEADER, REPOSITORY, Checkout
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.base.git import Repository
from tools.base.project import Project
from tools.tree.export import diff_between
from tools.tree.lint import lint
from tools.tree.patch import Patch
from tools.tree.patch_merge import merge_patches
from tools.tree.text_merge import merge_series

FIRST, SECOND = "0001-count.patch", "0002-crlf.patch"
FAR = b"".join(b"line %d\n" % number for number in range(70))


def git(root: Path, *words: str, code: int = 0) -> str:
    done = subprocess.run(
        ["git", "-c", "user.name=Anna", "-c", "user.email=a@b", "-C", root, *words],
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def two(
    make_checkout: Callable[..., Checkout], tmp_path: Path
) -> tuple[Checkout, Checkout]:
    """Two clones of one repository of the fork, each with its tree."""
    origin = make_checkout()
    root = origin.project.root
    origin.tools("edit", "1")
    core = origin.project.tree / "vllm" / "core.py"
    core.write_bytes(core.read_bytes().replace(b"+= 1", b"+= 10"))
    origin.tools("refresh")
    origin.tools("push", "--all")
    litter = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY / "tools", root / "tools", ignore=litter)
    shutil.copy(REPOSITORY / ".gitattributes", root)
    (root / ".gitignore").write_text("/build/\n__pycache__/\n")
    git(root, "init", "--quiet", "--initial-branch=main")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "-m", "Begin")
    clones = []
    for name in ("one", "two"):
        git(tmp_path, "clone", "--quiet", str(root), name)
        checkout = Checkout(Project.at(tmp_path / name), origin.sdist)
        (checkout.project.build).mkdir()
        (checkout.project.build / "tools").symlink_to(REPOSITORY / "build" / "tools")
        checkout.tools("apply", "--source", str(origin.sdist))
        clones.append(checkout)
    return clones[0], clones[1]


def change(checkout: Checkout, patch: str, old: bytes, new: bytes) -> None:
    """Change a patch as a maintainer does, and commit it."""
    checkout.tools("edit", patch)
    core = checkout.project.tree / "vllm" / "core.py"
    assert old in core.read_bytes()
    core.write_bytes(core.read_bytes().replace(old, new, 1))
    checkout.tools("refresh")
    checkout.tools("push", "--all")
    git(checkout.project.root, "commit", "--all", "--quiet", "-m", "Change a patch")


def pull(ours: Checkout, theirs: Checkout, code: int = 0) -> str:
    root = ours.project.root
    git(root, "fetch", "--quiet", str(theirs.project.root), "main")
    return git(root, "merge", "--quiet", "--no-edit", "FETCH_HEAD", code=code)


def test_edits_of_one_patch_far_apart_merge_with_their_lock(
    two: tuple[Checkout, Checkout],
) -> None:
    one, other = two
    change(one, "1", b"def first():\n", b"def first():\n    one = 1\n    two = 2\n")
    change(other, "1", b"total += 3", b"total += 4")
    pull(one, other)
    one.tools("apply", "--lock")
    core = one.files()["vllm/core.py"]
    assert b"two = 2" in core and b"total += 4" in core
    one.tools("export", "--check")
    git(one.project.root, "commit", "--all", "--quiet", "-m", "Renew the lock")
    pull(other, one)
    other.tools("apply")


def test_two_new_patches_merge_and_get_numbers_of_their_own(
    two: tuple[Checkout, Checkout],
) -> None:
    one, other = two
    for checkout, name in ((one, "README.md"), (other, "run.sh")):
        with (checkout.project.tree / name).open("a") as file:
            file.write("# more\n")
        checkout.tools("new", f"docs: more in {name}", "--why", "Because.")
        root = checkout.project.root
        git(root, "add", "--all")
        git(root, "commit", "--quiet", "-m", "Add a patch")
    pull(one, other)
    names = ["0003-docs-more-in-readme-md.patch", "0003-docs-more-in-run-sh.patch"]
    assert (one.project.patches / "series").read_text().split()[-2:] == names
    one.tools("apply", "--lock")
    assert [f.rule for f in lint(one.project) if f.fatal] == ["number"]
    assert "renumber" in one.tools("lint", code=3).output
    assert "renumber" in one.tools("goto", "3", code=2).output
    before = one.tree.repository.tree_of("HEAD")
    one.tools("renumber")
    assert [f.rule for f in lint(one.project) if f.fatal] == []
    assert (one.project.patches / "series").read_text().split()[-2:] == [
        names[0],
        names[1].replace("0003", "0004"),
    ]
    assert one.tree.repository.tree_of("HEAD") == before
    assert "own number" in one.tools("renumber").output


def test_edits_of_one_line_stop_and_no_mark_is_applied(
    two: tuple[Checkout, Checkout],
) -> None:
    one, other = two
    change(one, "1", b"total += 3", b"total += 5")
    change(other, "1", b"total += 3", b"total += 4")
    assert f"Merge conflict in patches/{FIRST}" in pull(one, other, code=1)
    text = (one.project.patches / FIRST).read_bytes()
    assert text.count(b"<<<<<<<") == 1
    assert "conflict" in one.tools("apply", "--lock", code=3).output
    theirs = text.partition(b"=======\n")[2].replace(b">>>>>>> theirs\n", b"")
    ours = text.partition(b"<<<<<<< ours\n")[0]
    (one.project.patches / FIRST).write_bytes(ours + theirs)
    one.tools("apply", "--lock")
    assert b"total += 4" in one.files()["vllm/core.py"]


def test_clone_without_the_tools_merges_as_git_does(
    two: tuple[Checkout, Checkout],
) -> None:
    one, other = two
    change(one, "1", b"total += 3", b"total += 5")
    change(other, "1", b"total += 3", b"total += 4")
    (one.project.build / "tools").unlink()
    pull(one, other, code=1)
    assert b"<<<<<<< ours" in (one.project.patches / FIRST).read_bytes()
    assert "<<<<<<<" in (one.project.root / "upstream" / "tree.lock").read_text()
    git(one.project.root, "checkout", "--theirs", f"patches/{FIRST}")
    one.tools("apply", "--lock")
    assert b"total += 4" in one.files()["vllm/core.py"]


@pytest.mark.parametrize("mark", ["<<<<<<< ours", "=======", ">>>>>>> theirs"])
@pytest.mark.parametrize("file", ["patches/series", "upstream/pin.toml"])
def test_mark_of_a_conflict_is_refused(
    checkout: Checkout, file: str, mark: str
) -> None:
    path = checkout.project.root / file
    path.write_text(f"{path.read_text()}\n{mark}\n")
    output = checkout.tools("apply", "--lock", code=3).output
    assert "is the mark of a conflict" in output and path.name in output


def test_mark_of_a_conflict_in_the_lock_is_renewed(checkout: Checkout) -> None:
    lock = checkout.project.root / "upstream" / "tree.lock"
    before = lock.read_text()
    lock.write_text(f"<<<<<<< ours\n{before}=======\n{before}>>>>>>> theirs\n")
    assert "mark of a conflict" in checkout.tools("apply", code=3).output
    checkout.tools("apply", "--lock")
    assert lock.read_text() == before


def test_driver_is_offered_once_and_only_at_the_top_of_a_repository(
    two: tuple[Checkout, Checkout], make_checkout: Callable[..., Checkout]
) -> None:
    one, _ = two
    root = one.project.root
    assert "merge-driver" in git(root, "config", "--local", "merge.tagma.driver")
    assert "as it was" in one.tools("merge-driver", "--install").output
    git(root, "config", "--local", "--remove-section", "merge.tagma")
    assert "is set" in one.tools("merge-driver", "--install").output
    assert "as it was" in make_checkout("no").tools("merge-driver", "--install").output


# ---- the merges themselves


def series(*names: str) -> bytes:
    return "".join(f"{name}\n" for name in names).encode()


@pytest.mark.parametrize(
    "base, ours, theirs, merged",
    [
        ("a b", "a b c", "a b d e", "a b c d e"),
        ("a b", "a c b", "a d b", "a c d b"),
        ("a b c", "a c", "a b c d", "a c d"),
        ("a b c", "b c", "a b", "b"),
        ("a b", "b a", "a b c", "b c a"),
        ("a b", "a b c", "b a", "b c a"),
        ("a", "a b", "a b", "a b"),
    ],
)
def test_series_takes_what_each_side_did(
    base: str, ours: str, theirs: str, merged: str
) -> None:
    sides = [series(*side.split()) for side in (base, ours, theirs)]
    found = merge_series(*sides)
    assert found.clean and found.data == series(*merged.split())


def test_comments_of_both_sides_stay_in_the_series() -> None:
    base = b"# top\n\na\n"
    merged = merge_series(base, base + b"# why b\nb\n", base + b"# why c\nc # c\n")
    assert merged.data == b"# top\n\na\n# why b\nb\n# why c\nc # c\n"


def test_series_that_both_sides_moved_is_a_conflict() -> None:
    sides = [series(*side) for side in ("abc", "bca", "cab")]
    assert not merge_series(*sides).clean


def patch_of(repository: Repository, before: bytes, after: bytes, note: str) -> bytes:
    """Return the patch that changes a file so, as `export` writes it."""

    def tree(data: bytes) -> str:
        blob = repository.git("hash-object", "-w", "--stdin", stdin=data).text
        return repository.git("mktree", stdin=f"100644 blob {blob}\tf\n".encode()).text

    head = HEADER.format(subject="core: f").replace("Why it", note).encode()
    return head + diff_between(repository, tree(before), tree(after))


edits = st.dictionaries(
    st.integers(0, 9), st.sampled_from([b"", b"new\n", b"new\nmore\n"]), max_size=6
)


def edited(lines: bytes, changes: dict[int, bytes]) -> bytes:
    """Replace lines that are six apart, so that each change is a hunk."""
    found = lines.splitlines(keepends=True)
    for place in sorted(changes, reverse=True):
        found[place * 6 + 2 : place * 6 + 3] = [changes[place]]
    return b"".join(found)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    made = Repository(tmp_path_factory.mktemp("merge") / "repository")
    made.init()
    return made


@settings(deadline=None, max_examples=60)
@given(base=edits, ours=edits, theirs=edits, above=st.integers(0, 2))
def test_merge_of_hunks_is_the_merge_of_the_files(
    repository: Repository,
    base: dict[int, bytes],
    ours: dict[int, bytes],
    theirs: dict[int, bytes],
    above: int,
) -> None:
    """Also where one side's file is longer above, since an earlier patch grew."""
    wanted: dict[int, bytes] = {}
    for place in range(10):
        old, mine, other = (side.get(place) for side in (base, ours, theirs))
        if old not in (mine, other) and mine != other:  # changed by both
            theirs = {n: text for n, text in theirs.items() if n != place}
            theirs |= {} if old is None else {place: old}
            other = old
        new = other if mine == old else mine
        wanted |= {} if new is None else {place: new}
    longer = b"above\n" * above + FAR
    shift = b"above\n" * above

    def patch(before: bytes, changes: dict[int, bytes], up: bytes = b"") -> bytes:
        after = up + edited(FAR, {10: b"always\n"} | changes)
        return patch_of(repository, before, after, "Why it")

    merged = merge_patches(
        patch(FAR, base), patch(longer, ours, shift), patch(FAR, theirs)
    )
    assert merged.clean
    found = Patch.parse("p", merged.data)
    expected = Patch.parse("p", patch(longer, wanted, shift))
    assert found.plain_diff() == expected.plain_diff()


def test_header_is_merged_with_the_later_date(repository: Repository) -> None:
    base = patch_of(repository, FAR, edited(FAR, {1: b"x\n"}), "Why it")
    ours = base.replace(b"2026-01-02", b"2026-02-01").replace(b"Why it", b"How it")
    signed = b"Apache-2.0\nSigned-off-by: Anna <a@b>\n---\n"
    theirs = base.replace(b"2026-01-02", b"2026-03-01").replace(
        b"Apache-2.0\n---\n", signed
    )
    merged = merge_patches(base, ours, theirs)
    assert merged.clean
    header = Patch.parse("p", merged.data).header
    assert header.fields["Last-Update"] == "2026-03-01"
    assert "How it" in header.body and "Signed-off-by" in header.body


def test_file_that_one_side_drops_and_the_other_changes_is_a_conflict() -> None:
    more = FIRST_PATCH.replace("core.py", "more.py").partition("---\ndiff")[2]
    base = f"{FIRST_PATCH}diff{more}".encode()
    theirs = base.replace(b"total += 3", b"total += 4")
    assert not merge_patches(base, FIRST_PATCH.encode(), theirs).clean
    assert merge_patches(base, FIRST_PATCH.encode(), base).data == FIRST_PATCH.encode()
