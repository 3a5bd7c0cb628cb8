"""`new`: a patch of its own for the edits in the tree."""

import click

from tools.cli.moves import open_stack, show_rewritten
from tools.cli.options import Settings, json_option
from tools.stack.refresh import new


@click.command("new")
@click.argument("subject")
@click.option("--why", default="", help="The description: why it is needed.")
@click.option("--author", default="", help="`Name <address>`; default: the fork.")
@click.option(
    "--origin",
    default="",
    help="As in DEP-3, for example `backport, COMMIT`; default: `backport` with "
    "--author, `vendor` without.",
)
@json_option
@click.pass_obj
def command(
    settings: Settings,
    subject: str,
    why: str,
    author: str,
    origin: str,
    as_json: bool,
) -> None:
    """Make a patch of the edits in the work tree, behind the last applied one.

    Example: python -m tools new "core: count blocks" --why "The index needs it."
    """
    with open_stack(settings.project, edits=True) as stack:
        done = new(stack, subject, why, author, origin)
        show_rewritten("new", "made a patch", done, as_json, settings.project)
