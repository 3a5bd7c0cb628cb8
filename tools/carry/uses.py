"""What the overlays use of upstream: names, signatures and bodies, read by ast.

Nothing is imported, so that any release can be looked at from any other's
environment.
"""

import ast
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path

from tools.base.git import Repository
from tools.tree import overlay

_PACKAGE = "vllm"


class Kind(Enum):
    """How an overlay uses a name of upstream."""

    IMPORT = "import"
    CALL = "call"
    OVERRIDE = "override"
    INHERIT = "inherit"  # reads or calls what its base class has


class Change(Enum):
    """What became of a used name, worst last."""

    SAME = "same"
    BODY = "body"
    SIGNATURE = "signature"
    MISFIT = "misfit"  # the overlay's call or override does not fit any more
    MISSING = "missing"

    @property
    def weight(self) -> int:
        """The risk of it: 0 none, 1 to read, 3 to look at closely, 5 broken."""
        return {"same": 0, "body": 1, "signature": 3}.get(self.value, 5)


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
    """

    file: str
    line: int
    kind: Kind
    module: str
    name: str
    call: Call | None = None
    accepts: tuple[str, ...] | None = None

    @property
    def target(self) -> str:
        """The full name."""
        return f"{self.module}.{self.name}"


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


def collect(root: Path) -> list[Use]:
    """Return what the Python overlays of a checkout use, in the order of files."""
    files = list(overlay.files(root))
    targets = {file.target for file in files}
    uses = []
    for file in files:
        if file.target.endswith(".py"):
            name = str(file.source.relative_to(root))
            tree = ast.parse(file.source.read_bytes(), name)
            uses += _Reader(name, targets).read(tree)
    return uses


class _Reader:
    """Reads the uses out of one overlay file."""

    def __init__(self, file: str, overlays: set[str]):
        self.file = file
        self.overlays = overlays
        self.imported: dict[str, tuple[str, str]] = {}

    def read(self, tree: ast.Module) -> list[Use]:
        uses = list(self._imports(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                uses += self._call(node)
            elif isinstance(node, ast.ClassDef):
                uses += self._class(node)
        return sorted(set(uses), key=lambda use: (use.line, use.target, use.kind.value))

    def _imports(self, tree: ast.Module) -> Iterator[Use]:
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or node.level or not node.module:
                continue
            module = node.module
            if module.split(".")[0] != _PACKAGE or self._is_overlay(module):
                continue
            for alias in node.names:
                if self._is_overlay(f"{module}.{alias.name}"):
                    continue
                self.imported[alias.asname or alias.name] = (module, alias.name)
                yield Use(self.file, node.lineno, Kind.IMPORT, module, alias.name)

    def _is_overlay(self, module: str) -> bool:
        path = module.replace(".", "/")
        return bool(
            {f"{path}.py", f"{path}.pyi", f"{path}/__init__.py"} & self.overlays
        )

    def _call(self, node: ast.Call) -> Iterator[Use]:
        if isinstance(node.func, ast.Name) and node.func.id in self.imported:
            module, name = self.imported[node.func.id]
            yield Use(self.file, node.lineno, Kind.CALL, module, name, _shape(node))

    def _class(self, node: ast.ClassDef) -> Iterator[Use]:
        bases = [
            self.imported[base.id]
            for base in node.bases
            if isinstance(base, ast.Name) and base.id in self.imported
        ]
        own = {part.name: part for part in node.body if isinstance(part, _FUNCTIONS)}
        assigned = {
            target.attr
            for part in ast.walk(node)
            if isinstance(part, ast.Assign | ast.AnnAssign)
            for target in (
                part.targets if isinstance(part, ast.Assign) else [part.target]
            )
            if isinstance(target, ast.Attribute)
        }
        calls = {
            part.func: part
            for part in ast.walk(node)
            if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute)
        }
        members = [
            part
            for part in ast.walk(node)
            if isinstance(part, ast.Attribute)
            and (
                _is_super(part.value) or (_is_self(part.value) and part.attr not in own)
            )
            and part.attr not in assigned
        ]
        for module, base in bases:
            for name, function in own.items():
                accepts = None if function.args.kwarg else tuple(_names(function.args))
                yield Use(
                    self.file,
                    function.lineno,
                    Kind.OVERRIDE,
                    module,
                    f"{base}.{name}",
                    accepts=accepts,
                )
            for part in members:
                call = calls.get(part)
                yield Use(
                    self.file,
                    part.lineno,
                    Kind.CALL if call else Kind.INHERIT,
                    module,
                    f"{base}.{part.attr}",
                    _shape(call) if call else None,
                )


_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


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


def _names(args: ast.arguments) -> list[str]:
    listed = [*args.posonlyargs, *args.args, *args.kwonlyargs]
    return [arg.arg for arg in listed if arg.arg not in ("self", "cls")]


class Release:
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
        return self._find(module, name, 5)

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
            if isinstance(part, _FUNCTIONS) and part.name == name:
                return _definition(path, part)
            if isinstance(part, ast.Assign | ast.AnnAssign) and name in _targets(part):
                return Definition(path, (), _digest(part))
        for inner in ast.walk(node):
            if (
                isinstance(inner, ast.Attribute)
                and isinstance(inner.ctx, ast.Store)
                and _is_self(inner.value)
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
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _definition(
    path: str, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
) -> Definition:
    if isinstance(node, ast.ClassDef):
        return _class_definition(path, node)
    args, returns = node.args, node.returns
    names = _names(args)
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
    init = [p for p in node.body if isinstance(p, _FUNCTIONS) and p.name == "__init__"]
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
        if isinstance(part, ast.ClassDef | _FUNCTIONS) and ast.get_docstring(part):
            del part.body[0]  # an empty body dumps as well
    return hashlib.sha256(ast.dump(node).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Finding:
    """What two releases say about one use.

    Args:
        use: The use.
        change: The worst that is true of it.
        old: The signature in the old release.
        new: The signature in the new one.
        why: For a MISFIT, what does not fit.
        moved: The file that has it now, if that is another.
    """

    use: Use
    change: Change
    old: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    why: str = ""
    moved: str = ""


def compare(uses: list[Use], old: Release, new: Release) -> list[Finding]:
    """Return what became of each use that the old release can satisfy."""
    findings = []
    for use in uses:
        before = old.find(use.module, use.name)
        if before is None:
            continue  # a member that only the overlay has, or a patch adds
        after = new.find(use.module, use.name)
        if after is None:
            findings.append(Finding(use, Change.MISSING, before.signature))
            continue
        why = misfit(use, after)
        # What does not fit the old release either is no news, and no call of ours
        # that this reading understands.
        if why and not misfit(use, before):
            change = Change.MISFIT
        elif before.signature != after.signature:
            change, why = Change.SIGNATURE, ""
        else:
            change = Change.SAME if before.body == after.body else Change.BODY
            why = ""
        moved = after.path if after.path != before.path else ""
        findings.append(
            Finding(use, change, before.signature, after.signature, why, moved)
        )
    return findings


def misfit(use: Use, found: Definition) -> str:
    """Return why a call or an override does not fit a definition; "" if it does."""
    if found.parameters is None:
        return ""
    if use.kind is Kind.OVERRIDE and use.accepts is not None:
        lacking = [name for name in found.parameters if name not in use.accepts]
        return f"the override lacks {', '.join(lacking)}" if lacking else ""
    call = use.call
    if use.kind is not Kind.CALL or call is None or call.open:
        return ""
    strangers = [k for k in call.keywords if k not in found.parameters]
    if strangers and not found.any_keyword:
        return f"it takes no {', '.join(strangers)}"
    if found.positional is not None and call.positional > found.positional:
        return f"it takes {found.positional} positional arguments"
    given = {*found.parameters[: call.positional], *call.keywords}
    if missing := [name for name in found.required if name not in given]:
        return f"it also needs {', '.join(missing)}"
    return ""
