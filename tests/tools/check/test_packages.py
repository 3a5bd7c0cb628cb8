"""What a machine lacks for the tests is got where that is possible, or named."""

import shutil
from pathlib import Path

import pytest

from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.check import packages

HAS_HEADER = "#!/bin/sh\nexit 0\n"
LACKS_HEADER = "#!/bin/sh\nexit 1\n"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine that has only the programs of this folder, and a shell."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "mkdir", "touch", "chmod"):
        (folder / name).symlink_to(shutil.which(name) or "")
    monkeypatch.setenv("PATH", str(folder))
    return folder


def put(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def test_googletest_of_the_machine_is_taken(programs: Path, tmp_path: Path) -> None:
    put(programs, "g++", HAS_HEADER)
    packages.googletest(tmp_path / "unpacked")
    assert not (tmp_path / "unpacked").exists()


def test_googletest_is_unpacked_once_where_apt_has_it(
    programs: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "unpacked"
    put(programs, "g++", LACKS_HEADER)
    put(programs, "apt-get", "#!/bin/sh\ntouch libgtest-dev_1_amd64.deb\n")
    unpack = '#!/bin/sh\nmkdir -p "$3/usr/include/gtest"\n'
    put(programs, "dpkg", unpack + 'touch "$3/usr/include/gtest/gtest.h"\n')
    assert packages.googletest(folder) == folder / "usr"
    put(programs, "apt-get", LACKS_HEADER)
    assert packages.googletest(folder) == folder / "usr"


@pytest.mark.parametrize("apt", [None, LACKS_HEADER])
def test_missing_googletest_is_named_with_its_packages(
    programs: Path, tmp_path: Path, apt: str | None
) -> None:
    put(programs, "g++", LACKS_HEADER)
    if apt:
        put(programs, "apt-get", apt)
        put(programs, "dpkg", apt)
    with pytest.raises(ToolError) as raised:
        packages.googletest(tmp_path / "unpacked")
    assert raised.value.outcome is Outcome.MISSING_TOOL
    assert "libgtest-dev" in raised.value.next_steps[0]


def test_nothing_is_installed_without_root(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = tmp_path / "asked"
    put(programs, "apt-get", f"#!/bin/sh\ntouch {asked}\n")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    packages.install_fuzzer()
    assert not asked.exists()


def test_root_gets_clang_and_the_fuzzer_of_its_version(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first package brings a clang without the fuzzer, as on Debian 12."""
    ready = tmp_path / "ready"
    clang = (
        f"#!/bin/sh\\n[ \\$1 = -dumpversion ] && echo 14.0.6 && exit\\n[ -e {ready} ]"
    )
    put(
        programs,
        "apt-get",
        f"""#!/bin/sh
case "$*" in
*" clang") printf "{clang}" > {programs}/clang++; chmod 755 {programs}/clang++ ;;
*libclang-rt-14-dev) touch {ready} ;;
*) exit 1 ;;
esac
""",
    )
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(programs))
    packages.install_fuzzer()
    assert ready.exists()
