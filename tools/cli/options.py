"""What every command takes: the group's settings and `--json`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from tools.base.project import Project

_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class Settings:
    """The options before the command's name."""

    project: Project


def workers_option(text: str) -> Callable[[_Command], _Command]:
    """Return `--workers`, with the help that says workers of what."""
    return click.option(
        "--workers", type=click.IntRange(1), default=1, show_default=True, help=text
    )


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print the result as one JSON object."
)
