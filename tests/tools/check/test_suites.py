"""The suites are found, and run where they import what they are meant to."""

import sys
from pathlib import Path

import pytest
from checkout import REPOSITORY, Checkout

from tools.base.project import Project
from tools.check import rehearsal, suites
from tools.check.suites import Suite
from tools.tree import overlay

TESTS = "def test_one(): assert {}\n\ndef test_two(): pass\n"


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    return Suite(Path(sys.executable), tmp_path, ("test_a.py",), {"SUITE": "here"})


@pytest.mark.parametrize("workers", [1, 2])
def test_the_status_is_pytests_with_any_number_of_workers(
    suite: Suite, workers: int
) -> None:
    file = suite.folder / "test_a.py"
    for sound in (True, False):
        file.write_text(TESTS.format(sound))
        assert suite.run(workers, (), to_stderr=True) == (0 if sound else 1)


def test_words_and_variables_reach_pytest(suite: Suite) -> None:
    (suite.folder / "test_a.py").write_text(
        "import os\n" + TESTS.format("os.environ['SUITE'] != 'here'")
    )
    assert suite.run(1, (), to_stderr=True) == 1
    assert suite.run(1, ("-k", "two"), to_stderr=True) == 0


def test_all_tests_of_the_overlays_run_beside_the_tree(checkout: Checkout) -> None:
    """In the tree itself they would import its vllm, which has no extension."""
    project = checkout.project
    for name in ("v1/test_b.py", "v1/driver.py", "test_a.py"):
        file = project.root / "tests" / "vllm" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("")
    made = suites.of_overlays(project, Path(sys.executable))
    assert made.arguments[-2:] == ("tests/test_a.py", "tests/v1/test_b.py")
    assert made.folder.parent == project.build and not (made.folder / "vllm").exists()
    assert (made.folder / "tests").resolve() == project.tree / "tests"
    assert made.variables["PYTHONPATH"] == str(made.folder)
    suites.of_overlays(
        project, Path(sys.executable)
    )  # and again, where it has been made


def test_no_test_of_the_overlays_is_left_out() -> None:
    folder = REPOSITORY / "tests" / "vllm"
    files = sorted(file.relative_to(folder) for file in folder.rglob("test_*.py"))
    assert overlay.tests(REPOSITORY) == [f"tests/{file}" for file in files]


def test_upstreams_suites_are_there() -> None:
    """In a release that moves one, this says which."""
    tree = Project.at(REPOSITORY).tree
    assert [name for name in suites.UPSTREAM if not (tree / name).is_file()] == []


def test_a_rehearsal_has_all_that_a_rebase_reads(checkout: Checkout) -> None:
    scratch = rehearsal.prepare(checkout.project)
    (scratch / "patches" / "series").write_text("")
    assert rehearsal.prepare(checkout.project) == scratch
    there = {p.relative_to(scratch) for p in scratch.rglob("*") if p.is_file()}
    root = checkout.project.root
    for folder in ("patches", "upstream", "vllm_overlay"):
        files = {p.relative_to(root) for p in (root / folder).rglob("*") if p.is_file()}
        assert files <= there
    series = (root / "patches" / "series").read_text()
    assert (scratch / "patches" / "series").read_text() == series
