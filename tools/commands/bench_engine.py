"""`bench-engine`: the engine's host benchmark beside its yardsticks."""

import click

from tools.base import atomic, console
from tools.base.outcome import Outcome, Report
from tools.cli.options import Settings, json_option
from tools.compile import extension
from tools.measure import engine_bench
from tools.source.fetch import Sdist
from tools.tree.tree import Tree


@click.command("bench-engine")
@click.option(
    "--rounds",
    type=click.IntRange(2),
    default=30,
    show_default=True,
    help="How often each implementation is timed.",
)
@json_option
@click.pass_obj
def command(settings: Settings, rounds: int, as_json: bool) -> None:
    """Time the engine beside an allocator on std::map, and from Python.

    The ratios are between the fastest rounds of one run, in which the
    implementations take turns. A goal that is missed is shown and is no error.

    Example: python -m tools bench-engine --rounds 50
    """
    project = settings.project
    with project.lock():
        Tree(project).apply(Sdist(project.cache))
        benchmark = engine_bench.measure(project, extension.build(project), rounds)
    data = benchmark.to_data()
    file = project.build / "bench" / "engine.json"
    atomic.write_json(file, data)
    if not as_json:
        for table in benchmark.tables():
            console.show_table(table)
    goals = benchmark.goals()
    met = sum(goal.verdict == "met" for goal in goals)
    console.show(
        Report(
            "bench-engine",
            Outcome.DONE,
            f"{met} of {len(goals)} goals met",
            details=(f"all values: {file}",),
            data=data,
        ),
        as_json,
    )
