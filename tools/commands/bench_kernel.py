"""`bench-kernel`: the kernels of both write paths, and of block copies, on a GPU."""

from pathlib import Path

import click

from tools.base import console
from tools.base.outcome import Outcome, Report
from tools.base.process import find_program
from tools.base.project import Project
from tools.cli.options import Settings, json_option
from tools.compile import environment
from tools.measure import copy_bench, kernel_bench
from tools.measure.gpu_bench import GpuBenchmark, Skipped
from tools.source.fetch import Sdist
from tools.tree.tree import Tree

_BENCHMARKS = {
    "block-tables": kernel_bench.measure,
    "block-copies": copy_bench.measure,
}
_FORMS = {".md": "Markdown", ".json": "JSON"}


@click.command("bench-kernel")
@click.option(
    "--launches",
    type=click.IntRange(1),
    default=60,
    show_default=True,
    help="How often each kernel is timed in each case.",
)
@click.option(
    "--python",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A Python with torch, Triton and a GPU; default: python3, then build/venv.",
)
@click.option(
    "--dry-run", is_flag=True, help="Tiny cases in the interpreter; needs no GPU."
)
@json_option
@click.pass_obj
def command(
    settings: Settings,
    launches: int,
    python: Path | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Time slot mappings, expansion against gather, and block copies, on a GPU.

    Prefill and decode at 4K, 16K and 128K tokens of context, for 1, 64 and 512
    requests of 1, 2, 8 and 64 ranges; copies of 1, 16, 256 and 2,048 blocks. A few
    minutes at most. Without a GPU it says so and ends.

    Example: python -m tools bench-kernel --launches 100
    """
    project = settings.project
    with project.lock():
        Tree(project).apply(Sdist(project.cache))
    pythons = _pythons(project, python)
    arguments = [f"--launches={launches}", *(["--dry-run"] if dry_run else [])]
    done: list[GpuBenchmark] = []
    files: list[Path] = []
    for name, bench in _BENCHMARKS.items():
        with console.step(f"time the {name.replace('-', ' ')}"):
            measured = bench(pythons, project.tree, arguments)
        if isinstance(measured, Skipped):
            return console.show(_skipped(measured), as_json)
        if not as_json:
            console.show_table(measured.table())
        stem = f"{name}{'-dry' if dry_run else ''}"
        files += measured.write(project.build / "bench" / stem)
        done.append(measured)
    console.show(_report(done, files, launches), as_json)


def _skipped(skipped: Skipped) -> Report:
    message = "skipped, as there is no GPU to time the kernels on"
    return Report("bench-kernel", Outcome.UNCHANGED, message, details=skipped.reasons)


def _report(done: list[GpuBenchmark], files: list[Path], launches: int) -> Report:
    tables, copies = (measured.to_data() for measured in done)
    medians = len(tables["timings"]) + len(copies["timings"])
    return Report(
        "bench-kernel",
        Outcome.DONE,
        f"{medians} medians of {launches} launches",
        details=tuple(f"as {_FORMS[file.suffix]}: {file}" for file in files),
        data={**tables, "block_copies": copies},
    )


def _pythons(project: Project, chosen: Path | None) -> list[Path]:
    if chosen:
        return [chosen]
    found = find_program("python3"), environment.python(project)
    return [python for python in found if python and python.exists()]
