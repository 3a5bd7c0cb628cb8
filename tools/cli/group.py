"""The command group: its own options, its help, and how errors end."""

import logging
import os
import shlex
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from tools.base import console
from tools.base.errors import ToolError
from tools.base.outcome import Outcome, Report
from tools.base.project import CHECKOUT, Project
from tools.cli.options import Settings
from tools.cli.sections import SECTIONS
from tools.tree import underway

_COMMANDS = CHECKOUT / "tools" / "commands"
_COMPLETE = "_TAGMA_COMPLETE"


class LazyGroup(click.Group):
    """Imports a command's module only when that command runs or shows its help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted(
            path.stem.replace("_", "-")
            for path in _COMMANDS.glob("*.py")
            if path.stem != "__init__"
        )

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Return a command by name."""
        if name not in self.list_commands(ctx):
            return None
        module = import_module(f"tools.commands.{name.replace('-', '_')}")
        command = module.command
        assert isinstance(command, click.Command)
        return command

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """Write the commands by what one wants to do."""
        widest = max(map(len, self.list_commands(ctx)))
        room = formatter.width - widest - 6
        for title, names in SECTIONS.items():
            commands = {name: self.get_command(ctx, name) for name in names}
            with formatter.section(title.capitalize()):
                formatter.write_dl(
                    [
                        (name.ljust(widest), command.get_short_help_str(room))
                        for name, command in commands.items()
                        if command
                    ]
                )

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command; this is the one place where errors become output."""
        try:
            kwargs["standalone_mode"] = False
            kwargs["complete_var"] = _COMPLETE
            if _COMPLETE in os.environ:
                kwargs["prog_name"] = "tagma"  # tools/bin/tagma
            status = super().main(*args, **kwargs)
            sys.exit(status if isinstance(status, int) else 0)
        except click.Abort:
            sys.exit(130)
        except click.ClickException as error:
            if not _as_json():
                error.show()
                sys.exit(error.exit_code)
            report = Report(_command(), Outcome.USAGE, error.format_message())
        except ToolError as error:
            if _debug():
                raise
            report = Report(
                _command(),
                error.outcome,
                error.message,
                error.next_steps,
                error.details,
            )
        except OSError as error:
            if _debug():
                raise
            report = Report(_command(), Outcome.SYSTEM, str(error))
        console.show(report, _as_json())
        sys.exit(report.outcome.exit_code)


def _as_json() -> bool:
    return "--json" in sys.argv


def _debug() -> bool:
    return "--debug" in sys.argv


def _command() -> str:
    names = {path.stem.replace("_", "-") for path in _COMMANDS.glob("*.py")}
    return next((arg for arg in sys.argv[1:] if arg in names), "")


def _invocation(root: Path | None, build: Path | None) -> str:
    """Return how to call the tools on the same checkout from the user's folder."""
    python, here = Path(sys.executable), Path.cwd()
    if here in python.parents:
        python = python.relative_to(here)
    words = [str(python), "-m", "tools"]
    words += ["--project", str(root)] if root else []
    words += ["--build", str(build)] if build else []
    return shlex.join(words)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--project",
    "root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The checkout to work on; default: the one that holds these tools.",
)
@click.option(
    "--build",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder of generated files; default: build/ in the checkout.",
)
@click.option("--debug", is_flag=True, help="Log every subprocess; show tracebacks.")
@click.pass_context
def main(
    ctx: click.Context, root: Path | None, build: Path | None, debug: bool
) -> None:
    """Maintain the tagma fork of vLLM: apply, build, serve and test it."""
    logging.basicConfig(
        level=logging.DEBUG if debug else logging.WARNING,
        format="%(name)s: %(message)s",
    )
    if not debug:
        logging.getLogger("urllib3").setLevel(logging.ERROR)
    console.invocation = _invocation(root, build)
    ctx.obj = Settings(Project.at(root or CHECKOUT, build))
    found = underway.title(ctx.obj.project)
    if found and ctx.invoked_subcommand not in ("rebase", "status"):
        console.note(f"{found} is under way; python -m tools rebase --status")
