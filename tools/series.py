"""The series: which patches there are, and their order."""

import re
from dataclasses import dataclass
from pathlib import Path

from tools.errors import ToolError
from tools.outcome import Outcome

_NAME = re.compile(r"\d{4}-[a-z0-9][a-z0-9._-]*\.patch")


@dataclass(frozen=True)
class Series:
    """The ordered patch files of a folder."""

    folder: Path
    names: tuple[str, ...]

    @classmethod
    def read(cls, folder: Path) -> "Series":
        """Read `series` and check it against the files beside it.

        Blank lines and lines that begin with `#` are ignored, as in quilt, and a
        final newline may be missing.

        Raises:
            ToolError: A patch is missing, listed twice, unlisted or misnamed.
        """
        file = folder / "series"
        try:
            lines = file.read_text("utf-8").splitlines()
        except OSError as error:
            raise _bad(
                f"{file} cannot be read: {error.strerror}", "Restore it"
            ) from error
        names = [line.split("#")[0].strip() for line in lines]
        names = [name for name in names if name]
        for name in names:
            if not _NAME.fullmatch(name):
                raise _bad(
                    f"series lists {name!r}, which is no patch name",
                    "Name patches NNNN-lower-case-words.patch",
                )
            if names.count(name) > 1:
                raise _bad(f"series lists {name} twice", f"Remove one from {file}")
            if not (folder / name).is_file():
                raise _bad(
                    f"series lists {name}, but there is no such file",
                    f"Restore {folder / name} or remove it from {file}",
                )
        unlisted = sorted({p.name for p in folder.glob("*.patch")} - set(names))
        if unlisted:
            raise _bad(
                f"{unlisted[0]} is not listed in series",
                f"Add it to {file} or remove the file",
            )
        return cls(folder, tuple(names))

    @property
    def paths(self) -> tuple[Path, ...]:
        """The patch files in order."""
        return tuple(self.folder / name for name in self.names)


def _bad(message: str, mend: str) -> ToolError:
    return ToolError(Outcome.BAD_SERIES, message, (mend,))
