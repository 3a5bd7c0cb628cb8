"""`undo`: one step back."""

import click

from tools.base import console
from tools.base.outcome import Outcome, Report
from tools.cli.options import Settings, json_option
from tools.stack.undo import undo
from tools.tree.tree import Tree


@click.command("undo")
@json_option
@click.pass_obj
def command(settings: Settings, as_json: bool) -> None:
    """Take back the last change of the series, the overlays or the pin.

    That is what refresh, new, drop, rename, split, fold, export or a finished rebase
    wrote: each file comes back byte for byte from the copies in build/dropped, and
    the work tree follows. A second undo does the change again.

    Example: python -m tools undo
    """
    project = settings.project
    with project.lock():
        last, done = undo(Tree(project))
    kept = (f"what it replaces is kept in {done.kept}",) if done.kept else ()
    console.show(
        Report(
            "undo",
            Outcome.DONE,
            f"taken back: {last.title}",
            ("Do it again: python -m tools undo",),
            (*sorted(done.after), *kept),
            {
                "undone": last.title,
                "changed": sorted(done.after),
                "kept": str(done.kept) if done.kept else None,
            },
        ),
        as_json,
    )
