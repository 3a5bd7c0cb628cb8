"""The command group: options that all commands share, and how errors end."""

import logging
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from tools import console
from tools.errors import ToolError
from tools.outcome import Report
from tools.project import Project

_COMMANDS = Path(__file__).with_name("commands")


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

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; this is the one place where errors become output."""
        try:
            return super().invoke(ctx)
        except ToolError as error:
            settings = ctx.obj
            if settings.debug:
                raise
            name = ctx.invoked_subcommand or ""
            console.show(
                Report(
                    name, error.outcome, error.message, error.next_steps, error.details
                ),
                "--json" in sys.argv,
            )
            ctx.exit(error.outcome.exit_code)


@dataclass(frozen=True)
class Settings:
    """The options before the command's name."""

    project: Project
    debug: bool


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--project",
    "root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(__file__).parent.parent,
    help="The checkout to work on; default: the one that holds these tools.",
)
@click.option(
    "--build",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder of generated files; default: build/ in the checkout.",
)
@click.option("--debug", is_flag=True, help="Log every subprocess; show tracebacks.")
@click.pass_context
def main(ctx: click.Context, root: Path, build: Path | None, debug: bool) -> None:
    """Maintain the tagma fork of vLLM: apply, build, serve and test it."""
    logging.basicConfig(
        level=logging.DEBUG if debug else logging.WARNING,
        format="%(name)s: %(message)s",
    )
    if not debug:
        logging.getLogger("urllib3").setLevel(logging.ERROR)
    ctx.obj = Settings(Project.at(root, build), debug)


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print the result as one JSON object."
)
