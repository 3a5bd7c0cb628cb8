"""What reading Python by ast needs in more than one place."""

import ast

FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


def is_self(node: ast.expr) -> bool:
    """Whether an expression is `self`."""
    return isinstance(node, ast.Name) and node.id == "self"


def parameters(args: ast.arguments) -> list[str]:
    """Return the names of a function's parameters, without `self` and `cls`."""
    listed = [*args.posonlyargs, *args.args, *args.kwonlyargs]
    return [arg.arg for arg in listed if arg.arg not in ("self", "cls")]


def assigned(node: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    """Return what an assignment gives a value to."""
    return node.targets if isinstance(node, ast.Assign) else [node.target]
