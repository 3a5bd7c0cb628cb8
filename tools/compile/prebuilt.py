"""The pinned prebuilt wheel, whose compiled members ours takes."""

import csv
import zipfile
from pathlib import Path
from typing import IO

from tools.base.errors import ToolError
from tools.base.outcome import Outcome

_LOCAL_HEADER_SIZE = 30


class Prebuilt:
    """A published wheel, open for copying; its own RECORD is trusted.

    The whole file's hash has been checked, so its members need no second check.
    """

    def __init__(self, path: Path):
        self.name = path.name
        try:
            self.zip = zipfile.ZipFile(path)
        except zipfile.BadZipFile as error:
            raise bad_wheel(f"{self.name} is no wheel: {error}") from error
        self._raw = path.open("rb")
        self.members = {
            info.filename: info for info in self.zip.infolist() if not info.is_dir()
        }
        records = [name for name in self.members if name.endswith(".dist-info/RECORD")]
        if len(records) != 1:
            raise bad_wheel(
                f"{self.name} has {len(records)} RECORD files instead of one"
            )
        self.info = records[0].removesuffix("RECORD")
        rows = csv.reader(self.zip.read(records[0]).decode().splitlines())
        self.digests = {name: digest for name, digest, _ in rows}

    def __enter__(self) -> "Prebuilt":
        return self

    def __exit__(self, *error: object) -> None:
        self._raw.close()
        self.zip.close()

    def text(self, name: str) -> str:
        """Return a text of the dist-info folder."""
        return self.zip.read(self.info + name).decode()

    def compressed(self, member: zipfile.ZipInfo) -> IO[bytes]:
        """Return the open file, at the beginning of a member's compressed bytes."""
        self._raw.seek(member.header_offset)
        header = self._raw.read(_LOCAL_HEADER_SIZE)
        lengths = header[26:28], header[28:30]  # of the name and the extra field
        self._raw.seek(sum(int.from_bytes(part, "little") for part in lengths), 1)
        return self._raw


def bad_wheel(message: str) -> ToolError:
    """Return the error of something that cannot be in a wheel, or is in a bad one."""
    return ToolError(
        Outcome.BAD_WHEEL, message, ("Mend upstream/pin.toml or patches/, then apply",)
    )
