"""`refresh`: write edits in the tree back."""

import click

from tools.cli.moves import open_stack, show_rewritten
from tools.cli.options import Settings, json_option
from tools.stack.refresh import refresh


@click.command("refresh")
@json_option
@click.pass_obj
def command(settings: Settings, as_json: bool) -> None:
    """Write edits of the work tree into the last applied patch.

    Edits of overlays go to their source folders, and so does a new file where
    overlays are laid. Later patches are replayed; a patch that would differ only in
    blob ids stays as it is. The tree's lock follows.

    Example: python -m tools refresh && python -m tools push --all
    """
    with open_stack(settings.project, edits=True) as stack:
        done = refresh(stack)
        message = "written" if done.changed else "there is nothing to write"
        show_rewritten("refresh", message, done, as_json, settings.project)
