"""The serving environment: made from its locks, by real pip, from local wheels."""

import hashlib
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.base.project import Project
from tools.compile import beside, environment
from tools.source import lockfile


def make_wheel(folder: Path, name: str, version: str) -> Path:
    """Write an empty package; each call's file has the same bytes."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    members = {
        f"{name}/__init__.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\n"
        f"Version: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
    }
    record = "".join(f"{member},,\n" for member in (*members, f"{info}/RECORD"))
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in (members | {f"{info}/RECORD": record}).items():
            archive.writestr(zipfile.ZipInfo(member), text)
    return path


@dataclass(frozen=True)
class Workshop:
    """A project whose locks name wheels in a folder that pip searches."""

    project: Project
    links: Path

    def lock(self, name: str, *wheels: Path) -> None:
        upstream = self.project.root / "upstream"
        upstream.mkdir(parents=True, exist_ok=True)
        pins, entries = [], []
        for wheel in sorted(wheels):
            package, version = wheel.name.split("-")[:2]
            pins.append(f"{package}=={version}\n")
            digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
            entries.append(f"{package}=={version} \\\n    --hash=sha256:{digest}\n")
        (upstream / f"{name}.in").write_text("".join(pins))
        (upstream / f"{name}.lock").write_text("".join(entries))

    def version(self, package: str) -> str:
        python = environment.python(self.project)
        code = f"import {package}; print({package}.VERSION)"
        return subprocess.run(
            [python, "-c", code], capture_output=True, text=True
        ).stdout.strip()


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    links = tmp_path / "links"
    links.mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "elsewhere"))
    workshop = Workshop(
        Project(tmp_path / "root", tmp_path / "build", tmp_path / "cache"), links
    )
    workshop.lock("cpu", make_wheel(links, "numpy", "2.0"))
    workshop.lock("torch-cpu", make_wheel(links, "torch", "2.0+cpu"))
    workshop.lock(
        "torch-index",
        make_wheel(links, "torch", "2.0"),
        make_wheel(links, "nvidia", "13.0"),
    )
    return workshop


def test_packages_and_wheel_are_installed_once_and_again_when_changed(
    workshop, tmp_path
):
    assert environment.ensure(workshop.project)
    assert workshop.version("numpy") == "2.0"
    assert workshop.version("torch") == "2.0+cpu"
    assert workshop.version("nvidia") == ""
    assert environment.torch_version(workshop.project) == "2.0+cpu"
    assert not environment.ensure(workshop.project)
    first = make_wheel(tmp_path, "vllm", "1.0")
    assert environment.install(workshop.project, first, {"wheel": "first"})
    assert not environment.install(workshop.project, first, {"wheel": "first"})
    second = make_wheel(tmp_path, "vllm", "1.1")
    assert environment.install(workshop.project, second, {"wheel": "second"})
    assert workshop.version("vllm") == "1.1"


def test_the_default_torch_comes_with_its_runtime_where_there_is_no_cpu_build(workshop):
    (workshop.links / "torch-2.0+cpu-py3-none-any.whl").unlink()
    environment.ensure(workshop.project)
    assert workshop.version("torch") == "2.0"
    assert workshop.version("nvidia") == "13.0"


def test_a_file_that_is_not_the_locked_one_stops_and_the_next_run_recovers(workshop):
    wheel = workshop.links / "numpy-2.0-py3-none-any.whl"
    right = wheel.read_bytes()
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("numpy/evil.py", "")
    with pytest.raises(ToolError) as error:
        environment.ensure(workshop.project)
    assert error.value.outcome is Outcome.COMMAND_FAILED
    assert "HASH" in "".join(error.value.details).upper()
    wheel.write_bytes(right)
    assert environment.ensure(workshop.project)
    assert workshop.version("numpy") == "2.0"


def test_an_input_changed_after_its_lock_stops_before_anything_is_made(workshop):
    (workshop.project.root / "upstream" / "cpu.in").write_text("numpy==2.1\n")
    with pytest.raises(ToolError, match=r"cpu\.lock was not made from cpu\.in"):
        environment.ensure(workshop.project)
    assert not workshop.project.venv.exists()


def test_a_python_that_the_lock_does_not_cover_is_refused(workshop, monkeypatch):
    monkeypatch.setattr(lockfile, "PYTHONS", ((3, 8), (3, 9)))
    with pytest.raises(ToolError, match="not 3") as error:
        environment.ensure(workshop.project)
    assert "PYTHON=" in error.value.next_steps[0]


@pytest.fixture
def offline_workshop(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    """Like `workshop`, but pip has an index too, which is out of reach."""
    monkeypatch.delenv("PIP_NO_INDEX")
    return workshop


def test_without_network_a_folder_of_wheels_is_enough_and_pip_does_not_retry(
    offline_workshop,
):
    assert environment.ensure(offline_workshop.project)
    assert offline_workshop.version("numpy") == "2.0"
    log = offline_workshop.project.build / "logs" / "environment-cpu.log"
    assert "Retrying" not in log.read_text()


def test_without_network_a_missing_package_names_the_folder_to_set(offline_workshop):
    (offline_workshop.links / "numpy-2.0-py3-none-any.whl").unlink()
    with pytest.raises(ToolError, match=r"cpu\.lock is not in the cache") as error:
        environment.ensure(offline_workshop.project)
    assert error.value.outcome is Outcome.OFFLINE
    assert "PIP_FIND_LINKS" in error.value.next_steps[1]


def test_without_network_a_wrong_file_is_still_called_wrong(offline_workshop):
    with zipfile.ZipFile(
        offline_workshop.links / "numpy-2.0-py3-none-any.whl", "a"
    ) as archive:
        archive.writestr("numpy/evil.py", "")
    with pytest.raises(ToolError) as error:
        environment.ensure(offline_workshop.project)
    assert error.value.outcome is Outcome.COMMAND_FAILED


def test_packages_beside_the_environment_are_replaced_when_their_lock_changes(workshop):
    python, site = Path(sys.executable), workshop.project.build / "extra" / "site"

    def install() -> bool:
        return beside.install(workshop.project, python, "extra", site)

    workshop.lock("extra", make_wheel(workshop.links, "nixl", "1.0"))
    assert install() and not install()
    workshop.lock("extra", make_wheel(workshop.links, "nixl", "2.0"))
    assert install()
    assert "2.0" in (site / "nixl" / "__init__.py").read_text()
    assert [path.name for path in site.glob("*.dist-info")] == ["nixl-2.0.dist-info"]


def test_an_install_beside_the_environment_that_was_broken_off_starts_afresh(workshop):
    python, site = Path(sys.executable), workshop.project.build / "extra" / "site"
    wheel = make_wheel(workshop.links, "nixl", "1.0")
    workshop.lock("extra", wheel)
    wheel.unlink()
    with pytest.raises(ToolError):
        beside.install(workshop.project, python, "extra", site)
    make_wheel(workshop.links, "nixl", "1.0")
    assert beside.install(workshop.project, python, "extra", site)
