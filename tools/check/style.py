"""Style: of the tools by our rules, of what is laid into the tree by upstream's."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.base.process import run
from tools.base.project import Project
from tools.compile.cmake import tool
from tools.tree import overlay

_OURS = ("tools", "tests/tools", "tests/upstream")
_PYTHON, _CPP = (".py", ".pyi"), (".h", ".cpp")


@dataclass(frozen=True)
class Check:
    """A program that judges files.

    Args:
        name: What it checks.
        command: The program, one of the tools' environment, and its arguments.
        folder: Where it runs, for its settings.
    """

    name: str
    command: tuple[str, ...]
    folder: Path

    def complaints(self) -> list[str]:
        """Return what it says; nothing, if it is content."""
        program, *arguments = self.command
        done = run([tool(program), *arguments], cwd=self.folder, check=False)
        if done.status == 0:
            return []
        return [*done.text.splitlines(), *done.error_text.splitlines()]


def checks(project: Project) -> Iterator[Check]:
    """Return all checks.

    Args:
        project: The project, with an applied tree.
    """
    laid = [file.target for file in overlay.files(project.root)]
    python = tuple(path for path in laid if path.endswith(_PYTHON))
    cpp = tuple(path for path in laid if path.endswith(_CPP))
    yield Check("rules of the tools", ("ruff", "check", *_OURS), project.root)
    form = ("ruff", "format", "--check", *_OURS)
    yield Check("form of the tools", form, project.root)
    yield Check("types of the tools", ("mypy",), project.root)
    for name, command, files in (
        ("rules of Python", "ruff check --no-cache", python),
        ("form of Python", "ruff format --no-cache --check", python),
        ("form of C++", "clang-format --dry-run --Werror", cpp),
    ):
        if files:
            whole = (*command.split(), *files)
            yield Check(f"upstream's {name}", whole, project.tree)
