"""`bench-host`: what the KV cache manager costs the scheduler's thread."""

import click

from tools.base import atomic, console
from tools.base.outcome import Outcome, Report
from tools.cli.options import Settings, json_option
from tools.measure import host_bench
from tools.measure.host_bench import Verdict
from tools.serve.serving import ensure_host


@click.command("bench-host")
@click.option(
    "--rounds",
    type=click.IntRange(9, 60),
    default=15,
    show_default=True,
    help="How often each operation is timed on each backend.",
)
@json_option
@click.pass_obj
def command(settings: Settings, rounds: int, as_json: bool) -> None:
    """Time the paged and the tagma manager on the scheduler's thread.

    The ratios are between medians of one run, in which the backends take turns,
    in CPU time of the thread. The whole of schedule() and the hashing of blocks
    are shown beside them. A goal that is missed is shown and is no error.

    Example: python -m tools bench-host --json
    """
    project = settings.project
    with project.lock():
        host = ensure_host(project)
    benchmark = host_bench.measure(host, project.build, rounds)
    data = benchmark.to_data()
    file = project.build / "bench" / "host.json"
    atomic.write_json(file, data)
    if not as_json:
        for table in benchmark.tables():
            console.show_table(table)
    goals = benchmark.goals()
    met = sum(goal.verdict is not Verdict.MISSED for goal in goals)
    aims = sum(goal.verdict is Verdict.AIM for goal in goals)
    console.show(
        Report(
            "bench-host",
            Outcome.DONE,
            f"{met} of {len(goals)} goals met, {aims} of them as aimed at",
            details=(f"all values: {file}",),
            data=data,
        ),
        as_json,
    )
