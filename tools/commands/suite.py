"""`suite`: one of the pytest suites."""

import click

from tools.base import console
from tools.base.outcome import Outcome, Report
from tools.base.project import Project
from tools.check import suites
from tools.check.suites import Name, Suite
from tools.cli.options import Settings, json_option, workers_option
from tools.serve.serving import ensure_host


@click.command("suite", context_settings={"ignore_unknown_options": True})
@click.argument("name", type=click.Choice([name.value for name in Name]))
@workers_option("Processes to spread the tests over.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@json_option
@click.pass_context
def command(
    ctx: click.Context, name: str, workers: int, words: tuple[str, ...], as_json: bool
) -> None:
    """Run the tests of the tools or the overlays, or upstream's; WORDS to pytest.

    Those of the overlays, and upstream's own suites of the scheduler with the tagma
    manager behind them, run on the build, which is made where it is needed.

    Example: python -m tools suite overlay -k range_table
    """
    settings: Settings = ctx.obj
    suite = _prepared(settings.project, Name(name))
    status = suite.run(workers, words, to_stderr=as_json)
    outcome = Outcome.COMMAND_FAILED if status else Outcome.DONE
    verb = "fail" if status else "pass"
    data = {"status": status}
    console.show(
        Report("suite", outcome, f"{name}: the tests {verb}", data=data), as_json
    )
    ctx.exit(outcome.exit_code)


def _prepared(project: Project, name: Name) -> Suite:
    if name is Name.TOOLS:
        return suites.of_tools(project)
    with project.lock():
        python = ensure_host(project).python
        if name is Name.OVERLAY:
            return suites.of_overlays(project, python)
        return suites.of_upstream(project, python)
