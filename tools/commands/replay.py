"""`replay`: placement policies on recorded and synthetic requests."""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from tools.base import console
from tools.base.outcome import Outcome, Report
from tools.base.project import Project
from tools.cli.options import Settings, json_option
from tools.compile import extension
from tools.replay import plot, result, variant
from tools.replay.experiment import (
    BASELINES,
    Case,
    Run,
    Synthetic,
    Traced,
    Worker,
    run_all,
)
from tools.replay.trace import POOL_REQUESTS, Trace
from tools.replay.workload import WORKLOADS
from tools.source.fetch import Sdist
from tools.tree.tree import Tree

_ENGINE = "tagma"
_BLOCK_SIZES = ("16", "32")
_SMALL_SHARES = (0.7, 0.9)
_ALL_SHARES = (0.5, 0.7, 0.9, 0.98)
_PREFIX_CACHE = {"both": (False, True), "yes": (True,), "no": (False,)}
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("replay")
@click.option(
    "--trace", "traces", type=_FILE, multiple=True,
    help="Replay this trace instead: Mooncake's .jsonl or Azure's .csv.",
)  # fmt: skip
@click.option(
    "--full", is_flag=True, help="Every live share and block size; takes minutes."
)
@click.option(
    "--policy", "policies", type=click.Choice([*BASELINES, _ENGINE]), multiple=True,
    help="Only these policies.",
)  # fmt: skip
@click.option(
    "--workload", "workloads", multiple=True,
    type=click.Choice([workload.name for workload in WORKLOADS]),
    help="Only these synthetic workloads.",
)  # fmt: skip
@click.option(
    "--prefix-cache", type=click.Choice(list(_PREFIX_CACHE)), default="both",
    show_default=True, help="Synthetic workloads with or without it.",
)  # fmt: skip
@click.option(
    "--block-size", "block_sizes", type=click.Choice(_BLOCK_SIZES), multiple=True,
    help="Only these; 16 by default.",
)  # fmt: skip
@click.option(
    "--live-share", "shares", type=click.FloatRange(0.01, 1.0), multiple=True,
    help="Part of the pool for running requests; 0.7 and 0.9 by default.",
)  # fmt: skip
@click.option(
    "--concurrency", type=click.IntRange(1), default=32, show_default=True,
    help="Requests that run at once, on synthetic workloads.",
)  # fmt: skip
@click.option(
    "--turnovers", type=click.IntRange(1), default=6, show_default=True,
    help="How often these are replaced.",
)  # fmt: skip
@click.option(
    "--seeds", type=click.IntRange(1), default=3, show_default=True,
    help="How many seeds to run synthetic workloads with.",
)  # fmt: skip
@click.option(
    "--requests", type=click.IntRange(1), help="Only the first requests of a trace."
)
@click.option(
    "--pool-tokens", type=click.IntRange(1),
    help=f"Size of the pool for a trace; room for {POOL_REQUESTS} requests by default.",
)  # fmt: skip
@click.option(
    "--jobs", type=click.IntRange(1), default=1, show_default=True,
    help="Processes to use.",
)  # fmt: skip
@click.option(
    "--engine", "builds", multiple=True, metavar="[NAME=]FILE",
    help="A build of vllm.tagma to use instead of the tree's; several are compared.",
)  # fmt: skip
@click.option(
    "--range-cost", "range_costs", type=click.IntRange(1), multiple=True,
    help="Compare engines that find a range worth so many blocks instead.",
)  # fmt: skip
@click.option(
    "--variant", "variants", type=click.Choice(variant.NAMES), multiple=True,
    help="Compare the engine with these policies of replacement, too.",
)  # fmt: skip
@click.option("--plot", "plots", is_flag=True, help="Draw hits against runs.")
@json_option
@click.pass_obj
def command(
    settings: Settings,
    traces: tuple[Path, ...],
    full: bool,
    policies: tuple[str, ...],
    workloads: tuple[str, ...],
    prefix_cache: str,
    block_sizes: tuple[str, ...],
    shares: tuple[float, ...],
    concurrency: int,
    turnovers: int,
    seeds: int,
    requests: int | None,
    pool_tokens: int | None,
    jobs: int,
    builds: tuple[str, ...],
    range_costs: tuple[int, ...],
    variants: tuple[str, ...],
    plots: bool,
    as_json: bool,
) -> None:
    """Compare where policies place KV blocks: the engine's, paged's and classic ones.

    Drives each with the same requests through a model of the scheduler, and counts
    the contiguous runs per request and the tokens found in the prefix cache.

    Example: python -m tools replay --trace mooncake_conversation.jsonl --plot

    The default takes a minute or two of one core; --full several times that.
    """
    project = settings.project
    engines = _named(builds)
    if variants and not engines and not range_costs:
        engines[_ENGINE] = _build(project)
    plain = ("",) if range_costs else ()
    engines |= variant.build_all(project, (*plain, *variants), range_costs)
    chosen = [name for name in BASELINES if not policies or name in policies]
    if not policies or _ENGINE in policies:
        chosen += engines or [_ENGINE]
    sizes = tuple(map(int, block_sizes or (_BLOCK_SIZES if full else ("16",))))
    shares = shares or (_ALL_SHARES if full else _SMALL_SHARES)
    cases: Sequence[Case]
    if traces:
        read = [Trace.read(path, requests) for path in traces]
        cases = [
            Traced(trace, pool_tokens or trace.pool_tokens, size, share, policy)
            for trace in read
            for size in sizes
            for share in shares
            for policy in chosen
        ]
    else:
        cases = [
            Synthetic(
                workload, cached, size, share, policy, seed, concurrency, turnovers
            )
            for cached in _PREFIX_CACHE[prefix_cache]
            for workload in WORKLOADS
            if not workloads or workload.name in workloads
            for size in sizes
            for share in shares
            for policy in chosen
            for seed in range(seeds)
        ]
    if _ENGINE in chosen and not engines:
        engines = {_ENGINE: _build(project)}
    comparisons = result.compare(_watched(cases, Worker(engines), jobs))
    file = project.build / "bench" / ("replay-trace.json" if traces else "replay.json")
    data = {"comparisons": result.to_data(comparisons)}
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(data, indent=2) + "\n", "utf-8")
    os.replace(partial, file)
    details = [f"all values: {file}"]
    if plots:
        image = file.with_suffix(".png")
        plot.draw(comparisons, image)
        details.append(f"plot: {image}")
    if not as_json:
        for table in result.tables(comparisons):
            console.show_table(table)
    console.show(
        Report(
            "replay",
            Outcome.DONE,
            f"{len(cases)} runs of {len(chosen)} policies",
            details=tuple(details),
            data=data,
        ),
        as_json,
    )


def _named(builds: Sequence[str]) -> dict[str, Path]:
    """Return the files of engines by the names of their policies."""
    files: dict[str, Path] = {}
    for text in builds:
        given, _, file = text.rpartition("=")
        name = given or _ENGINE
        if not Path(file).is_file():
            raise click.UsageError(f"--engine: there is no file {file}")
        if name in BASELINES or name in files:
            raise click.UsageError(f"--engine: the name {name} is taken")
        files[name] = Path(file).resolve()
    return files


def _build(project: Project) -> Path:
    """Return the extension of the current tree."""
    with project.lock():
        Tree(project).apply(Sdist(project.cache))
        return extension.build(project)


def _watched(
    cases: Sequence[Case], worker: Worker, jobs: int
) -> Iterator[tuple[Case, Run]]:
    with console.step("replay", len(cases)) as step:
        for finished in run_all(cases, worker, jobs):
            step.advance(1)
            yield finished
