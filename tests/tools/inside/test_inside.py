"""Programs of the serving environment need nothing of the tools' own."""

import ast
from pathlib import Path

import pytest

from tools import inside


def imported(path: Path) -> set[str]:
    """Return all modules that a file imports, also inside functions."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add("." * node.level + (node.module or ""))
    return names


@pytest.mark.parametrize("path", inside.sources(), ids=lambda path: path.name)
def test_a_module_imports_only_its_neighbours_of_the_tools(path: Path) -> None:
    of_tools = {name for name in imported(path) if name.startswith((".", "tools"))}
    assert all(name.startswith("tools.inside.") for name in of_tools), of_tools


def test_the_probe_is_copied_alone_so_it_has_no_neighbours() -> None:
    probe = inside.FOLDER / "probe.py"
    assert not {name for name in imported(probe) if name.startswith((".", "tools"))}
