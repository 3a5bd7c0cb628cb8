"""What a stopped rebase says about the lines that a patch was made for."""

import json
from pathlib import Path

from checkout import CORE, HEADER, Checkout, tree_id
from rebases import put_on
from releases import release

from tools.base.git import Repository
from tools.carry.explain import _whereabouts

LONG = CORE.replace("total", "total_of_all_requests")
FIRST, _, SECOND = LONG.partition("\n\n\n")


def stopped(checkout: Checkout, changes: dict[str, str | None]) -> list[str]:
    """Put the series on LONG, then rebase to a release with these changes."""
    release(checkout, {"vllm/core.py": LONG}, "1.5")
    path = checkout.project.patches / "0001-count.patch"
    text = path.read_text()
    path.write_text(text.replace("total", "total_of_all_requests"))
    put_on(checkout, "1.5")
    release(checkout, changes)
    return details_of_rebase(checkout)


def details_of_rebase(checkout: Checkout) -> list[str]:
    done = checkout.cli("rebase", "2.0", "--json")
    assert done.returncode == 1, done.stderr
    details = json.loads(done.stdout)["data"]["stopped"]["details"]
    assert isinstance(details, list)
    return details


def test_file_that_was_split_in_two_tells_where_the_lines_went(
    checkout: Checkout,
) -> None:
    details = stopped(checkout, {"vllm/core.py": FIRST + "\n", "vllm/other.py": SECOND})
    assert any("vllm/other.py (" in line for line in details), details
    assert not any("stand in vllm/core.py" in line for line in details)


def test_file_that_was_split_and_deleted_tells_both_places(checkout: Checkout) -> None:
    details = stopped(
        checkout,
        {"vllm/core.py": None, "vllm/a.py": FIRST * 3, "vllm/b.py": "x = 1\n" + SECOND},
    )
    assert any("vllm/b.py" in line for line in details), details


def test_lines_that_are_not_utf_8_are_looked_for_as_they_are(tmp_path: Path) -> None:
    line = "# na\xefve, and long enough to tell".encode("latin-1")
    tree = tree_id(tmp_path, {"a.py": line + b"\n", "b.py": b"x = 1\n" + line + b"\n"})
    found = list(_whereabouts(Repository(tmp_path), "a.py", {line}, tree))
    assert found == ["  its lines stand in b.py (1 of 1)"]


def test_patch_that_deletes_what_upstream_changed_says_so(checkout: Checkout) -> None:
    """It said that upstream deleted the file."""
    checkout.write_patch(
        "0003-gone.patch",
        HEADER.format(subject="docs: none") + "diff --git a/README.md b/README.md\n"
        "deleted file mode 100644\nindex 1111111..0000000\n--- a/README.md\n"
        "+++ /dev/null\n@@ -1,1 +0,0 @@\n-# upstream\n",
    )
    checkout.apply(relock=True)
    release(checkout, {"README.md": "# upstream, and more\n"})
    first = details_of_rebase(checkout)[0]
    assert "the patch deletes it, upstream changed it" in first
