"""`lint`: each rule finds what it is for, and the fork's own series is clean."""

import json
from collections.abc import Callable

import pytest
from checkout import FIRST_PATCH, HEADER, REPOSITORY, Checkout

from tools.base.project import Project
from tools.tree import lint

FIRST = "0001-count.patch"
DIFF = "diff --git a/{0} b/{0}\n{1}--- a/{0}\n+++ b/{0}\n{2}"


def findings(checkout: Checkout) -> list[lint.Finding]:
    return [finding for finding in lint.lint(checkout.project) if finding.fatal]


def added(path: str, text: str = "+x\n") -> str:
    lines = text.count("\n")
    return (
        f"diff --git a/{path} b/{path}\nnew file mode 100644\nindex 0000000..1111111\n"
        f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +1,{lines} @@\n{text}"
    )


def patched(checkout: Checkout, old: str, new: str) -> str:
    """Change the first patch; return the only rule that finds it."""
    assert old in FIRST_PATCH
    path = checkout.project.patches / FIRST
    path.write_bytes(FIRST_PATCH.replace(old, new).encode())
    (found,) = findings(checkout)
    assert found.path == f"patches/{FIRST}"
    return f"{found.rule} {found.line}"


def test_sound_series_has_no_findings(checkout: Checkout) -> None:
    assert findings(checkout) == []


def test_own_series_has_no_findings() -> None:
    assert lint.lint(Project.at(REPOSITORY)) == []


@pytest.mark.parametrize(
    "old, new, rule",
    [
        ("Status: Pending", "Status: Perhaps", "header 0"),
        ("2026-01-02", "9999-01-02", "header 0"),
        ("Forwarded: no\n", "", "header 0"),
        ("Why it is needed.\n\n", "", "header 0"),
        ("Why it", "---\nWhy it", "header 4"),
        ("Why it", "--- a/x\nWhy it", "header 4"),
        ("Why it", "diff -u a b\nWhy it", "header 4"),
        ("Why it", "Index: x\nWhy it", "header 4"),
        ("Why it", "From here on\nWhy it", "header 4"),
        ("Why it", "# one\nWhy it", "header 4"),
        ("Why it", "Subject: one\nWhy it", "header 4"),
        ("Why it", "Why\r it", "header 4"),
        ("core: count", "[PATCH] core: count", "header 2"),
        ("     return total\n", "     return total\n-- \n2.39.5\n\n", "mangled 0"),
        ("needed.", "needed. ", "header 4"),
        ("+    total += 3", "+    total += 3  ", "whitespace 19"),
        ("+    total += 3", "+    total += 3\r", "whitespace 19"),
        ("@@ -8,3", "@@ -8,9", "header 0"),
    ],
)
def test_text_that_will_be_mangled_is_found(
    checkout: Checkout, old: str, new: str, rule: str
) -> None:
    assert patched(checkout, old, new) == rule


def test_crlf_of_upstreams_own_file_is_only_a_warning(checkout: Checkout) -> None:
    (found,) = lint.lint(checkout.project)
    assert not found.fatal and "--keep-cr" in found.message


def test_unlisted_patch_is_found(checkout: Checkout) -> None:
    checkout.write_patch("0003-x.patch", FIRST_PATCH, listed=False)
    assert [f.rule for f in findings(checkout)] == ["series"]


def test_duplicate_patch_is_found(checkout: Checkout) -> None:
    checkout.write_patch("0003-x.patch", FIRST_PATCH)
    assert [f.rule for f in findings(checkout)] == ["duplicate"] * 3


def test_empty_patch_is_found(checkout: Checkout) -> None:
    text = HEADER.format(subject="core: nothing")
    checkout.write_patch("0003-x.patch", f"{text}diff --git a/README.md b/README.md\n")
    assert [f.rule for f in findings(checkout)] == ["empty"]


def test_patch_of_an_overlay_is_found(checkout: Checkout) -> None:
    text = HEADER.format(subject="core: overlay")
    checkout.write_patch("0003-x.patch", text + added("vllm/tagma.py"))
    assert [f.rule for f in findings(checkout)] == ["overlap"]


@pytest.mark.parametrize("mark", ["<<<<<<< ours", "=======", ">>>>>>> theirs"])
def test_mark_of_a_conflict_in_an_overlay_is_found(
    checkout: Checkout, mark: str
) -> None:
    overlay = checkout.project.root / "vllm_overlay" / "tagma.py"
    overlay.write_bytes(overlay.read_bytes() + f"\n{mark}\n".encode())
    assert [(f.rule, f.line) for f in findings(checkout)] == [("conflict", 4)]
    assert "mark of a conflict" in checkout.tools("apply", "--lock", code=3).output


def test_underline_of_a_title_is_no_conflict(checkout: Checkout) -> None:
    notes = "Title\n=======\n\nExample\n=======\n"
    (checkout.project.root / "vllm_overlay" / "notes.rst").write_text(notes)
    assert findings(checkout) == []


def test_two_patches_of_one_number_are_found(checkout: Checkout) -> None:
    text = HEADER.format(subject="core: third") + added("vllm/third.txt")
    checkout.write_patch("0002-third.patch", text)
    (found,) = findings(checkout)
    assert found.rule == "number" and "0002-crlf.patch" in found.message


def test_overlay_that_upstream_now_has_is_found(checkout: Checkout) -> None:
    overlay = checkout.project.root / "vllm_overlay" / "core.py"
    overlay.write_text("# SPDX-License-Identifier: Apache-2.0\n")
    found = {(f.path, f.rule) for f in findings(checkout)}
    assert ("vllm_overlay/core.py", "overlay") in found


def test_overlay_without_licence_is_found(checkout: Checkout) -> None:
    (checkout.project.root / "csrc_tagma" / "a.h").write_text("#pragma once\n")
    assert [f.path for f in findings(checkout)] == ["csrc_tagma/a.h"]


@pytest.mark.parametrize(
    "path",
    ["docs/aux.md", "docs/a:b.md", "docs/end.", "docs/" + "x" * 200, "Vllm/new.py"],
)
def test_unportable_name_is_found(checkout: Checkout, path: str) -> None:
    checkout.write_patch("0003-x.patch", HEADER.format(subject="x") + added(path))
    assert {f.rule for f in findings(checkout)} == {"name"}


def test_exit_code_tells_and_json_lists_the_findings(checkout: Checkout) -> None:
    checkout.tools("lint")
    (checkout.project.root / "csrc_tagma" / "a.h").write_text("#pragma once\n")
    report = json.loads(checkout.tools("lint", "--json", code=3).stdout)
    assert [f["path"] for f in report["data"]["findings"] if f["fatal"]] == [
        "csrc_tagma/a.h"
    ]


def test_series_is_checked_before_the_first_apply(
    make_checkout: Callable[..., Checkout],
) -> None:
    checkout = make_checkout(lock=False)
    assert "run apply" in checkout.tools("lint").stdout
