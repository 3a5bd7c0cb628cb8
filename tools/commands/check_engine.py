"""`check-engine`: the engine's own tests."""

import click

from tools.base import console
from tools.base.outcome import Outcome, Report
from tools.check import engine
from tools.cli.options import Settings, json_option, workers_option


@click.command("check-engine")
@workers_option("Tests that run at once.")
@json_option
@click.pass_context
def command(ctx: click.Context, workers: int, as_json: bool) -> None:
    """Test the C++ engine and its Python binding under sanitizers.

    AddressSanitizer and UndefinedBehaviorSanitizer watch the engine's own tests, a
    million random operations included, and then the test of the binding.

    Example: python -m tools check-engine --workers 4
    """
    settings: Settings = ctx.obj
    project = settings.project
    status = engine.run_native(project, workers, to_stderr=as_json)
    status = status or engine.run_binding(project, to_stderr=as_json)
    outcome = Outcome.COMMAND_FAILED if status else Outcome.DONE
    message = f"the engine's tests {'fail' if status else 'pass'} under sanitizers"
    data = {"status": status}
    console.show(Report("check-engine", outcome, message, data=data), as_json)
    ctx.exit(outcome.exit_code)
