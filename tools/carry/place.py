"""Where changes stand: line ranges, and the Python function or class around them."""

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass

from tools.base.git import Repository
from tools.tree.hunk import split_lines

_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


@dataclass(frozen=True)
class LineChange:
    """One changed place between two versions of a file.

    Args:
        old: Its old lines, counted from 1; empty at an insertion, which is before
            `old.start`.
        new: Its new lines, in the same way.
        text: The removed and the added lines, each with its sign.
    """

    old: range
    new: range
    text: tuple[str, ...]


def changes(repository: Repository, old: str, new: str) -> list[LineChange]:
    """Return the places that differ between two blobs."""
    done = repository.git(
        "diff", "--unified=0", "--no-color", "--no-ext-diff", "--text", old, new
    )
    found: list[LineChange] = []
    for line in done.text.split("\n"):
        if match := _HUNK.match(line):
            numbers = [1 if n is None else int(n) for n in match.groups()]
            found.append(LineChange(_range(*numbers[:2]), _range(*numbers[2:]), ()))
        elif found and line[:1] in ("+", "-"):
            last = found[-1]
            found[-1] = LineChange(last.old, last.new, (*last.text, line))
    return found


def _range(start: int, count: int) -> range:
    # git names the line before an insertion.
    return range(start, start + count) if count else range(start + 1, start + 1)


def distance(a: range, b: range) -> int:
    """Return how many unchanged lines lie between two places; 0 if they touch."""
    return max(0, b.start - a.stop, a.start - b.stop)


def overlap(change: range, span: range) -> bool:
    """Whether a change replaces lines of a span, or adds some inside it.

    >>> overlap(range(3, 4), range(3, 6)), overlap(range(3, 3), range(3, 6))
    (True, False)
    """
    if change:
        return change.start < span.stop and span.start < change.stop
    return span.start < change.start < span.stop


class Scopes:
    r"""The functions and classes of a Python file, by line.

    >>> scopes = Scopes(b"class A:\n    def f(self):\n        pass\n")
    >>> scopes.at(1), scopes.at(3), scopes.at(9)
    ('A', 'A.f', '')
    """

    def __init__(self, source: bytes):
        self.spans: list[tuple[range, str]] = []
        self.known = True
        try:
            self._visit(ast.parse(source), "")
        except (SyntaxError, ValueError):
            self.known = False

    def _visit(self, node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = prefix
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{prefix}.{child.name}" if prefix else child.name
                first = min([child.lineno, *(d.lineno for d in child.decorator_list)])
                self.spans.append((range(first, (child.end_lineno or 0) + 1), name))
            self._visit(child, name)

    def at(self, line: int) -> str:
        """Return the innermost scope of a line; "" is the module."""
        inside = [(len(span), name) for span, name in self.spans if line in span]
        return min(inside)[1] if inside else ""


def scopes_of_change(
    repository: Repository,
    old: str,
    new: str,
    found: Iterable[LineChange] | None = None,
) -> set[str] | None:
    """Return the scopes in which two versions of a Python file differ.

    Args:
        repository: Where the blobs are.
        old: The old blob.
        new: The new blob.
        found: Their differences, if they are known already.

    Returns:
        The scopes of added lines, and of removed ones where none was added. None: a
        version is no Python that this interpreter can read.
    """
    sides = [repository.git("cat-file", "blob", blob).stdout for blob in (old, new)]
    before, after = (Scopes(side) for side in sides)
    if not (before.known and after.known):
        return None
    old_lines, new_lines = (split_lines(side) for side in sides)
    scopes = set()
    for change in changes(repository, old, new) if found is None else found:
        side, lines, span = (
            (after, new_lines, change.new) if change.new else
            (before, old_lines, change.old)
        )  # fmt: skip
        scopes |= {side.at(n) for n in span if lines[n - 1].strip()}
    return scopes
