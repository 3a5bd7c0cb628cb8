"""A source archive: what of it git gets, and which archives are refused."""

import io
import random
import tarfile
from pathlib import Path

import pytest

from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.source.archive import fast_import


def write(
    path: Path,
    *members: str,
    form: int = tarfile.PAX_FORMAT,
    content: bytes = b"x",
) -> Path:
    with tarfile.open(path, "w:gz", format=form) as tar:
        for name in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def refused(archive: Path) -> ToolError:
    with pytest.raises(ToolError) as error:
        list(fast_import(archive, "refs/x"))
    assert error.value.outcome is Outcome.UNSAFE_ARCHIVE
    error.value.message.encode()  # it can be printed
    return error.value


def test_a_file_of_any_language_loses_its_top_folder(tmp_path: Path) -> None:
    archive = write(tmp_path / "a.tar.gz", "top/a/größe.md")
    stream = b"".join(fast_import(archive, "refs/x")).decode()
    assert stream.endswith('M 100644 inline "a/größe.md"\ndata 1\nx\n')


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
@pytest.mark.parametrize("name", ["top/gr\udcf6\udcdfe", "gr\udcf6/a"])
def test_a_name_that_is_not_utf8_is_named(tmp_path: Path, form: int, name: str) -> None:
    error = refused(write(tmp_path / "a.tar.gz", name, form=form))
    assert "a name that is not UTF-8" in error.message
    assert "gr\\udcf6" in error.message


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("../a", "leaves the archive's top folder"),
        ("top/../../\udcff", "leaves the archive's top folder"),
        ("/top/a", "leaves the archive's top folder"),
        ('top/"a"', "needs quoting"),
        ("top/a\nb", "needs quoting"),
        ("a", "is no plain file in a folder"),
    ],
)
def test_a_member_that_git_cannot_take_is_named(
    tmp_path: Path, name: str, why: str
) -> None:
    assert why in refused(write(tmp_path / "a.tar.gz", name)).message


def test_two_top_folders_are_refused(tmp_path: Path) -> None:
    error = refused(write(tmp_path / "a.tar.gz", "one/a", "two/a"))
    assert "2 top entries" in error.message


def test_half_an_archive_is_damaged(tmp_path: Path) -> None:
    archive = write(tmp_path / "a.tar.gz", "top/a", content=random.randbytes(9_999))
    archive.write_bytes(archive.read_bytes()[:5_000])
    assert "is damaged" in refused(archive).message
