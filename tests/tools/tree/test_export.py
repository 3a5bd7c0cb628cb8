"""`export`: apply → export → apply is the identity, and nothing is lost."""

import string

import pytest
from checkout import Checkout
from hypothesis import given
from hypothesis import strategies as st

from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.tree.export import Export
from tools.tree.header import FIELDS, Header
from tools.tree.patch import Patch

TRAILERS = (
    "Origin: vendor\nForwarded: no\nUpstream-Status: Pending\n"
    "Last-Update: 2026-01-02\nSPDX-License-Identifier: Apache-2.0\n"
)


def patch_bytes(checkout: Checkout) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in checkout.project.patches.iterdir()}


def test_export_after_apply_is_stable(checkout: Checkout) -> None:
    assert checkout.cli("export").returncode == 0
    first = patch_bytes(checkout)
    commit = checkout.tree.state.commit
    assert checkout.cli("export", "--check").returncode == 0
    assert checkout.cli("export").returncode == 0
    assert patch_bytes(checkout) == first
    assert checkout.apply().commit == commit


def test_non_ascii_author_and_header_fields_survive(checkout: Checkout) -> None:
    before = Patch.parse(
        "p", (checkout.project.patches / "0001-count.patch").read_bytes()
    )
    checkout.cli("export")
    after = Patch.parse(
        "p", (checkout.project.patches / "0001-count.patch").read_bytes()
    )
    assert after.fields == before.fields
    assert after.description == before.description


def test_check_names_the_files_that_differ(checkout: Checkout) -> None:
    checkout.cli("export")
    path = checkout.project.patches / "0002-crlf.patch"
    path.write_bytes(path.read_bytes().replace(b"Why it", b"How it"))
    done = checkout.cli("export", "--check")
    assert done.returncode == 1
    assert "0002-crlf.patch" in done.stderr


def test_commit_in_the_tree_becomes_a_patch(checkout: Checkout) -> None:
    core = checkout.project.tree / "vllm" / "core.py"
    core.write_text(core.read_text().replace("+= 1", "+= 8"))
    message = f"core: count by eight\n\nBecause.\n\n{TRAILERS}"
    checkout.tree.repository.git("commit", "--all", "--quiet", "-m", message)
    done = checkout.cli("export")
    assert done.returncode == 0, done.stderr
    name = "0003-core-count-by-eight.patch"
    assert name in (checkout.project.patches / "series").read_text()
    assert checkout.apply().outcome is Outcome.UNCHANGED
    assert b"+= 8" in checkout.files()["vllm/core.py"]


def test_commit_without_header_is_refused_and_nothing_is_written(
    checkout: Checkout,
) -> None:
    before = patch_bytes(checkout)
    (checkout.project.tree / "README.md").write_text("mine\n")
    checkout.tree.repository.git("commit", "--all", "--quiet", "-m", "mine")
    done = checkout.cli("export")
    assert done.returncode == 3
    assert "Origin" in done.stderr
    assert patch_bytes(checkout) == before


def test_uncommitted_edits_are_not_exported_around(checkout: Checkout) -> None:
    (checkout.project.tree / "README.md").write_text("mine\n")
    assert checkout.cli("export").returncode == 1
    assert (checkout.project.tree / "README.md").read_text() == "mine\n"


def test_empty_tree_never_deletes_the_series(checkout: Checkout) -> None:
    before = patch_bytes(checkout)
    state = checkout.tree.state
    checkout.tree.repository.git("reset", "--hard", "--quiet", state.overlays)
    done = checkout.cli("export")
    assert done.returncode == 3
    assert patch_bytes(checkout) == before


def test_export_without_a_tree_is_refused(make_checkout) -> None:
    checkout = make_checkout(lock=False)
    with pytest.raises(ToolError) as caught:
        Export.of(checkout.tree, checkout.project.patches)
    assert caught.value.outcome is Outcome.OUT_OF_SYNC


def test_overlay_changed_in_a_commit_is_sent_to_its_folder(checkout: Checkout) -> None:
    (checkout.project.tree / "vllm" / "tagma.py").write_text("NAME = 'x'\n")
    checkout.tree.repository.git(
        "commit", "--all", "--quiet", "-m", f"overlay\n\nWhy.\n\n{TRAILERS}"
    )
    done = checkout.cli("export")
    assert done.returncode == 3
    assert "vllm_overlay/tagma.py" in done.stderr


