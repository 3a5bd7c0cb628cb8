"""`demo`: paged and tagma side by side on real requests."""

import click

from tools.base import atomic, console
from tools.base.outcome import Outcome, Report
from tools.cli.options import Settings, json_option
from tools.measure.demo.run import Demo
from tools.serve.serving import ensure_serving


@click.command("demo")
@json_option
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """Serve a small model with both backends and compare every token.

    Sends the same text to both: short, long, repeated, with a shared prefix, as
    concurrent streams, and into a pool so small that cached blocks are moved and
    requests preempted; once more with tensor parallelism of 2.
    Exit code 1 if a token differs, no block was moved, or a scenario did not do
    what it is there for.

    Example: python -m tools demo --json
    """
    settings: Settings = ctx.obj
    project = settings.project
    serving = ensure_serving(project)
    result = Demo(serving.host, serving.model, project.tree, project.build).run()
    data = result.to_data()
    file = project.build / "demo" / "demo.json"
    atomic.write_json(file, data)
    if not as_json:
        console.show_table(result.table())
    good = result.outcome is Outcome.DONE
    console.show(
        Report(
            "demo",
            result.outcome,
            "paged and tagma gave the same tokens in every scenario"
            if good
            else "paged and tagma differ, or a scenario did not do its work",
            () if good else (f"Read {project.build / 'logs'}/demo-*.log",),
            (
                *result.problems,
                *(pair.copied for pair in result.pairs),
                *(f"not run: {reason}" for reason in result.not_run),
                f"all values: {file}",
            ),
            data,
        ),
        as_json,
    )
    ctx.exit(result.outcome.exit_code)
