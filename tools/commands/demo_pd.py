"""`demo-pd`: a prefill and a decode server over NIXL, for paged and for tagma."""

import click

from tools.base import atomic, console
from tools.base.outcome import Outcome, Report
from tools.base.project import Project
from tools.cli.options import Settings, json_option
from tools.measure.pair.connector import install
from tools.measure.pair.node import Launcher
from tools.measure.pair.run import PairDemo
from tools.measure.pair.workload import FULL, QUICK, Size
from tools.serve.serving import ensure_serving


@click.command("demo-pd")
@click.option("--quick", is_flag=True, help="Fewer requests and settings.")
@json_option
@click.pass_context
def command(ctx: click.Context, quick: bool, as_json: bool) -> None:
    """Serve a small model with a prefill and a decode server, and move its blocks.

    Both pools age under conversations that share prefixes, then prompts of 512 to
    7,900 tokens are probed. Counts how many descriptors a transfer needs, and in how
    many runs its blocks lie on each side. Exit code 1 if a token differs from a
    single server's, a transfer fails, a request expires, blocks do not come back, or
    paged does not need ten times tagma's descriptors. Without --quick the backends
    are mixed, too, blocks are pushed, Mooncake moves them, and a prefill server is
    killed and restarted.

    Example: python -m tools demo-pd --quick --json

    Takes about 6 minutes of two cores with --quick, else up to 30.
    """
    settings: Settings = ctx.obj
    project = settings.project
    size = QUICK if quick else FULL
    result = PairDemo(_launcher(project, size), size, quick).run()
    data = result.to_data()
    file = project.build / "demo-pd" / "demo-pd.json"
    atomic.write_json(file, data)
    if not as_json:
        console.show_table(result.table())
    good = result.outcome is Outcome.DONE
    report = Report(
        "demo-pd",
        result.outcome,
        f"{'all went well' if good else 'something is wrong'}; paged needs "
        f"{result.ratio:.1f} times tagma's descriptors a transfer",
        () if good else (f"Read {project.build / 'logs'}/demo-pd-*.log",),
        (*result.problems, f"all values: {file}"),
        data,
    )
    console.show(report, as_json)
    ctx.exit(result.outcome.exit_code)


def _launcher(project: Project, size: Size) -> Launcher:
    serving = ensure_serving(project)
    with project.lock():
        sites = install(project, serving.host.python)
    return Launcher(
        serving.host, serving.model, project.tree, project.build, sites, size.blocks
    )
