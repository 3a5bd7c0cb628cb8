"""The series: which patches there are, and their order."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.base import text
from tools.base.errors import ToolError
from tools.base.outcome import Outcome

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
            data = file.read_bytes()
        except OSError as error:
            raise _bad(
                f"{file} cannot be read: {error.strerror}", "Restore it"
            ) from error
        if why := text.flaw(data):
            raise _bad(f"{file}: {why}", f"Mend {file}")
        names = listed(data.decode())
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


def listed(series: str) -> list[str]:
    """Return the names in the text of a `series` file."""
    names = [line.split("#")[0].strip() for line in series.splitlines()]
    return [name for name in names if name]


def text_with(series: str, names: Sequence[str]) -> str:
    r"""Return the text of a `series` file with other names in it.

    Comments stay before the name that they stood before, or what follows it.

    >>> text_with("# why\n0001-a.patch # b\n0002-c.patch\n", ["0002-c.patch"])
    '# why\n0002-c.patch\n'
    """
    before: dict[str, list[str]] = {}
    lines: dict[str, str] = {}
    waiting: list[str] = []
    for line in series.splitlines():
        name = line.split("#")[0].strip()
        if name not in names:
            waiting += [] if name else [line]
            continue
        before[name], lines[name] = waiting, line
        waiting = []
    result = [
        line
        for name in names
        for line in (*before.get(name, []), lines.get(name, name))
    ]
    return "".join(f"{line}\n" for line in (*result, *waiting))


def _bad(message: str, mend: str) -> ToolError:
    return ToolError(Outcome.BAD_SERIES, message, (mend,))
