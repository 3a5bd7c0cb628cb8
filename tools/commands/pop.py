"""`pop`: take the last patches off the work tree."""

import click

from tools.base import console
from tools.cli.moves import move, open_stack
from tools.cli.options import Settings, json_option


@click.command("pop")
@click.argument("count", type=click.IntRange(1), default=1)
@click.option("--all", "everything", is_flag=True, help="Take all patches off.")
@json_option
@click.pass_obj
def command(settings: Settings, count: int, everything: bool, as_json: bool) -> None:
    """Take the last COUNT patches off the work tree; one by default.

    Only the work tree changes. The overlays stay in it.

    Example: python -m tools pop 2
    """
    with open_stack(settings.project) as stack:
        position = 0 if everything else max(stack.position - count, 0)
        report = move("pop", stack, position)
    console.show(report, as_json)
