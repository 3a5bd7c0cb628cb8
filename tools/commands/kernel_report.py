"""`kernel-report`: what the kernels compile to, without a GPU."""

import click

from tools.base import console
from tools.base.outcome import Outcome, Report
from tools.cli.options import Settings, json_option
from tools.compile.builder import ensure_built
from tools.measure.kernel_report import KernelReport
from tools.source.fetch import Sdist
from tools.tree.tree import Tree


@click.command("kernel-report")
@json_option
@click.pass_obj
def command(settings: Settings, as_json: bool) -> None:
    """Count global loads and stores, registers and spills of the kernels.

    Those of both write paths, and the one that copies cached blocks. Compiles for
    sm_80, 90, 100 and 120, which needs no GPU.

    Example: python -m tools kernel-report
    """
    project = settings.project
    with project.lock():
        Tree(project).apply(Sdist(project.cache))
        ensure_built(project)
    with console.step("compile the kernels for GPUs"):
        report = KernelReport.make(project)
    markdown, data = report.write(project.build / "bench")
    if not as_json:
        console.show_table(report.table())
    console.show(
        Report(
            "kernel-report",
            Outcome.DONE,
            f"{len(report.codes)} kernels compiled by Triton {report.triton}",
            details=(f"as Markdown: {markdown}", f"as JSON: {data}"),
            data=report.to_data(),
        ),
        as_json,
    )
