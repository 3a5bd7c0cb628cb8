"""A source archive as git sees it, without unpacking it to the disk."""

import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from tools.base import console
from tools.base.errors import ToolError
from tools.base.outcome import Outcome

# git fast-import reads these specially inside a quoted name.
_QUOTED = frozenset('"\\\n')


def fast_import(archive: Path, reference: str) -> Iterator[bytes]:
    """Yield what `git fast-import` needs to commit the files of a .tar.gz.

    Args:
        archive: The archive, whose hash has been checked.
        reference: The reference to write.

    Raises:
        ToolError: The archive is damaged, a member would leave its top folder, is no
            plain file or has a name that cannot stand in a git tree, or there is
            more than one top folder.
    """
    yield f"commit {reference}\ncommitter t <t> 0 +0000\ndata 0\n".encode()
    tops = set()
    try:
        with (
            tarfile.open(archive, "r|gz") as tar,
            console.step(f"import {archive.name}") as step,
        ):
            for member in tar:
                step.advance(member.size)
                path = _safe_path(archive, member)
                tops.add(path.parts[0])
                if not member.isdir():
                    yield from _file(archive, tar, member, path)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ToolError(
            Outcome.UNSAFE_ARCHIVE,
            f"{archive.name} is damaged: {error}",
            ("Fetch it again",),
        ) from error
    if len(tops) != 1:
        raise ToolError(
            Outcome.UNSAFE_ARCHIVE,
            f"{archive.name} has {len(tops)} top entries instead of one folder",
            ("Use upstream's sdist",),
        )


def _safe_path(archive: Path, member: tarfile.TarInfo) -> PurePosixPath:
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise _unsafe(archive, member, "leaves the archive's top folder")
    if set(member.name) & _QUOTED:
        raise _unsafe(archive, member, "has a name that needs quoting")
    try:
        member.name.encode()
    except UnicodeEncodeError as error:
        raise _unsafe(archive, member, "has a name that is not UTF-8") from error
    return path


def _file(
    archive: Path, tar: tarfile.TarFile, member: tarfile.TarInfo, path: PurePosixPath
) -> Iterator[bytes]:
    """Yield the lines that add one file, and its content."""
    content = tar.extractfile(member) if member.isfile() else None
    if content is None or len(path.parts) == 1:
        raise _unsafe(archive, member, "is no plain file in a folder")
    mode = "100755" if member.mode & 0o100 else "100644"
    name = "/".join(path.parts[1:])
    yield f'M {mode} inline "{name}"\ndata {member.size}\n'.encode()
    yield content.read()
    yield b"\n"


def _unsafe(archive: Path, member: tarfile.TarInfo, why: str) -> ToolError:
    # A name may hold what no terminal can show, and what UTF-8 cannot encode.
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in member.name)
    return ToolError(
        Outcome.UNSAFE_ARCHIVE,
        f"{archive.name} has a member that {why}: {shown}",
        ("Do not use this archive; fetch upstream's own",),
    )
