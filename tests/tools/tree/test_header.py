"""A patch's header: kept byte for byte, by the tools and by `git am`."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from checkout import FIRST_PATCH, HEADER, REPOSITORY, Checkout
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tools.base.errors import ToolError
from tools.base.git import Repository
from tools.tree.header import FIELDS
from tools.tree.patch import Patch

DIFF = "diff --git a/f b/f\nnew file mode 100644\n--- /dev/null\n+++ b/f\n"
DIFF += "@@ -0,0 +1 @@\n+x\n"
TRAILERS = HEADER.split("needed.\n\n")[1].removesuffix("---\n")
SIGNED = (
    "Co-authored-by: B. Two <b@example.com>\n"
    "Signed-off-by: A. One <a@example.com>\n"
    "(cherry picked from commit 5df63a7205df63a7205df63a7205df63a7205df6)\n"
    "Signed-off-by: B. Two <b@example.com>\n"
)

# Signs that mean something to a mail, to git or to the parser, beside others.
pieces = st.sampled_from(
    [
        *"ab é日:.,;<>@[]()\"'=?#-+ \t\r\n\\\x0c\0\ufeff",
        *("\n\n", "---", "From", "Subject: ", "Date: x", "Re: ", "[PATCH] "),
        *("=?utf-8?q?a?=", "diff --git a/f b/f", "<<<<<<< ours", "======="),
        *("Signed-off-by: A. One <a@b>", "(cherry picked from commit 1)"),
    ]
)
text = st.lists(pieces, max_size=8).map("".join)


@given(author=text, subject=text, description=text, more=text)
def test_parsed_text_is_rendered_as_it_was(
    author: str, subject: str, description: str, more: str
) -> None:
    head = f"From: A{author} <a@b>\nSubject: {subject}\n\n{description}\n\n"
    data = f"{head}{TRAILERS}{more}---\n{DIFF}".encode()
    try:
        patch = Patch.parse("p", data)
    except ToolError:
        return
    assert patch.to_bytes() == data
    again = Patch.from_commit("p", patch.fields["From"], patch.message, patch.diff)
    assert again == patch


def am(folder: Path, data: bytes) -> tuple[str, str, str]:
    """Apply a patch as a mail; return author, message and trailers."""
    repository = Repository(folder)
    if not repository.exists:
        repository.init()
        base = repository.commit_tree(repository.git("write-tree").text, "x\n", None)
        repository.git("update-ref", "refs/base", base)
    repository.git("reset", "--hard", "--quiet", "refs/base")
    repository.git("am", "--quiet", stdin=data)
    author = repository.git("log", "-1", "--format=%an <%ae>").text
    message = repository.git("log", "-1", "--format=%B").stdout.decode()[:-1]
    trailers = repository.git(
        "interpret-trailers", "--parse", stdin=message.encode()
    ).text
    return author, message, trailers


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.filter_too_much,
    ],
)
@given(author=text, subject=text, description=text, more=text)
def test_git_am_of_any_patch_gives_author_and_message(
    tmp_path: Path, author: str, subject: str, description: str, more: str
) -> None:
    head = f"From: Anna{author}z <a@b>\nSubject: x{subject}\n\nWhy{description}\n\n"
    data = f"{head}{TRAILERS}{more}---\n{DIFF}".encode()
    try:
        patch = Patch.parse("p", data)
    except ToolError:
        assume(False)
    found, message, _ = am(tmp_path / "am", data)
    assert (found, message) == (patch.fields["From"], patch.message)


def test_git_am_keeps_every_trailer(tmp_path: Path) -> None:
    head = f"From: A. Müller <a@b>\nSubject: core: x\n\nWhy.\n\n{TRAILERS}{SIGNED}"
    _, message, trailers = am(tmp_path, f"{head}---\n{DIFF}".encode())
    assert message == f"core: x\n\nWhy.\n\n{TRAILERS}{SIGNED}"
    cherry = re.compile(r"\(cherry.*\n")
    assert f"{trailers}\n" == cherry.sub("", TRAILERS + SIGNED)


@pytest.mark.parametrize(
    "path", sorted((REPOSITORY / "patches").glob("*.patch")), ids=lambda path: path.name
)
def test_own_patches_are_mails_with_all_their_fields(path: Path) -> None:
    """`mailinfo` is what `git am` reads a mail with."""
    message = path.with_name("message")
    done = subprocess.run(
        ["git", "mailinfo", "/dev/stdout", "/dev/null"],
        input=path.read_bytes(),
        capture_output=True,
        check=True,
    )
    assert not message.exists()
    patch = Patch.parse(path.name, path.read_bytes())
    body = done.stdout.decode().partition("Author: ")[0]
    assert body == patch.header.body + "\n"
    assert set(FIELDS) <= set(patch.fields)


def test_rewrite_keeps_repeated_trailers_of_every_patch(checkout: Checkout) -> None:
    path = checkout.project.patches / "0001-count.patch"
    signed = FIRST_PATCH.replace("---\ndiff", f"{SIGNED}---\ndiff", 1)
    path.write_text(signed)
    checkout.apply(relock=True)
    head = path.read_bytes().partition(b"diff --git")[0]
    (checkout.project.tree / "README.md").write_text("# ours\n")
    checkout.tools("refresh")
    assert path.read_bytes().partition(b"diff --git")[0] == head
    checkout.tools("goto", "1")
    core = checkout.project.tree / "vllm" / "core.py"
    core.write_text(core.read_text() + "new = 1\n")
    checkout.tools("refresh")
    today = re.compile(rb"Last-Update: .*")
    changed = path.read_bytes().partition(b"diff --git")[0]
    assert today.sub(b"", changed) == today.sub(b"", head)


def test_trailers_that_git_adds_to_a_commit_reach_the_patch(checkout: Checkout) -> None:
    repository = checkout.tree.repository
    repository.git("commit", "--quiet", "--amend", "--no-edit", "--signoff")
    checkout.tools("export")
    text = (checkout.project.patches / "0002-crlf.patch").read_text()
    assert "Apache-2.0\nSigned-off-by: tagma <tagma@localhost>\n---\n" in text


@pytest.mark.parametrize(
    "change, cause",
    [
        (lambda t: t.replace("\n", "\r\n"), "CRLF line ends"),
        (lambda t: "\ufeff" + t, "byte-order mark"),
        (lambda t: t.encode("utf-16"), "UTF-16"),
        (lambda t: t.encode("latin-1"), "line 1 is not UTF-8"),
        (lambda t: t.replace("Why", "diff --git a/x b/x\nWhy"), "start of the diff"),
        (lambda t: t.replace("---\ndiff", "diff"), "no line `---`"),
        (lambda t: t.replace("---\ndiff", "---\n f | 1 +\ndiff"), "no line `---`"),
        (lambda t: t.replace("\n\nWhy", "\nOrigin: vendor\n\nWhy"), "git am drops it"),
        (lambda t: "From 5df63a72 Mon Sep 17 00:00:00 2001\n" + t, "begins a mailbox"),
        (lambda t: t.replace("A. Müller", "=?UTF-8?q?A=2E?="), "as git keeps it"),
        (lambda t: t.replace("A. Müller", "A"), "no name shorter than 3"),
        (lambda t: t.replace("count by", "count\n by"), "blank line must follow"),
        (
            lambda t: t.replace("Why", "<<<<<<< ours\nWhy"),
            "line 4 is the mark",
        ),
        (lambda t: t.replace("index 1", "=======\nindex 1"), "marks of a conflict"),
        (
            lambda t: t.replace("+    total", "+<<<<<<< x\n+    total"),
            "marks of a conf",
        ),
        (lambda t: t.replace("@@ -8", ">>>>>>> x\n@@ -8"), "marks of a conflict"),
    ],
)
def test_refusal_of_a_patch_names_the_cause(checkout: Checkout, change, cause) -> None:
    text = change(FIRST_PATCH)
    data = text if isinstance(text, bytes) else text.encode()
    with pytest.raises(ToolError) as caught:
        Patch.parse("0001-count.patch", data)
    assert cause in caught.value.message
    (checkout.project.patches / "0001-count.patch").write_bytes(data)
    assert cause in checkout.tools("lint", code=3).output
    checkout.tools("apply", "--lock", code=3)


def test_hunk_without_context_is_named_as_such(checkout: Checkout) -> None:
    hunk = "@@ -8,3 +8,3 @@ def second():\n     total = 0\n"
    assert hunk in FIRST_PATCH
    bare = FIRST_PATCH.replace(hunk, "@@ -9 +9 @@ def second():\n")
    bare = bare.replace("     return total\n", "")
    (checkout.project.patches / "0001-count.patch").write_text(bare)
    done = checkout.tools("apply", "--lock", code=3)
    assert "no line of context" in done.output and "--unified=1" in done.output


def test_hunk_whose_numbers_do_not_follow_is_refused(checkout: Checkout) -> None:
    """git would change equal lines near the wrong number, and say nothing."""
    first = "@@ -2,3 +2,4 @@ def first():\n     total = 0\n+    one = 1\n"
    first += "     total += 1\n     return total\n"
    path = checkout.project.patches / "0001-count.patch"
    path.write_text(FIRST_PATCH.replace("@@ -8,3", f"{first}@@ -8,3"))
    done = checkout.tools("apply", "--lock", code=3)
    assert "should be at +9" in done.output
    assert "should be at +9" in checkout.tools("lint", code=3).output
    path.write_text(path.read_text().replace("-8,3 +8,3", "-8,3 +9,3"))
    checkout.tools("apply", "--lock")
    assert b"one = 1" in checkout.files()["vllm/core.py"]


@pytest.mark.parametrize("file", ["patches/series", "upstream/pin.toml"])
@pytest.mark.parametrize(
    "change, cause",
    [
        (lambda t: "\ufeff" + t, "byte-order mark"),
        (lambda t: t.encode("utf-16"), "UTF-16"),
        (lambda t: t.replace("\n", "\r\n"), "CRLF line ends"),
        (lambda t: t.encode() + b"# \xfc\n", "is not UTF-8"),
    ],
)
def test_refusal_of_series_and_pin_names_the_cause(
    checkout: Checkout, file: str, change: Callable[[str], str | bytes], cause: str
) -> None:
    path = checkout.project.root / file
    data = change(path.read_text())
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    output = checkout.tools("apply", "--lock", code=3).output
    assert cause in output and path.name in output
