"""`bench-placement`: ranges per request, and the copies that they cost."""

import os
from pathlib import Path

import click

from tools.base import atomic, console
from tools.base.outcome import Outcome, Report
from tools.cli.options import Settings, json_option
from tools.compile import extension
from tools.replay.comparison import compare
from tools.replay.experiment import Worker, watched
from tools.replay.placement.bench import PlacementBenchmark
from tools.replay.placement.plan import SEEDS, BenchPlan, engines
from tools.source.fetch import Sdist
from tools.tree.tree import Tree

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("bench-placement")
@click.option(
    "--trace", type=_FILE, help="Mooncake's conversation trace, replayed, too."
)
@click.option(
    "--seeds", type=click.IntRange(1), default=SEEDS, show_default=True,
    help="How many seeds to run synthetic sessions with.",
)  # fmt: skip
@click.option(
    "--quick", is_flag=True,
    help="A few hundred requests with one seed; no goals for ranges.",
)  # fmt: skip
@click.option(
    "--jobs", type=click.IntRange(1), help="Processes to use; one a core by default."
)
@click.option(
    "--engine", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A build of vllm.tagma to use instead of the tree's.",
)  # fmt: skip
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    trace: Path | None,
    seeds: int,
    quick: bool,
    jobs: int | None,
    engine: Path | None,
    as_json: bool,
) -> None:
    """Count ranges and copies of the engine beside paged's on the same requests.

    Synthetic sessions and, with --trace, a recorded trace, under several bounds of
    copies. Prefix hits, preemptions and removed hashes must be paged's. Counts
    decide the exit code, 1 if a goal is missed; times never do.

    Example: python -m tools bench-placement --trace mooncake_conversation.jsonl

    Takes a few minutes of two cores.
    """
    settings: Settings = ctx.obj
    project = settings.project
    plan = BenchPlan(trace, 1 if quick else seeds, quick)
    cases = plan.cases()
    if engine is None:
        with project.lock():
            Tree(project).apply(Sdist(project.cache))
            engine = extension.build(project)
    jobs = jobs or len(os.sched_getaffinity(0))
    results = watched(cases, Worker(engines(engine)), jobs)
    benchmark = PlacementBenchmark(compare(results), plan.not_run())
    file = project.build / "bench" / "placement.json"
    atomic.write_json(file, benchmark.to_data())
    if not as_json:
        for table in benchmark.tables():
            console.show_table(table)
    report = _report(benchmark, file)
    console.show(report, as_json)
    ctx.exit(report.outcome.exit_code)


def _report(benchmark: PlacementBenchmark, file: Path) -> Report:
    missed, total = benchmark.missed(), len(benchmark.goals())
    return Report(
        "bench-placement",
        Outcome.DIFFERENT if missed else Outcome.DONE,
        f"{total - missed} of {total} goals met",
        details=(f"all values: {file}",),
        data=benchmark.to_data(),
    )
