"""What a release says about a name: its file, its signature, a digest of its code."""

import ast
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from tools.base.git import Repository
from tools.carry.syntax import FUNCTIONS, assigned, is_self, parameters

_PACKAGE = "vllm"
_MOST_HOPS = 5  # from one module's import to the next


@dataclass(frozen=True)
class Definition:
    """What a release says about a name.

    Args:
        path: The file that defines it.
        signature: Its parameters and result; of a class, its bases and the parameters
            of its `__init__`, or its fields.
        body: A digest of the code, without comments, layout and docstrings.
        parameters: The names of its parameters, without `self`; None: unknown.
        required: How many of the positional ones, and which keyword ones, must be
            given.
        positional: How many can be given by position; None: any number.
        any_keyword: It takes `**kwargs`.
    """

    path: str
    signature: tuple[str, ...]
    body: str
    parameters: tuple[str, ...] | None = None
    required: tuple[str, ...] = ()
    positional: int | None = None
    any_keyword: bool = True


class Definitions:
    """The definitions of one release, read from its tree."""

    def __init__(self, repository: Repository, tree: str):
        self.repository = repository
        self.tree = tree
        self._modules: dict[str, tuple[str, ast.Module] | None] = {}

    @cached_property
    def paths(self) -> frozenset[str]:
        """All Python files of the package."""
        listed = self.repository.git(
            "ls-tree", "-r", "-z", "--name-only", self.tree, "--", _PACKAGE
        )
        return frozenset(listed.text.split("\0"))

    def find(self, module: str, name: str) -> Definition | None:
        """Return the definition of a name; None if there is none."""
        return self._find(module, name, _MOST_HOPS)

    def _find(self, module: str, name: str, hops: int) -> Definition | None:
        found = self._module(module)
        if found is None or hops == 0:
            return None
        path, tree = found
        first, _, rest = name.partition(".")
        for node in _top(tree.body):
            match node:
                case ast.ImportFrom():
                    for alias in node.names:
                        if (alias.asname or alias.name) == first:
                            source = _absolute(module, path, node)
                            meant = f"{alias.name}.{rest}" if rest else alias.name
                            where = self._find(source, meant, hops - 1)
                            return where or self._submodule(f"{source}.{alias.name}")
                case ast.ClassDef() if node.name == first and rest:
                    return self._member(module, path, tree, node, rest, hops)
                case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                    if node.name == first and not rest:
                        return _definition(path, node)
                case ast.Assign() | ast.AnnAssign():
                    if first in _targets(node) and not rest:
                        return Definition(path, (), _digest(node))
        return self._submodule(f"{module}.{first}") if not rest else None

    def _submodule(self, module: str) -> Definition | None:
        found = self._module(module)
        return Definition(found[0], (), "") if found else None

    def _member(
        self,
        module: str,
        path: str,
        tree: ast.Module,
        node: ast.ClassDef,
        name: str,
        hops: int,
    ) -> Definition | None:
        """Return the definition of a class's member, in it or in its bases."""
        for part in node.body:
            if isinstance(part, FUNCTIONS) and part.name == name:
                return _definition(path, part)
            if isinstance(part, ast.Assign | ast.AnnAssign) and name in _targets(part):
                return Definition(path, (), _digest(part))
        for inner in ast.walk(node):
            if (
                isinstance(inner, ast.Attribute)
                and isinstance(inner.ctx, ast.Store)
                and is_self(inner.value)
                and inner.attr == name
            ):
                return Definition(path, (), "")
        for base in node.bases:
            if isinstance(base, ast.Name):
                found = self._find(module, f"{base.id}.{name}", hops - 1)
                if found:
                    return found
        return None

    def _module(self, module: str) -> tuple[str, ast.Module] | None:
        if module not in self._modules:
            self._modules[module] = self._parse(module)
        return self._modules[module]

    def _parse(self, module: str) -> tuple[str, ast.Module] | None:
        base = module.replace(".", "/")
        for path in (f"{base}.py", f"{base}/__init__.py"):
            if path in self.paths:
                blob = self.repository.git("cat-file", "blob", f"{self.tree}:{path}")
                try:
                    return path, ast.parse(blob.stdout, path)
                except SyntaxError:
                    return None
        return None


def _top(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, those in its branches too."""
    for node in body:
        yield node
        match node:
            case ast.If():
                yield from _top(node.body + node.orelse)
            case ast.Try():
                handlers = [part for handler in node.handlers for part in handler.body]
                yield from _top(node.body + handlers + node.orelse)


def _absolute(module: str, path: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    keep = len(parts) - node.level + path.endswith("__init__.py")
    return ".".join([*parts[:keep], *([node.module] if node.module else [])])


def _targets(node: ast.Assign | ast.AnnAssign) -> set[str]:
    return {target.id for target in assigned(node) if isinstance(target, ast.Name)}


def _definition(
    path: str, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
) -> Definition:
    if isinstance(node, ast.ClassDef):
        return _class_definition(path, node)
    args, returns = node.args, node.returns
    names = parameters(args)
    by_position = [a.arg for a in (*args.posonlyargs, *args.args)]
    given = [n for n in by_position if n not in ("self", "cls")]
    optional = set(by_position[len(by_position) - len(args.defaults) :])
    optional |= {
        arg.arg
        for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)
        if default is not None
    }
    return Definition(
        path,
        (*_parameters(args), *([f"-> {ast.unparse(returns)}"] if returns else [])),
        _digest(node),
        tuple(names),
        tuple(name for name in names if name not in optional),
        None if args.vararg else len(given),
        args.kwarg is not None,
    )


def _class_definition(path: str, node: ast.ClassDef) -> Definition:
    """Return what a call of the class takes, as far as its own body says."""
    bases = tuple(f"base {ast.unparse(base)}" for base in node.bases)
    init = [p for p in node.body if isinstance(p, FUNCTIONS) and p.name == "__init__"]
    if init:
        own = _definition(path, init[0])
        assert isinstance(own, Definition)
        return Definition(
            path,
            (*bases, *own.signature),
            _digest(node),
            own.parameters,
            own.required,
            own.positional,
            own.any_keyword,
        )
    fields = [ast.unparse(p) for p in node.body if isinstance(p, ast.AnnAssign)]
    return Definition(path, (*bases, *fields), _digest(node))


def _parameters(args: ast.arguments) -> list[str]:
    """Return each parameter as it is written, with its type and default.

    >>> _parameters(ast.parse("def f(a, b: int=1, *, c=2): 0").body[0].args)
    ['a', 'b: int=1', '*', 'c=2']
    """
    by_position = [*args.posonlyargs, *args.args]
    lacking = len(by_position) - len(args.defaults)
    defaults = [*[None] * lacking, *args.defaults]
    parts = [_parameter(a, d) for a, d in zip(by_position, defaults, strict=True)]
    if args.vararg:
        parts.append(f"*{_parameter(args.vararg, None)}")
    elif args.kwonlyargs:
        parts.append("*")
    parts += [
        _parameter(a, d) for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True)
    ]
    return parts + ([f"**{_parameter(args.kwarg, None)}"] if args.kwarg else [])


def _parameter(arg: ast.arg, default: ast.expr | None) -> str:
    return ast.unparse(arg) + (f"={ast.unparse(default)}" if default else "")


def _digest(node: ast.AST) -> str:
    for part in ast.walk(node):
        if isinstance(part, ast.ClassDef | FUNCTIONS) and ast.get_docstring(part):
            del part.body[0]  # an empty body dumps as well
    return hashlib.sha256(ast.dump(node).encode()).hexdigest()[:16]