line = st.text(string.ascii_letters + " äé.,:-", min_size=1, max_size=30)
words = line.map(lambda s: " ".join(s.split())).filter(
    lambda s: s and not s.lower().startswith(("from:", "subject:", "date:", ":", "re:"))
)


@given(
    subject=words,
    paragraphs=st.lists(words, max_size=4),
    values=st.lists(words, min_size=len(FIELDS), max_size=len(FIELDS)),
)
def test_patch_to_bytes_and_commit_round_trip(
    subject: str, paragraphs: list[str], values: list[str]
) -> None:
    fields = dict(zip(FIELDS, values, strict=True)) | {
        "From": "A. Müller <a@example.com>",
        "Subject": subject,
        "Last-Update": "2026-01-02",
    }
    diff = b"diff --git a/f b/f\n"
    patch = Patch("p", Header.of(fields, "\n\n".join(paragraphs)), diff)
    assert Patch.parse("p", patch.to_bytes()) == patch
    assert patch.fields == fields
    again = Patch.from_commit("p", fields["From"], patch.message, diff)
    assert again == patch


def commit(checkout: Checkout, subject: str, text: str, *trailers: str) -> None:
    core = checkout.project.tree / "vllm" / "core.py"
    core.write_text(core.read_text() + text)
    message = f"{subject}\n\nWhy.\n\n{TRAILERS}{''.join(trailers)}"
    checkout.tree.repository.git("commit", "--all", "--quiet", "-m", message)


def test_commit_with_a_present_subject_gets_a_file_of_its_own(
    checkout: Checkout,
) -> None:
    commit(checkout, "core: count by three", "three = 3\n")
    assert checkout.cli("export").returncode == 0
    assert len(list(checkout.project.patches.glob("*.patch"))) == 3
    assert b"three = 3" in checkout.files()["vllm/core.py"]
    assert checkout.apply().outcome is Outcome.UNCHANGED


def test_subject_without_ascii_gives_a_valid_name(checkout: Checkout) -> None:
    commit(checkout, "日本", "x = 1\n")
    assert checkout.cli("export").returncode == 0
    assert (checkout.project.patches / "0003-patch.patch").is_file()


def test_further_header_fields_are_kept(checkout: Checkout) -> None:
    signed = "Signed-off-by: A <a@example.com>\n"
    commit(checkout, "core: signed", "x = 1\n", signed)
    assert checkout.cli("export").returncode == 0
    path = checkout.project.patches / "0003-core-signed.patch"
    assert signed in path.read_text()
    assert checkout.cli("export", "--check").returncode == 0


def test_merge_is_refused_and_stays(checkout: Checkout) -> None:
    repository = checkout.tree.repository
    head = repository.git("rev-parse", "HEAD").text
    tree = repository.tree_of("HEAD")
    side = repository.commit_tree(tree, "side\n", f"{head}^")
    merge = repository.git(
        "commit-tree", tree, "-p", head, "-p", side, stdin=b"merge\n"
    ).text
    repository.git("reset", "--hard", "--quiet", merge)
    assert checkout.cli("export").returncode == 1
    assert repository.git("rev-parse", "HEAD").text == merge


def test_deletion_of_an_overlay_file_is_refused(checkout: Checkout) -> None:
    checkout.tree.repository.git("rm", "--quiet", "vllm/tagma.py")
    commit(checkout, "drop it", "x = 1\n")
    done = checkout.cli("export")
    assert done.returncode == 3
    assert "vllm_overlay/tagma.py" in done.stderr


def test_damaged_patch_file_is_written_anew_by_force(checkout: Checkout) -> None:
    checkout.tools("export")
    path = checkout.project.patches / "0001-count.patch"
    damaged = path.read_bytes()[:40]
    path.write_bytes(damaged)
    checkout.tools("export", code=1)
    assert path.read_bytes() == damaged
    checkout.tools("export", "--force")
    assert checkout.apply().outcome is Outcome.UNCHANGED
