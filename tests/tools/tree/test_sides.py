"""A patch file that is newer than the tree is never overwritten."""

import json
import re

import pytest
from checkout import HEADER, Checkout

FIRST, SECOND, THIRD = "0001-count.patch", "0002-crlf.patch", "0003-third.patch"
OWN = "0004-core-ours.patch"
TRAILERS = HEADER.split("needed.\n\n")[1].removesuffix("---\n")


def describe(checkout: Checkout, name: str = FIRST) -> bytes:
    """Edit a patch's description, as its file; return the file."""
    path = checkout.project.patches / name
    path.write_bytes(path.read_bytes().replace(b"Why it", b"How it"))
    return path.read_bytes()


def commit(checkout: Checkout, *options: str) -> None:
    core = checkout.project.tree / "vllm" / "core.py"
    core.write_text(f"import os\n{core.read_text()}")
    message = f"core: ours\n\nWhy.\n\n{TRAILERS}"
    words = options or ("-m", message)
    checkout.tree.repository.git("commit", "--all", "--quiet", *words)


def pull(checkout: Checkout) -> dict[str, bytes]:
    """Do what a pull does that edits one patch and adds another one."""
    describe(checkout)
    new = HEADER.format(subject="third") + (
        "diff --git a/third.txt b/third.txt\nnew file mode 100644\n"
        f"index {'0' * 40}..587be6b4c3f93f93c489c0111bba5596147a26cb\n"
        "--- /dev/null\n+++ b/third.txt\n@@ -0,0 +1 @@\n+x\n"
    )
    checkout.write_patch(THIRD, new)
    return texts(checkout)


def texts(checkout: Checkout) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in checkout.project.patches.iterdir()}


def test_patch_in_another_form_is_no_change_of_the_files(checkout: Checkout) -> None:
    """The fixture's patches have three lines of context, an export's have one."""
    before = texts(checkout)
    commit(checkout)
    checkout.tools("export")
    assert texts(checkout) != before


def test_edited_description_is_kept_and_named_as_newer(checkout: Checkout) -> None:
    edited = describe(checkout)
    for words in (("export",), ("export", "--check")):
        output = checkout.tools(*words, code=1).output
        assert "patches/ is newer than" in output and FIRST in output
        assert "apply --lock" in output and "export\n" not in output
    assert (checkout.project.patches / FIRST).read_bytes() == edited
    told = json.loads(checkout.tools("status", "--json").stdout)
    assert told["data"]["newer"] == "files"
    checkout.follow(checkout.tools("export", code=1).output)
    assert (checkout.project.patches / FIRST).read_bytes() == edited
    checkout.tools("export", "--check")


def test_pulled_patches_and_an_own_commit_are_both_kept(checkout: Checkout) -> None:
    checkout.tools("export")
    commit(checkout)
    pulled = pull(checkout)
    output = checkout.tools("export", code=1).output
    assert "both changed" in output and FIRST in output and THIRD in output
    assert texts(checkout) == pulled
    assert "both changed" in checkout.tools("export", "--check", code=1).output
    told = json.loads(checkout.tools("status", "--json").stdout)["data"]
    assert told["newer"] == "both" and "cherry-pick" in told["mend"][1]
    checkout.follow(output)
    after = texts(checkout)
    assert {name: after[name] for name in (FIRST, SECOND, THIRD)} == {
        name: pulled[name] for name in (FIRST, SECOND, THIRD)
    }
    assert b"+import os" in after[OWN]
    checkout.tools("export", "--check")


def test_amended_commit_is_made_again_on_pulled_patches(checkout: Checkout) -> None:
    commit(checkout, "--amend", "--no-edit")
    pulled = pull(checkout)
    checkout.follow(checkout.tools("export", code=1).output)
    after = texts(checkout)
    assert after[FIRST] == pulled[FIRST]
    assert b"import os" in checkout.files()["vllm/core.py"]
    checkout.tools("export", "--check")


def test_commits_alone_are_newer_than_the_files(checkout: Checkout) -> None:
    commit(checkout)
    output = checkout.tools("export", "--check", code=1).output
    assert "newer than patches/" in output and " export\n" in output
    told = json.loads(checkout.tools("status", "--json").stdout)
    assert told["data"]["newer"] == "tree"


def test_patch_removed_by_a_pull_stays_removed(checkout: Checkout) -> None:
    (checkout.project.patches / SECOND).unlink()
    (checkout.project.patches / "series").write_text(f"{FIRST}\n")
    commit(checkout)
    checkout.tools("export", code=1)
    assert not (checkout.project.patches / SECOND).exists()


def test_other_pin_is_newer_than_the_tree(checkout: Checkout) -> None:
    commit(checkout)
    pin = checkout.project.pin_file
    found = re.sub('(?m)^tree = ".*"', f'tree = "{"1" * 40}"', pin.read_text())
    pin.write_text(found)
    assert "upstream/pin.toml" in checkout.tools("export", code=1).output


def test_forced_export_keeps_a_copy_of_what_it_replaces(checkout: Checkout) -> None:
    edited = describe(checkout)
    checkout.tools("export", "--force")
    assert b"Why it" in (checkout.project.patches / FIRST).read_bytes()
    copies = checkout.project.dropped.rglob(FIRST)
    assert [copy.read_bytes() for copy in copies] == [edited]


@pytest.mark.parametrize(
    "old, new",
    [(r"index \w+\.\.\w+", "index 11..22"), ("@@ def .*", "@@ def third():")],
)
def test_cosmetic_change_of_a_file_is_kept_by_an_export(
    checkout: Checkout, old: str, new: str
) -> None:
    checkout.tools("export")
    path = checkout.project.patches / FIRST
    path.write_text(re.sub(old, new, path.read_text()))
    edited = path.read_bytes()
    commit(checkout)
    checkout.tools("export")
    assert path.read_bytes() == edited
