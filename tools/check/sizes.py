"""The sizes that keep files and functions readable at a glance."""

import ast
from collections.abc import Iterator
from pathlib import Path

MODULE_LINES, FUNCTION_LINES, SOURCE_LINES = 250, 40, 900


def too_long(root: Path) -> Iterator[str]:
    """Yield what is over its limit: modules and functions of tools/, C++ files.

    Lines are counted as `wc -l` does; a function's from `def` to its last line, with
    nested functions and its docstring.

    Args:
        root: The checkout.
    """
    for path in sorted((root / "tools").rglob("*.py")):
        name = path.relative_to(root).as_posix()
        text = path.read_text("utf-8")
        yield from _over(name, text.count("\n"), MODULE_LINES)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno
                length = node.end_lineno - node.lineno + 1
                place = f"{name}:{node.lineno}: {node.name}"
                yield from _over(place, length, FUNCTION_LINES)
    for path in sorted((root / "csrc_tagma").iterdir()):
        name = path.relative_to(root).as_posix()
        if path.is_file():
            lines = path.read_text("utf-8").count("\n")
            yield from _over(name, lines, SOURCE_LINES)


def _over(name: str, lines: int, most: int) -> Iterator[str]:
    if lines > most:
        yield f"{name}: {lines} lines, at most {most}"
