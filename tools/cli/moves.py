"""What the commands that move in the series or change it have in common."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from tools.base import console
from tools.base.outcome import Outcome, Report
from tools.base.project import CHECKOUT, Project
from tools.stack.rewrite import Rewritten
from tools.stack.stack import Stack
from tools.tree.series import listed
from tools.tree.tree import Tree


class PatchName(click.ParamType[str]):
    """A patch, named by its number, its name or the start of one."""

    name = "patch"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the names that begin so, with or without the number."""
        root = ctx.find_root().params.get("root") or CHECKOUT
        series = Path(root) / "patches" / "series"
        names = listed(series.read_text("utf-8")) if series.is_file() else []
        return [
            CompletionItem(name)
            for name in names
            if name.startswith(incomplete) or name[5:].startswith(incomplete)
        ]


patch_argument = click.argument("patch", type=PatchName())


@contextmanager
def open_stack(
    project: Project, *, edits: bool = False, rebasing: bool = False
) -> Iterator[Stack]:
    """Hold the project's lock and read the series.

    Args:
        project: The project.
        edits: Accept edits in the work tree.
        rebasing: Accept a rebase under way.

    Raises:
        ToolError: The tree is not current or has edits, or a rebase is under way.
    """
    with project.lock():
        yield Stack.read(Tree(project), edits=edits, rebasing=rebasing)


def move(command: str, stack: Stack, position: int, next_step: str = "") -> Report:
    """Move the work tree and say where it stands."""
    outcome = Outcome.UNCHANGED if position == stack.position else Outcome.DONE
    if outcome is Outcome.DONE:
        stack = stack.go(position)
    return Report(
        command,
        outcome,
        place(stack),
        (next_step,) if next_step else (),
        data=place_data(stack),
    )


def place(stack: Stack) -> str:
    """Return where the work tree stands, for people."""
    last = f", the last is {stack.top}" if stack.top else ""
    return f"{stack.position} of {len(stack.names)} patches are applied{last}"


def place_data(stack: Stack) -> dict[str, object]:
    """Return where the work tree stands, for programs."""
    return {
        "applied": list(stack.names[: stack.position]),
        "popped": list(stack.names[stack.position :]),
        "path": str(stack.tree.project.tree),
    }


def show_rewritten(
    command: str, message: str, done: Rewritten, as_json: bool, project: Project
) -> None:
    """Print what a change of the series wrote."""
    # The user may be at work in the tree again.
    stack = Stack.read(Tree(project), edits=True)
    console.show(
        Report(
            command,
            done.outcome,
            f"{message}; {place(stack)}",
            details=done.details,
            data={
                **place_data(stack),
                "changed": list(done.changed),
                "kept": done.kept or None,
            },
        ),
        as_json,
    )
