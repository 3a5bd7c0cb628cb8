"""`soak`: a long run of the scheduler on a nearly full pool."""

import click

from tools.base import atomic, console
from tools.base.outcome import Outcome, Report
from tools.cli.options import Settings, json_option
from tools.measure.soak import Soaked, run_soak
from tools.serve.serving import ensure_host


@click.command("soak")
@click.option(
    "--steps",
    type=click.IntRange(5_000),  # filling the pool takes some hundred
    default=200_000,
    show_default=True,
    help="Steps of the scheduler under load.",
)
@json_option
@click.pass_context
def command(ctx: click.Context, steps: int, as_json: bool) -> None:
    """Run the scheduler for long with tagma, its pool full and caching on.

    Carries the content of every block along as workers do, and compares it with what
    requests and the prefix cache expect. Checks the allocator's invariants every
    1,000 steps, that resident memory stays flat within 1%, and that every block is
    free at the end. Exit code 1 if a promise is broken.

    Example: python -m tools soak --steps 20000
    """
    settings: Settings = ctx.obj
    project = settings.project
    with project.lock():
        host = ensure_host(project)
    soaked = run_soak(project, host, steps)
    file = project.build / "bench" / "soak.json"
    atomic.write_json(file, soaked.to_data())
    report = _report(soaked, str(file))
    console.show(report, as_json)
    ctx.exit(report.outcome.exit_code)


def _report(soaked: Soaked, file: str) -> Report:
    verdict, last = soaked.verdict or {}, soaked.checks[-1]
    details = (
        f"{verdict['finished']:,} requests, {last['preemptions']:,} preemptions, "
        f"{last['evicted_blocks']:,} blocks evicted, {last['block_copies']:,} moved, "
        f"{last['spills']:,} spills",
        f"{verdict['usage']:.1%} of the pool in use on average, resident memory "
        f"within {verdict['rss_growth']:.2%}",
        f"all values: {file}",
    )
    if not soaked.problems:
        return Report(
            "soak",
            Outcome.DONE,
            f"{verdict['steps']:,} steps, every check passed",
            details=details,
            data=soaked.to_data(),
        )
    return Report(
        "soak",
        Outcome.COMMAND_FAILED,
        "the tagma manager broke a promise",
        (f"Read {file}",),
        (*soaked.problems, *details),
        soaked.to_data(),
    )
