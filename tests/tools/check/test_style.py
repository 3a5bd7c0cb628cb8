"""Each of our files is judged by the rules of where it ends up."""

from pathlib import Path

from checkout import REPOSITORY, Checkout

from tools.base.project import Project
from tools.check.style import Check, checks


def judged(project: Project, folder: Path) -> dict[str, tuple[str, ...]]:
    """Return the commands of the checks that run in a folder, by their names."""
    found = [check for check in checks(project) if check.folder == folder]
    return {check.name: check.command for check in found}


def test_overlays_are_judged_by_upstreams_rules_where_they_are_laid(
    checkout: Checkout,
) -> None:
    project = checkout.project
    (project.root / "csrc_tagma" / "a.h").write_text("")
    (project.root / "tests" / "vllm" / "test_a.py").write_text("")
    found = judged(project, project.tree)
    for name, command in found.items():
        files = [word for word in command if "/" in word]
        python = ["vllm/tagma.py", "tests/test_a.py"]
        assert files == (["csrc/tagma/a.h"] if "C++" in name else python)
    assert {command[0] for command in found.values()} == {"ruff", "clang-format"}


def test_the_tools_and_their_tests_are_judged_by_ours() -> None:
    found = judged(Project.at(REPOSITORY), REPOSITORY)
    ruff = [command for command in found.values() if command[0] == "ruff"]
    assert len(ruff) == 2
    assert all({"tools", "tests/tools"} <= set(command) for command in ruff)
    assert ("mypy",) in found.values()


def test_a_faulty_file_is_named_with_the_rule(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import os\n")
    check = Check("rules", ("ruff", "check", "--no-cache", "bad.py"), tmp_path)
    assert any("F401" in line for line in check.complaints())
    (tmp_path / "bad.py").write_text("")
    assert check.complaints() == []
