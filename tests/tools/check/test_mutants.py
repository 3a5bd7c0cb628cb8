"""Mutants name the tests that must see them, apply, and are judged by these alone."""

import shutil
import sys
from pathlib import Path

import pytest
from checkout import REPOSITORY, Checkout

from tools.base.errors import ToolError
from tools.base.git import Repository
from tools.base.outcome import Outcome
from tools.base.project import Project
from tools.check.mutant import Killer, Kind, Mutant, read_all
from tools.check.mutation import Verdict, judge
from tools.commands import mutants as command

MUTANTS = read_all(REPOSITORY)
TREE = Project.at(REPOSITORY).tree

PATCH = """\
The first number is wrong.

Killed-by: {}
---
--- a/vllm/core.py
+++ b/vllm/core.py
@@ -1,4 +1,4 @@
 def first():
     total = 0
-    total += 1
+    total += 7
     return total
"""
TESTS = """\
from vllm.core import first, second

def test_first():
    assert first() == 1

def test_second():
    assert second() == 3

def test_of_something_else():
    assert second() == 4
"""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_applies_to_the_tree(mutant: Mutant) -> None:
    Repository(TREE).git("apply", "--check", "--cached", mutant.path)
    assert mutant.targets


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_test_that_a_mutant_names_is_there(mutant: Mutant) -> None:
    for killer in mutant.killers:
        path, _, name = killer.test.rpartition("::")
        if killer.kind is Kind.NATIVE:
            program, _, only = killer.test.partition(" ")
            path = f"csrc/tagma/tests/{program}.cpp"
            name = only.split(".")[1].split("/")[0]
        path = path or "tests/v1/core/test_tagma_engine.py"
        assert name.partition("[")[0] in (TREE / path).read_text(), str(killer)


@pytest.fixture
def project(
    checkout: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Project:
    """A tree with tests, and its vLLM where this Python finds it."""
    tree = checkout.project.tree
    (tree / "csrc" / "tagma").mkdir(parents=True, exist_ok=True)
    (tree / "tests").mkdir(exist_ok=True)
    (tree / "tests" / "test_core.py").write_text(TESTS)
    (tree / "pyproject.toml").write_text("")
    shutil.copytree(tree / "vllm", tmp_path / "installed" / "vllm")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "installed"))
    return checkout.project


def verdict_of(project: Project, killer: str, patch: str = PATCH) -> Verdict:
    path = project.root / "wrong-number.patch"
    path.write_text(patch.format(killer))
    calls: list[None] = []
    mutants = [Mutant.read(path)]
    python = Path(sys.executable)
    (verdict,) = judge(project, python, mutants, 2, lambda: calls.append(None))
    assert calls
    return verdict


def test_a_mutant_is_killed_by_the_tests_that_it_names(project: Project) -> None:
    sound = (project.tree / "vllm" / "core.py").read_bytes()
    verdict = verdict_of(project, "overlay tests/test_core.py::test_first")
    assert verdict.is_killed and verdict.mutant.title == "The first number is wrong."
    assert verdict.killed_by == (
        Killer(Kind.OVERLAY, "tests/test_core.py::test_first"),
    )
    assert (project.tree / "vllm" / "core.py").read_bytes() == sound
    installed = project.root.parent / "installed" / "vllm" / "core.py"
    assert installed.read_bytes() == sound
    assert command._report([verdict]).outcome.exit_code == 0


def test_a_mutant_survives_a_test_that_does_not_see_it(project: Project) -> None:
    both = (
        "overlay tests/test_core.py::test_first\n"
        "Killed-by: overlay tests/test_core.py::test_second"
    )
    verdict = verdict_of(project, both)
    assert [killer.test for killer in verdict.missed_by] == [
        "tests/test_core.py::test_second"
    ]
    assert not verdict.is_killed
    report = command._report([verdict])
    assert (report.outcome.exit_code, report.details) == (1, ("wrong-number",))


@pytest.mark.parametrize(
    ("test", "problem"),
    [
        ("test_of_something_else", "fails without it, too"),
        ("test_gone", "there is no test"),
    ],
)
def test_a_test_that_says_nothing_is_a_problem(
    project: Project, test: str, problem: str
) -> None:
    verdict = verdict_of(project, f"overlay tests/test_core.py::{test}")
    assert problem in verdict.problem and not verdict.is_killed


def test_a_patch_that_does_not_apply_is_a_problem(project: Project) -> None:
    patch = PATCH.replace("-    total += 1", "-    total += 5")
    verdict = verdict_of(project, "overlay tests/test_core.py::test_first", patch)
    assert "does not apply" in verdict.problem and not verdict.is_killed


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("No test is named.\n---\n", "needs a title and lines with Killed-by"),
        ("Killed-by: native a b\n---\n", "needs a title"),
        ("A title.\nKilled-by: luck\n---\n", "luck is none of native, binding"),
    ],
)
def test_a_bad_head_is_refused(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "bad.patch"
    path.write_text(text)
    with pytest.raises(ToolError, match=why) as error:
        Mutant.read(path)
    assert error.value.outcome is Outcome.BAD_PATCH


def test_only_the_mutants_named_are_tried() -> None:
    name = MUTANTS[0].name
    assert read_all(REPOSITORY, (name,)) == MUTANTS[:1]
    with pytest.raises(ToolError, match="no mutant nobody") as error:
        read_all(REPOSITORY, (name, "nobody"))
    assert error.value.outcome is Outcome.USAGE
