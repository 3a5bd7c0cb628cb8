"""`edit`: prepare the work tree for changes of one patch."""

import click

from tools.base import console
from tools.cli.moves import move, open_stack, patch_argument
from tools.cli.options import Settings, json_option


@click.command("edit")
@patch_argument
@json_option
@click.pass_obj
def command(settings: Settings, patch: str, as_json: bool) -> None:
    """Make PATCH the last that is applied, so that `refresh` writes to it.

    Then change files in the tree. To change a patch's header, edit its file.

    Example: python -m tools edit 4
    """
    with open_stack(settings.project) as stack:
        step = f"Change files in {settings.project.tree}, then: python -m tools refresh"
        report = move("edit", stack, stack.find(patch), step)
    console.show(report, as_json)
