"""`rehearse`: a rebase of a scratch copy, with tests on the result."""

import click

from tools.base import console
from tools.base.outcome import Outcome, Report
from tools.check import rehearsal
from tools.cli.options import Settings, json_option, workers_option
from tools.serve.serving import ensure_host


@click.command("rehearse", context_settings={"ignore_unknown_options": True})
@click.argument("release")
@workers_option("Processes to spread the tests over.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    release: str,
    workers: int,
    words: tuple[str, ...],
    as_json: bool,
) -> None:
    """Carry a scratch copy to RELEASE and test it there; WORDS to pytest.

    The overlays' tests run on that release's Python, with the extension that its
    CMake builds. Pin, series and tree of this checkout stay as they are.

    Example: python -m tools rehearse 0.33.0
    """
    settings: Settings = ctx.obj
    project = settings.project
    with project.lock():
        venv = ensure_host(project).venv
        scratch = rehearsal.prepare(project)
    status = rehearsal.run(scratch, release, venv, workers, words, to_stderr=as_json)
    outcome = Outcome.COMMAND_FAILED if status else Outcome.DONE
    verb = "fails" if status else "passes"
    message = f"the series {verb} its tests on {release}, in {scratch}"
    data = {"status": status, "path": str(scratch)}
    console.show(Report("rehearse", outcome, message, data=data), as_json)
    ctx.exit(outcome.exit_code)
