"""CMake, and the programs of csrc_tagma/ that have a CMakeLists.txt of their own."""

import sys
from collections.abc import Mapping
from pathlib import Path

from tools.base import console
from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.base.process import find_program, run_watched
from tools.base.project import Project


def tool(name: str) -> Path:
    """Return a program of the tools' own environment, or else of PATH.

    Raises:
        ToolError: There is none.
    """
    own = Path(sys.executable).with_name(name)
    found = own if own.is_file() else find_program(name)
    if not found:
        raise ToolError(
            Outcome.MISSING_TOOL,
            f"{name} is not installed",
            ("Run the command through make, which installs the tools' environment",),
        )
    return found


def run(
    log: Path, *arguments: str | Path, env: Mapping[str, str] | None = None
) -> None:
    """Run CMake; what it prints goes to the log alone.

    Args:
        log: The file.
        arguments: CMake's arguments.
        env: The whole environment of the process; None inherits ours.

    Raises:
        ToolError: CMake is missing or failed.
    """
    command = [tool("cmake"), *arguments]
    run_watched(command, output=log, on_line=lambda line: None, env=env)


def build(project: Project, name: str, *definitions: str) -> Path:
    """Compile what is out of date and return the folder of the programs.

    Args:
        project: The project.
        name: The folder in csrc_tagma/, for example "bench".
        definitions: Further cache entries, as NAME=VALUE.

    Raises:
        ToolError: A tool is missing, or the compilation fails.
    """
    folder = project.build / f"engine-{name}"
    entries = (f"CMAKE_MAKE_PROGRAM={tool('ninja')}", *definitions)
    source = project.root / "csrc_tagma" / name
    steps: dict[str, list[str | Path]] = {
        "configure": ["-G", "Ninja", "-S", source, "-B", folder],
        "compile": ["--build", folder],
    }
    steps["configure"] += [f"-D{entry}" for entry in entries]
    with console.step(f"compile {source.relative_to(project.root)}"):
        for step, arguments in steps.items():
            run(project.build / "logs" / f"engine-{name}-{step}.log", *arguments)
    return folder
