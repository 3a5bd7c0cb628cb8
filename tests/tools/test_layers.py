"""The packages of tools/ are layers: what a module imports lies beside or below it."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from checkout import REPOSITORY

# From the bottom up; the group imports the commands, which share the rest of cli.
LAYERS = (
    *("base", "source", "tree", "stack", "carry", "compile", "serve", "measure"),
    *("replay", "picture", "check", "cli", "commands", "cli.group", "__main__"),
)
# Runs in the serving environment, which has none of our other packages; a layer may
# import it for the paths of its programs.
INSIDE = "inside"


class Imports(ast.NodeVisitor):
    """Collects what a module imports, in functions too, but not for types alone."""

    def __init__(self) -> None:
        self.found: set[tuple[str, ...]] = set()

    def visit_If(self, node: ast.If) -> None:
        name = ast.unparse(node.test)
        if name not in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            self.visit(node.test)
            for statement in node.body:
                self.visit(statement)
        for statement in node.orelse:
            self.visit(statement)

    def visit_Import(self, node: ast.Import) -> None:
        self.found |= {tuple(alias.name.split(".")) for alias in node.names}

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        assert not node.level, "relative imports hide the layer"
        module = tuple((node.module or "").split("."))
        self.found |= {(*module, alias.name) for alias in node.names}


def read(root: Path) -> dict[str, set[str]]:
    """Return the modules of root/tools, each with those of them that it imports."""
    folder = root / "tools"
    sources = {_name(path, folder): path for path in sorted(folder.rglob("*.py"))}
    return {
        name: set(_own(path.read_text("utf-8"), set(sources))) - {name}
        for name, path in sources.items()
    }


def _name(path: Path, folder: Path) -> str:
    """Return a module's name below tools; a package's is its folder's."""
    parts = path.relative_to(folder).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _own(source: str, modules: set[str]) -> Iterator[str]:
    visitor = Imports()
    visitor.visit(ast.parse(source))
    for top, *rest in visitor.found:
        if top == "tools":
            # The last part may be a name in the module.
            names = (".".join(rest[:length]) for length in range(len(rest), -1, -1))
            yield next(name for name in names if name in modules)


def layer(module: str) -> int:
    """Return the height of a module's layer."""
    own = [name for name in LAYERS if f"{module}.".startswith(f"{name}.")]
    assert own, f"{module} has no place in LAYERS"
    return LAYERS.index(max(own, key=len))


def goes_down(module: str, imported: str) -> bool:
    """Whether an import is of a neighbour or of a layer below."""
    inside, theirs = (name.split(".")[0] == INSIDE for name in (module, imported))
    if inside or theirs or "" in (module, imported):  # "": tools itself, which is empty
        return theirs or not inside
    return layer(module) >= layer(imported)


def upward(modules: dict[str, set[str]]) -> list[str]:
    """Return the imports that do not go down."""
    return sorted(
        f"{module} imports {other}"
        for module, imported in modules.items()
        for other in imported
        if not goes_down(module, other)
    )


MODULES = read(REPOSITORY)


def test_imports_go_down_only() -> None:
    assert upward(MODULES) == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    try:
        TopologicalSorter(MODULES).prepare()
    except CycleError as error:
        pytest.fail(" ← ".join(error.args[1]))


@pytest.mark.parametrize(
    ("source", "imported"),
    [
        ("import tools.base.git", {"base.git"}),
        ("from tools.base.git import Repository", {"base.git"}),
        ("from tools.base import git, process", {"base.git", "base.process"}),
        ("def f():\n    from tools import base", {"base"}),
        ("if TYPE_CHECKING:\n    import tools.base.git", set()),
        ("if TYPE_CHECKING:\n    pass\nelse:\n    import tools.base", {"base"}),
        ("import os, click", set()),
    ],
)
def test_an_import_is_seen_wherever_it_stands(source: str, imported: set[str]) -> None:
    modules = {"", "base", "base.git", "base.process"}
    assert set(_own(source, modules)) == imported


def test_upward_imports_are_named() -> None:
    modules = {
        "tree.tree": {"base.git", "carry.journal"},
        "commands.pop": {"cli.options", "cli.group"},
        "inside.probe": {"inside.model", "base.git"},
        "measure.demo": {"inside"},
    }
    assert upward(modules) == [
        "commands.pop imports cli.group",
        "inside.probe imports base.git",
        "tree.tree imports carry.journal",
    ]
