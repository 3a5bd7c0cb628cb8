"""`bench-kernel`: the kernels of both write paths on a GPU."""

from pathlib import Path

import click

from tools.base import console
from tools.base.outcome import Outcome, Report
from tools.base.process import find_program
from tools.base.project import Project
from tools.cli.options import Settings, json_option
from tools.compile import environment
from tools.measure import kernel_bench
from tools.measure.kernel_bench import KernelBenchmark, Skipped
from tools.source.fetch import Sdist
from tools.tree.tree import Tree


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
    """Time slot mappings, and expansion against gather, on a GPU.

    Prefill and decode at 4K, 16K and 128K tokens of context, for 1, 64 and 512
    requests of 1, 2, 8 and 64 ranges. A few minutes at most. Without a GPU it says
    so and ends.

    Example: python -m tools bench-kernel --launches 100
    """
    project = settings.project
    with project.lock():
        Tree(project).apply(Sdist(project.cache))
    with console.step("time the kernels"):
        measured = kernel_bench.measure(
            _pythons(project, python),
            project.tree,
            [f"--launches={launches}", *(["--dry-run"] if dry_run else [])],
        )
    if isinstance(measured, Skipped):
        message = "skipped, as there is no GPU to time the kernels on"
        report = Report(
            "bench-kernel", Outcome.UNCHANGED, message, details=measured.reasons
        )
        return console.show(report, as_json)
    name = f"block-tables{'-dry' if dry_run else ''}"
    files = measured.write(project.build / "bench" / name)
    if not as_json:
        console.show_table(measured.table())
    console.show(_report(measured, launches, files), as_json)


def _report(
    measured: KernelBenchmark, launches: int, files: tuple[Path, Path]
) -> Report:
    markdown, data = files
    return Report(
        "bench-kernel",
        Outcome.DONE,
        f"{len(measured.timings)} medians of {launches} launches",
        details=(f"as Markdown: {markdown}", f"as JSON: {data}"),
        data=measured.to_data(),
    )


def _pythons(project: Project, chosen: Path | None) -> list[Path]:
    if chosen:
        return [chosen]
    found = find_program("python3"), environment.python(project)
    return [python for python in found if python and python.exists()]
