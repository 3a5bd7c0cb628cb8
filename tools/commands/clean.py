"""`clean`: remove what the tools made."""

import click

from tools.base import console
from tools.base.errors import ToolError
from tools.base.outcome import Outcome, Report
from tools.cli.options import Settings, json_option
from tools.tree import underway
from tools.tree.clean import clean


@click.command("clean")
@json_option
@click.pass_obj
def command(settings: Settings, as_json: bool) -> None:
    """Remove the build folder's contents, but for build/dropped.

    A tree with edits, commits or stashes is kept there as it is. The environment
    that runs these tools stays; `make clean` removes it too.

    Example: python -m tools clean
    """
    project = settings.project
    with project.lock():
        if underway.journal_file(project).exists():
            raise ToolError(
                Outcome.IN_PROGRESS,
                f"a rebase is under way, with your edits in {underway.folder(project)}",
                (
                    "End it: python -m tools rebase --continue",
                    "or give it up, which keeps a copy: python -m tools rebase --abort",
                ),
            )
        kept = clean(project)
    details = (f"the tree, which has work of yours, is now {kept}",) if kept else ()
    console.show(
        Report(
            "clean",
            Outcome.DONE,
            f"{project.build} is clean",
            details=details,
            data={"kept": str(kept) if kept else None},
        ),
        as_json,
    )
