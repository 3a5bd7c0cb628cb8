"""`push`: apply the next patches to the work tree."""

import click

from tools.base import console
from tools.cli.moves import move, open_stack
from tools.cli.options import Settings, json_option


@click.command("push")
@click.argument("count", type=click.IntRange(1), default=1)
@click.option("--all", "everything", is_flag=True, help="Apply all patches.")
@json_option
@click.pass_obj
def command(settings: Settings, count: int, everything: bool, as_json: bool) -> None:
    """Apply the next COUNT patches to the work tree; one by default.

    Example: python -m tools push --all
    """
    with open_stack(settings.project) as stack:
        last = len(stack.names)
        position = last if everything else min(stack.position + count, last)
        report = move("push", stack, position)
    console.show(report, as_json)
