"""`build`: extension, wheel and environment."""

import click

from tools.base import console
from tools.base.outcome import Outcome, Report
from tools.cli.options import Settings, json_option
from tools.compile import builder


@click.command("build")
@click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True
)
@click.option(
    "--mode",
    type=click.Choice(["precompiled", "full"]),
    default="precompiled",
    show_default=True,
    help="Take compiled members from upstream's wheel, or compile everything.",
)
@click.option(
    "--editable", is_flag=True, help="Install the tree in place instead, for the CPU."
)
@json_option
@click.pass_obj
def command(
    settings: Settings, device: str, mode: str, editable: bool, as_json: bool
) -> None:
    """Compile the extension, build the wheel and install it under build/venv.

    Example: python -m tools build --device cuda
    """
    project = settings.project
    if editable:
        if device != "cpu" or mode != "precompiled":
            raise click.UsageError("--editable has no other device or mode")
        with project.lock():
            builder.build_in_place(project)
        report = Report(
            "build",
            Outcome.DONE,
            f"{project.tree} is installed in place in {project.venv}",
            data={"tree": str(project.tree), "environment": str(project.venv)},
        )
    else:
        with project.lock():
            build = builder.build_fully if mode == "full" else builder.build
            report = _report(build(project, device))
    console.show(report, as_json)


def _report(built: builder.Built) -> Report:
    environment = str(built.installed) if built.installed else None
    steps = () if environment else (f"On the GPU machine: pip install {built.wheel}",)
    return Report(
        "build",
        Outcome.DONE if built.changed else Outcome.UNCHANGED,
        f"{built.wheel} is "
        + ("built" if "wheel" in built.changed else "up to date")
        + (f", and installed in {environment}" if environment else ""),
        steps,
        data={
            "wheel": str(built.wheel),
            "environment": environment,
            "changed": list(built.changed),
        },
    )
