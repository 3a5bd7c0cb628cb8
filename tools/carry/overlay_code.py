"""The Python of the overlays, parsed: which names of it come from upstream."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tools.tree import overlay

_PACKAGE = "vllm"
Name = tuple[str, str]  # a module, and a name in it


@dataclass(frozen=True)
class OverlayModule:
    """One file.

    Args:
        file: Its path below the project.
        tree: Its code.
        others: The modules that overlays are, by name.
    """

    file: str
    tree: ast.Module
    others: "dict[str, OverlayModule]"

    @classmethod
    def read_all(cls, root: Path) -> "list[OverlayModule]":
        """Read the Python overlays of a checkout, in the order of files."""
        modules = []
        named: dict[str, OverlayModule] = {}
        for file in overlay.files(root):
            stem, dot, suffix = file.target.rpartition(".")
            if dot and suffix in ("py", "pyi"):
                name = str(file.source.relative_to(root))
                tree = ast.parse(file.source.read_bytes(), name)
                module = cls(name, tree, named)
                named[stem.replace("/", ".").removesuffix(".__init__")] = module
                modules += [module] if suffix == "py" else []
        return modules

    @property
    def imports(self) -> Iterator[tuple[ast.ImportFrom, ast.alias]]:
        """What it imports from upstream by name, inside functions too."""
        for node, alias in self._imports():
            module = node.module or ""
            if not {module, f"{module}.{alias.name}"} & self.others.keys():
                yield node, alias

    @cached_property
    def upstream(self) -> dict[str, Name]:
        """What its imports of upstream's names mean, by what it calls them."""
        return {
            alias.asname or alias.name: (node.module or "", alias.name)
            for node, alias in self.imports
        }

    @cached_property
    def alternatives(self) -> dict[Name, tuple[Name, ...]]:
        """The names that a `try` imports in place of one that a release lacks."""
        found: dict[Name, tuple[Name, ...]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Try):
                named = [
                    (alias.asname or alias.name, (part.module or "", alias.name))
                    for part in ast.walk(node)
                    if isinstance(part, ast.ImportFrom)
                    for alias in part.names
                ]
                for local, name in named:
                    others = [o for other, o in named if other == local and o != name]
                    found[name] = tuple(others)
        return found

    def bases(self, node: ast.ClassDef) -> list[Name]:
        """Return a class's bases of upstream's, those behind overlays' classes too."""
        found: list[Name] = []
        for base in node.bases:
            if isinstance(base, ast.Name):
                found += self._meant(base.id)
        return list(dict.fromkeys(found))

    def _meant(self, name: str) -> list[Name]:
        if name in self.upstream:
            return [self.upstream[name]]
        for node in self.tree.body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                return self.bases(node)
        for node, alias in self._imports():
            if (alias.asname or alias.name) == name and node.module in self.others:
                return self.others[node.module]._meant(alias.name)
        return []

    def _imports(self) -> Iterator[tuple[ast.ImportFrom, ast.alias]]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and not node.level:
                package = (node.module or "").partition(".")[0]
                if package == _PACKAGE:
                    yield from ((node, alias) for alias in node.names)
