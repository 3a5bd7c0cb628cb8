"""C++ programs of csrc_tagma/, each with a CMakeLists.txt of its own."""

from pathlib import Path

from tools.base import console
from tools.base.process import run_watched
from tools.base.project import Project
from tools.compile.extension import tool


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
            run_watched(
                [tool("cmake"), *arguments],
                output=project.build / "logs" / f"engine-{name}-{step}.log",
                on_line=_ignore,
            )
    return folder


def _ignore(line: str) -> None:
    """Leave a line to the log."""
