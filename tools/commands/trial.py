"""`trial`: the overlays' tests on a release that has no CPU wheel yet."""

from pathlib import Path

import click

from tools.base import console
from tools.base.outcome import Outcome, Report
from tools.base.project import CHECKOUT
from tools.cli.options import Settings, json_option
from tools.measure import trial
from tools.tree.tree import Tree


@click.command("trial", context_settings={"ignore_unknown_options": True})
@click.option(
    "--environment",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="An environment with an older release; default: build/venv of this checkout.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@json_option
@click.pass_obj
def command(
    settings: Settings,
    environment: Path | None,
    arguments: tuple[str, ...],
    as_json: bool,
) -> None:
    """Run the tests of manager and kernels on the tree's Python; ARGUMENTS to pytest.

    Compiled members come from an environment of an older release, as a release has no
    CPU wheel when it is new. The kernels run in Triton's interpreter.

    Example: python -m tools trial -k backend
    """
    project = settings.project
    chosen = (environment or CHECKOUT / "build" / "venv").absolute()
    with project.lock():
        Tree(project).require_current()
        folder = trial.prepare(project, chosen)
    status = trial.run(project, chosen, folder, list(arguments), to_stderr=as_json)
    outcome = Outcome.COMMAND_FAILED if status else Outcome.DONE
    verb = "fail" if status else "pass"
    report = Report(
        "trial",
        outcome,
        f"the tests {verb} on the Python of {project.tree}",
        data={"status": status, "folder": str(folder)},
    )
    console.show(report, as_json)
    click.get_current_context().exit(outcome.exit_code)
