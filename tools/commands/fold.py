"""`fold`: one patch out of two."""

import click

from tools.cli.moves import PatchName, open_stack, patch_argument, show_rewritten
from tools.cli.options import Settings, json_option
from tools.stack.reshape import fold


@click.command("fold")
@patch_argument
@click.option(
    "--into", type=PatchName(), help="The patch that stays; default: the one before."
)
@json_option
@click.pass_obj
def command(settings: Settings, patch: str, into: str | None, as_json: bool) -> None:
    """Make PATCH part of another patch; a copy of both is kept under build/dropped.

    The other one keeps its place and header, and gets PATCH's subject and
    description after its own.

    Example: python -m tools fold 5 --into 2
    """
    with open_stack(settings.project) as stack:
        number = stack.find(patch)
        target = stack.find(into) if into else number - 1
        if not target:
            raise click.UsageError("there is no patch before the first; name --into")
        done = fold(stack, number, target)
        message = f"folded {stack.names[number - 1]} into {stack.names[target - 1]}"
        show_rewritten("fold", message, done, as_json, settings.project)
