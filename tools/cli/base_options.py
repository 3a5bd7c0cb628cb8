"""The options that name a base other than a release of the package index."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from tools.source.fetch import GitRemote, Sdist

_Command = TypeVar("_Command", bound=Callable[..., Any])


def base_options(command: _Command) -> _Command:
    """Add --git, --ref and --sdist; the parameters are `url`, `ref` and `file`."""
    options = (
        click.option(
            "--git", "url", metavar="URL", help="Take a commit of this git repository."
        ),
        click.option("--ref", help="With --git: a tag, a branch or 40 digits."),
        click.option(
            "--sdist",
            "file",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="Take a local sdist.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def source_of(
    url: str | None, ref: str | None, file: Path | None
) -> Sdist | GitRemote | None:
    """Return where the options say that a base comes from; None is the index.

    Raises:
        click.UsageError: They do not go together.
    """
    if url and file:
        raise click.UsageError("--git and --sdist exclude each other")
    if bool(url) != bool(ref):
        raise click.UsageError("--git and --ref go together")
    if url and ref:
        return GitRemote(str(Path(url).resolve()) if Path(url).is_dir() else url, ref)
    return Sdist(Path(), file.resolve()) if file else None
