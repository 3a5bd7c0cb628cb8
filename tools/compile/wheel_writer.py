"""A wheel being written, with bytes that depend on its members alone."""

import base64
import csv
import hashlib
import io
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tools.compile.prebuilt import Prebuilt, bad_wheel

PACKAGE = "vllm"


@dataclass
class WheelWriter:
    """A wheel being written: fixed times and modes, and a RECORD at the end."""

    path: Path
    version: str
    _rows: list[tuple[str, str, str]] = field(default_factory=list)

    def __enter__(self) -> "WheelWriter":
        self.zip = zipfile.ZipFile(self.path, "w")
        self.info = f"{PACKAGE}-{self.version}.dist-info/"
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is None:
            name = f"{self.info}RECORD"
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows(
                [*self._rows, (name, "", "")]
            )
            self.zip.writestr(_zip_info(name, 0o644), text.getvalue())
        self.zip.close()

    def add(self, name: str, content: bytes, mode: int) -> None:
        """Store a member."""
        self.zip.writestr(_zip_info(name, mode), content)
        self._rows.append((name, digest(content), str(len(content))))

    def copy(self, name: str, base: Prebuilt, source: str, mode: int) -> None:
        """Copy a member of the prebuilt wheel as it is compressed there."""
        member = base.members[source]
        info = _zip_info(name, mode)
        info.compress_type = member.compress_type
        info.CRC = member.CRC
        info.compress_size = member.compress_size
        info.file_size = member.file_size
        # zipfile offers no copying of compressed bytes, so this does what its
        # writestr does, less the compression.
        assert self.zip.fp
        info.header_offset = self.zip.fp.tell()
        self.zip.fp.write(info.FileHeader(zip64=False))
        _copy_bytes(base.compressed(member), self.zip.fp, member.compress_size)
        self.zip.start_dir = self.zip.fp.tell()
        self.zip.filelist.append(info)
        self.zip.NameToInfo[name] = info
        self._rows.append((name, base.digests[source], str(member.file_size)))


def _zip_info(name: str, mode: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)  # its time is zip's earliest
    info.external_attr = (0o100000 | mode) << 16
    return info


def digest(content: bytes) -> str:
    """Return a hash as RECORD writes it."""
    raw = hashlib.sha256(content).digest()
    return "sha256=" + base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _copy_bytes(source: IO[bytes], target: IO[bytes], size: int) -> None:
    while size:
        chunk = source.read(min(size, 1 << 22))
        if not chunk:
            raise bad_wheel(f"{source.name} ends in the middle of a member")
        target.write(chunk)
        size -= len(chunk)
