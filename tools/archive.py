"""Safe extraction of a source archive."""

import tarfile
from pathlib import Path

from tools import console
from tools.errors import ToolError
from tools.outcome import Outcome


def extract(archive: Path, target: Path) -> Path:
    """Unpack a .tar.gz and return its single top folder.

    Args:
        archive: The archive, whose hash has been checked.
        target: An empty folder.

    Raises:
        ToolError: The archive is damaged, a member would leave the folder, or there
            is more than one top folder. Nothing of a refused archive is used.
    """
    try:
        with tarfile.open(archive, "r:gz") as tar:
            members = tar.getmembers()
            with console.step(f"extract {archive.name}", len(members)) as step:
                for member in members:
                    # "data" refuses absolute names, parents, devices and links
                    # that point outside, and drops owners and special modes.
                    tar.extract(member, target, filter="data")
                    step.advance(1)
    except tarfile.FilterError as error:
        raise ToolError(
            Outcome.UNSAFE_ARCHIVE,
            f"{archive.name} has a member that leaves the extraction folder: "
            f"{error.tarinfo.name}",
            ("Do not use this archive; fetch upstream's own",),
            (str(error),),
        ) from error
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ToolError(
            Outcome.UNSAFE_ARCHIVE,
            f"{archive.name} is damaged: {error}",
            ("Fetch it again",),
        ) from error
    tops = list(target.iterdir())
    if len(tops) != 1 or not tops[0].is_dir():
        raise ToolError(
            Outcome.UNSAFE_ARCHIVE,
            f"{archive.name} has {len(tops)} top entries instead of one folder",
            ("Use upstream's sdist",),
        )
    return tops[0]
