"""Lock files: which files satisfy a pin, on which Python, and nothing else."""

import hashlib
import json
import random
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.source import lockfile
from tools.source.index import IndexConfig

REPOSITORY = Path(__file__).resolve().parents[3]


def digest(filename: str) -> str:
    return hashlib.sha256(filename.encode()).hexdigest()


@pytest.fixture
def serve() -> Iterator[Callable[[list[str]], IndexConfig]]:
    """Serve an index that lists files by name; the name's hash is the file's."""
    servers = []

    def make(filenames: list[str]) -> IndexConfig:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                project = self.path.strip("/").rpartition("/")[2]
                found = [
                    {
                        "filename": name,
                        "url": f"/files/{name}",
                        "hashes": {"sha256": digest(name)},
                    }
                    for name in filenames
                    if name.replace("_", "-").startswith(f"{project}-")
                ]
                page = {"meta": {"api-version": "1.0"}, "name": project, "files": found}
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", "application/vnd.pypi.simple.v1+json")
                self.end_headers()
                self.wfile.write(json.dumps(page).encode())

            def log_message(self, *args: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        servers.append(server)
        return IndexConfig((f"http://127.0.0.1:{server.server_port}/simple",), (), None)

    yield make
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def pins(tmp_path: Path) -> Callable[[str], Path]:
    def make(text: str) -> Path:
        path = tmp_path / "some.in"
        path.write_text(text)
        return path

    return make


def locked(text: str) -> set[str]:
    return set(re.findall(r"--hash=sha256:(\w+)", text))


USABLE = [
    "a-1.0-cp311-cp311-manylinux_2_28_x86_64.whl",
    "a-1.0-cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
    "a-1.0-cp313-cp313-manylinux1_x86_64.whl",
    "a-1.0-cp38-abi3-manylinux_2_34_x86_64.whl",
    "a-1.0-py3-none-any.whl",
]
USELESS = [
    "a-1.0-cp310-cp310-manylinux_2_28_x86_64.whl",
    "a-1.0-cp314-cp314-manylinux_2_28_x86_64.whl",
    "a-1.0-cp313-cp313t-manylinux_2_28_x86_64.whl",
    "a-1.0-cp312-cp312-musllinux_1_2_x86_64.whl",
    "a-1.0-cp312-cp312-manylinux_2_28_aarch64.whl",
    "a-1.0-cp312-cp312-macosx_14_0_arm64.whl",
    "a-1.0-cp312-cp312-win_amd64.whl",
    "a-1.0.tar.gz",
    "a-1.1-py3-none-any.whl",
]


def test_lock_holds_exactly_the_files_that_a_covered_python_can_use(serve, pins):
    text = lockfile.make(pins("a==1.0\n"), serve(USABLE + USELESS))
    assert locked(text) == {digest(name) for name in USABLE}


def test_lock_holds_the_sdist_only_where_some_python_has_no_wheel(serve, pins):
    wheels = [f"a-1.0-cp3{n}-cp3{n}-manylinux_2_28_x86_64.whl" for n in (11, 12)]
    text = lockfile.make(pins("a==1.0\n"), serve([*wheels, "a-1.0.tar.gz"]))
    assert locked(text) == {digest(name) for name in [*wheels, "a-1.0.tar.gz"]}


def test_a_wheel_for_a_newer_glibc_than_the_prebuilt_one_needs_is_not_enough(
    serve, pins
):
    wheel = "a-1.0-cp38-abi3-manylinux_2_35_x86_64.whl"
    text = lockfile.make(pins("a==1.0\n"), serve([wheel, "a-1.0.tar.gz"]))
    assert digest("a-1.0.tar.gz") in locked(text)


def test_a_pin_without_a_file_names_package_and_python(serve, pins):
    wheels = [f"a-1.0-cp3{n}-cp3{n}-manylinux_2_28_x86_64.whl" for n in (11, 12)]
    with pytest.raises(ToolError, match=r"a==1\.0 for Python 3\.13$") as error:
        lockfile.make(pins("a==1.0\n"), serve(wheels))
    assert error.value.outcome is Outcome.BAD_LOCK


def test_a_marker_limits_the_pythons_and_reaches_the_lock(serve, pins):
    wheels = [f"a-1.0-cp3{n}-cp3{n}-manylinux_2_28_x86_64.whl" for n in (11, 12, 13)]
    text = lockfile.make(pins('a==1.0; python_version > "3.11"\n'), serve(wheels))
    assert locked(text) == {digest(name) for name in wheels[1:]}
    assert 'a==1.0; python_version > "3.11" \\\n' in text


def test_a_hash_in_the_input_admits_a_file_that_no_index_has(serve, pins):
    own = "f" * 64
    text = lockfile.make(pins(f"a==1.0+cpu --hash=sha256:{own}  # why\n"), serve([]))
    assert locked(text) == {own}


def test_the_order_of_input_and_index_does_not_reach_the_lock(serve, pins):
    names = [*USABLE, "b-2.0-py3-none-any.whl"]
    first = lockfile.make(pins("# why\na==1.0\nb==2.0\n"), serve(names))
    random.Random(1).shuffle(names)
    assert lockfile.make(pins("b==2.0\n\na==1.0  # why\n"), serve(names)) == first


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("a==1.0\na>=1.0\n", r"line 2: 'a>=1\.0' is no exact pin"),
        ("a==1.*\n", "line 1: .* is no exact pin"),
        ("a\n", "line 1: 'a' is no exact pin"),
        ("a==1.0\nA==2.0\n", "line 2: a is pinned twice"),
        ("a = 1.0\n", "line 1: 'a = 1.0' is no requirement"),
    ],
)
def test_an_inexact_pin_is_refused_by_its_line(pins, text, wrong):
    with pytest.raises(ToolError, match=wrong):
        lockfile.read_packages(pins(text))


def test_an_input_changed_after_its_lock_is_noticed(serve, pins):
    source = pins("a==1.0\n")
    lock = source.with_suffix(".lock")
    lock.write_text(lockfile.make(source, serve(USABLE)))
    lockfile.check(source, lock)
    source.write_text("a==1.1\n")
    with pytest.raises(ToolError) as error:
        lockfile.check(source, lock)
    assert error.value.details == ("a==1.0", "a==1.1")
    assert "python -m tools lock" in error.value.next_steps[0]


def test_the_repositorys_locks_are_those_of_their_inputs():
    sources = sorted((REPOSITORY / "upstream").glob("*.in"))
    assert [source.stem for source in sources] == [
        "cpu",
        "lmcache",
        "mooncake",
        "suites",
        "tools",
        "torch-cpu",
        "torch-index",
        "transfer",
    ]
    for source in sources:
        lockfile.check(source, source.with_suffix(".lock"))


def test_the_serving_environment_has_no_torch_companions():
    names = {
        pin.name for pin in lockfile.read_packages(REPOSITORY / "upstream" / "cpu.in")
    }
    assert not names & {"torchvision", "torchaudio", "torchcodec"}
