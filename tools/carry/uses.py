"""What the overlays use of upstream: names, calls and overrides, read by ast.

Nothing is imported, so that any release can be looked at from any other's
environment.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tools.carry.overlay_code import Name, OverlayModule
from tools.carry.syntax import FUNCTIONS, assigned, is_self, parameters


class UseKind(Enum):
    """How an overlay uses a name of upstream."""

    IMPORT = "import"
    CALL = "call"
    OVERRIDE = "override"
    INHERIT = "inherit"  # reads or calls what its base class has


@dataclass(frozen=True)
class Call:
    """The shape of a call.

    Args:
        positional: How many positional arguments it has.
        keywords: The names of its keyword arguments.
        open: It has `*` or `**` arguments, so more may come.
    """

    positional: int
    keywords: tuple[str, ...]
    open: bool


@dataclass(frozen=True)
class Use:
    """A name of upstream that an overlay uses.

    Args:
        file: The overlay's file, below the project.
        line: Where, counted from 1.
        kind: How.
        module: The upstream module.
        name: The name in it; with a dot for a member of a class.
        call: The call's shape, for a CALL.
        accepts: The parameters that the overlay's own function accepts, for an
            OVERRIDE; None: any.
        instead: What is imported in its place where a release lacks it.
    """

    file: str
    line: int
    kind: UseKind
    module: str
    name: str
    call: Call | None = None
    accepts: tuple[str, ...] | None = None
    instead: tuple[Name, ...] = ()

    @property
    def target(self) -> str:
        """The full name."""
        return f"{self.module}.{self.name}"


def collect(root: Path) -> list[Use]:
    """Return what the Python overlays of a checkout use, in the order of files."""
    return [
        use for module in OverlayModule.read_all(root) for use in _Reader(module).read()
    ]


class _Reader:
    """Reads the uses out of one overlay file."""

    def __init__(self, module: OverlayModule):
        self.module = module
        self.file = module.file

    def read(self) -> list[Use]:
        uses = list(self._imports())
        for node in ast.walk(self.module.tree):
            if isinstance(node, ast.Call):
                uses += self._call(node)
            elif isinstance(node, ast.ClassDef):
                uses += self._class(node)
        return sorted(set(uses), key=lambda use: (use.line, use.target, use.kind.value))

    def _imports(self) -> Iterator[Use]:
        for node, alias in self.module.imports:
            name = (node.module or "", alias.name)
            instead = self.module.alternatives.get(name, ())
            yield Use(self.file, node.lineno, UseKind.IMPORT, *name, instead=instead)

    def _call(self, node: ast.Call) -> Iterator[Use]:
        imported = self.module.upstream
        if isinstance(node.func, ast.Name) and node.func.id in imported:
            module, name = imported[node.func.id]
            instead = self.module.alternatives.get((module, name), ())
            shape = _shape(node)
            yield Use(self.file, node.lineno, UseKind.CALL, module, name, shape,
                      instead=instead)  # fmt: skip

    def _class(self, node: ast.ClassDef) -> Iterator[Use]:
        """Yield what a class overrides and inherits, of each base of upstream's."""
        own = {part.name: part for part in node.body if isinstance(part, FUNCTIONS)}
        inherited = list(_inherited(node, set(own)))
        for module, name in self.module.bases(node):
            for member, function in own.items():
                args = function.args
                yield Use(
                    self.file,
                    function.lineno,
                    UseKind.OVERRIDE,
                    module,
                    f"{name}.{member}",
                    accepts=None if args.kwarg else tuple(parameters(args)),
                )
            for part, call in inherited:
                yield Use(
                    self.file,
                    part.lineno,
                    UseKind.CALL if call else UseKind.INHERIT,
                    module,
                    f"{name}.{part.attr}",
                    _shape(call) if call else None,
                )


def _inherited(
    node: ast.ClassDef, own: set[str]
) -> Iterator[tuple[ast.Attribute, ast.Call | None]]:
    """Yield the attributes that a class has from a base, each with its call."""
    parts = list(ast.walk(node))
    set_here = {
        target.attr
        for part in parts
        if isinstance(part, ast.Assign | ast.AnnAssign)
        for target in assigned(part)
        if isinstance(target, ast.Attribute)
    }
    calls = {part.func: part for part in parts if isinstance(part, ast.Call)}
    for part in parts:
        if not isinstance(part, ast.Attribute) or part.attr in set_here:
            continue
        of_self = is_self(part.value) and part.attr not in own
        if of_self or _is_super(part.value):
            yield part, calls.get(part)


def _is_super(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "super"
    )


def _shape(node: ast.Call) -> Call:
    starred = any(isinstance(arg, ast.Starred) for arg in node.args)
    keywords = tuple(k.arg for k in node.keywords if k.arg)
    return Call(
        sum(not isinstance(arg, ast.Starred) for arg in node.args),
        keywords,
        starred or len(keywords) < len(node.keywords),
    )
