"""What all commands share: help with an example, and completion."""

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from checkout import REPOSITORY, Checkout
from click.testing import CliRunner

from tools.cli.group import main
from tools.cli.sections import SECTIONS

COMMANDS = main.list_commands(click.Context(main))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example_and_json(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None and command.name == name
    assert f"Example: python -m tools {name}" in (command.help or "") or (
        "&& python -m tools " + name in (command.help or "")
    )
    assert "--json" in [option for p in command.params for option in p.opts]


def test_each_command_has_one_place_in_the_help() -> None:
    placed = [name for names in SECTIONS.values() for name in names]
    assert sorted(placed) == COMMANDS


def test_help_lists_the_commands_by_what_one_wants_to_do() -> None:
    text = CliRunner().invoke(main, ["--help"]).output
    heads = [line[:-1].lower() for line in re.findall(r"^\S.*:$", text, re.M)]
    assert heads[1:] == list(SECTIONS)  # behind the options
    listed = re.findall(r"^  ([a-z][a-z-]*)  ", text, re.M)
    assert listed == [name for names in SECTIONS.values() for name in names]


@pytest.mark.parametrize(
    "words, expected",
    [
        ("goto 00", ["0001-count.patch", "0002-crlf.patch"]),
        ("edit cr", ["0002-crlf.patch"]),
        ("fold 2 --into c", ["0001-count.patch", "0002-crlf.patch"]),
        ("ref", ["refresh"]),
    ],
)
def test_completion_knows_commands_and_patches(
    checkout: Checkout, words: str, expected: list[str]
) -> None:
    line = f"tagma --project {checkout.project.root} {words}"
    done = subprocess.run(
        [sys.executable, "-m", "tools"],
        cwd=REPOSITORY,
        env={
            **os.environ,
            "_TAGMA_COMPLETE": "bash_complete",
            "COMP_WORDS": "\n".join(line.split()),
            "COMP_CWORD": str(len(line.split()) - 1),
        },
        capture_output=True,
        text=True,
    )
    assert [line.split(",")[1] for line in done.stdout.splitlines()] == expected


def test_program_runs_from_any_folder(checkout: Checkout) -> None:
    """Its name is what a shell completes."""
    program = REPOSITORY / "tools" / "bin" / "tagma"
    done = subprocess.run(
        [program, "--project", checkout.project.root, "series"],
        cwd=checkout.project.root,
        capture_output=True,
        text=True,
    )
    assert "0002-crlf.patch" in done.stdout, done.stderr


@pytest.mark.parametrize(
    "program", ["tools/bin/tagma", "link", "build/tools/bin/python"]
)
def test_tools_work_in_a_folder_with_tools_of_its_own(
    checkout: Checkout, tmp_path: Path, program: str
) -> None:
    """As build/tree has, where one edits."""
    (checkout.project.tree / "tools").mkdir()
    (checkout.project.tree / "tools" / "__init__.py").write_text("raise SystemExit(9)")
    (tmp_path / "link").symlink_to(REPOSITORY / "tools" / "bin" / "tagma")
    path = tmp_path / "link" if program == "link" else REPOSITORY / program
    module = ["-m", "tools"] if path.name == "python" else []
    done = subprocess.run(
        [path, *module, "--project", checkout.project.root, "status"],
        cwd=checkout.project.tree,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "vllm 1.0" in done.stdout


def test_tagma_means_its_own_tools_in_another_checkout(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "__init__.py").touch()
    (tmp_path / "tools" / "__main__.py").write_text("raise SystemExit(9)")
    done = subprocess.run(
        [REPOSITORY / "tools" / "bin" / "tagma", "--help"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
