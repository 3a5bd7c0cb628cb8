"""What every command takes: the group's settings and `--json`."""

from dataclasses import dataclass

import click

from tools.base.project import Project


@dataclass(frozen=True)
class Settings:
    """The options before the command's name."""

    project: Project


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print the result as one JSON object."
)
