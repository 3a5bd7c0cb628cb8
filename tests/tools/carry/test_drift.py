"""`drift` and `matrix`: what upstream changed, told per hunk, name and release."""

import json
from pathlib import Path

import pytest
from checkout import CORE, FILES, Checkout, tree_id
from releases import CONFLICT, release

from tools.base.git import Repository
from tools.carry.drift import Closeness
from tools.carry.place import Scopes, changes
from tools.carry.uses import Call, Change, Kind, Release, Use, collect, compare, misfit

UPSTREAM = '''\
from vllm.base import Deep
from vllm.other import helper as helps


def plain(a, b=1, *, c):
    """Says something."""
    return a


class Config:
    size: int
    name: str = ""


class Base(Deep):
    def __init__(self, size, *, medium="gpu"):
        self.size = size

    def grow(self, count):
        return count
'''

OVERLAY = """\
from vllm.tagma import other
from vllm.up import Base, Config, helps, plain


class Mine(Base):
    def __init__(self):
        super().__init__(3, medium="cpu")
        self.own = 1

    def grow(self, count):
        return self.deep(count) + self.size + self.own


def use():
    plain(1, c=2)
    Config(1)
    helps()
"""


@pytest.fixture
def uses(checkout: Checkout) -> list[Use]:
    (checkout.project.root / "vllm_overlay" / "mine.py").write_text(OVERLAY)
    return collect(checkout.project.root)


def made(folder: Path, up: str, **more: str) -> Release:
    """A release with `vllm/up.py` and two files that it imports from."""
    files = {
        "vllm/up.py": up,
        "vllm/base.py": "class Deep:\n    def deep(self, count):\n        return 1\n",
        "vllm/other.py": "def helper():\n    pass\n",
    } | {name.replace("__", "/") + ".py": text for name, text in more.items()}
    tree = tree_id(folder, {name: text.encode() for name, text in files.items()})
    return Release(Repository(folder), tree)


def test_uses_are_imports_calls_overrides_and_inherited_members(
    uses: list[Use],
) -> None:
    found = {(use.kind, use.name) for use in uses}
    assert found == {
        (Kind.IMPORT, "Base"),
        (Kind.IMPORT, "Config"),
        (Kind.IMPORT, "helps"),
        (Kind.IMPORT, "plain"),
        (Kind.CALL, "plain"),
        (Kind.CALL, "Config"),
        (Kind.CALL, "helps"),
        (Kind.CALL, "Base.__init__"),
        (Kind.CALL, "Base.deep"),
        (Kind.OVERRIDE, "Base.__init__"),
        (Kind.OVERRIDE, "Base.grow"),
        (Kind.INHERIT, "Base.size"),
    }


@pytest.mark.parametrize(
    ("old", "new", "name", "change"),
    [
        ("return a\n", "return b\n", "plain", Change.BODY),
        ('"""Says something."""', '"""Says it."""', "plain", Change.SAME),
        ("return a\n", "# why\n    return  a\n", "plain", Change.SAME),
        ("def plain(a, b=1", "def plain(a, b=2", "plain", Change.SIGNATURE),
        ("*, c)", "*, c, d)", "plain", Change.MISFIT),
        ("*, c)", "*, d=1)", "plain", Change.MISFIT),
        ("*, c)", "*, d=1, **more)", "plain", Change.SIGNATURE),
        ("def plain", "def simple", "plain", Change.MISSING),
        ("    name: str", "    title: str", "Config", Change.SIGNATURE),
        ("def grow(self, count)", "def grow(self, count, why)", "Base.grow",
         Change.MISFIT),
        ("size, *, medium", "size, rank, *, medium", "Base.__init__", Change.MISFIT),
        ("self.size = size", "self.length = size", "Base.size", Change.MISSING),
        ("import helper as helps", "import helps", "helps", Change.MISSING),
        ("class Base(Deep)", "class Base(object)", "Base.deep", Change.MISSING),
    ],
)  # fmt: skip
def test_each_kind_of_change_is_told(
    uses: list[Use], tmp_path: Path, old: str, new: str, name: str, change: Change
) -> None:
    assert old in UPSTREAM
    findings = compare(
        uses,
        made(tmp_path / "old", UPSTREAM),
        made(tmp_path / "new", UPSTREAM.replace(old, new)),
    )
    worst = max(
        (f.change for f in findings if f.use.name == name), key=lambda c: c.weight
    )
    assert worst is change
    others = {f.use.name: f.change for f in findings if f.use.name != name}
    assert Change.MISFIT not in others.values()


def test_moved_definition_is_found_through_imports(
    uses: list[Use], tmp_path: Path
) -> None:
    start = UPSTREAM.index("class Config")
    end = UPSTREAM.index("class Base")
    up = "from .config import Config\n" + UPSTREAM[:start] + UPSTREAM[end:]
    new = made(tmp_path / "new", up, vllm__config=UPSTREAM[start:end])
    findings = compare(uses, made(tmp_path / "old", UPSTREAM), new)
    config = [f for f in findings if f.use.name == "Config"]
    assert {f.change for f in config} == {Change.SAME}
    assert {f.moved for f in config} == {"vllm/config.py"}


def test_open_calls_are_not_judged(tmp_path: Path) -> None:
    release_ = made(tmp_path / "r", UPSTREAM)
    found = release_.find("vllm.up", "plain")
    assert found
    use = Use("x.py", 1, Kind.CALL, "vllm.up", "plain", Call(0, (), True))
    assert misfit(use, found) == ""
    use = Use("x.py", 1, Kind.CALL, "vllm.up", "plain", Call(0, ("c",), False))
    assert misfit(use, found) == "it also needs a"


def test_scopes_are_the_innermost_and_unreadable_files_have_none() -> None:
    scopes = Scopes(b"@wraps\nclass A:\n    def f(self):\n        def g():\n"
                    b"            pass\n        return g\n")  # fmt: skip
    assert [scopes.at(line) for line in (1, 2, 5, 6)] == ["A", "A", "A.f.g", "A.f"]
    assert not Scopes(b"def f(:\n").known


def test_changes_name_removed_and_added_lines(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "r")
    repository.init()
    old, new = (
        repository.git("hash-object", "-w", "--stdin", stdin=text).text
        for text in (b"a\nb\nc\n", b"a\nB\nc\nd\n")
    )
    first, second = changes(repository, old, new)
    assert (first.old, first.new) == (range(2, 3), range(2, 3))
    assert first.text == ("-b", "+B")
    assert (second.old, second.new) == (range(4, 4), range(4, 5))


def drift(checkout: Checkout) -> dict[str, dict[str, object]]:
    """The drift of the first patch's hunk, and of the whole."""
    files = {name: content.decode() for name, content in FILES.items()}
    release(checkout, dict(files), "1.0")
    done = checkout.cli("drift", "1.0", "2.0", "--json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)["data"]
    return {"whole": data, "hunk": data["hunks"][0]}


@pytest.mark.parametrize(
    ("changed", "closeness"),
    [
        (None, Closeness.GONE),
        (CORE, Closeness.UNTOUCHED),
        (CORE.replace("+= 1", "+= 7"), Closeness.FILE),
        (CORE.replace("def second():", "def second(a=1):"), Closeness.NEAR),
        (CORE.replace("+= 2", "+= 4"), Closeness.OVERLAP),
    ],
)
def test_drift_tells_how_close_upstream_came(
    checkout: Checkout, changed: str | None, closeness: Closeness
) -> None:
    release(checkout, {"vllm/core.py": changed})
    found = drift(checkout)
    assert found["hunk"]["closeness"] == closeness.value
    assert found["hunk"]["risk"] == closeness.risk
    assert found["whole"]["patches"]["0002-crlf.patch"] == 0
    if closeness is Closeness.OVERLAP:
        assert "+    total += 4" in found["hunk"]["cause"]
        assert found["hunk"]["scope"] == "second"


def test_matrix_tells_each_cell_and_changes_nothing(checkout: Checkout) -> None:
    release(checkout, {"vllm/core.py": "import os\n\n\n" + CORE}, "1.1")
    release(checkout, CONFLICT, "1.2")
    release(checkout, {"vllm/core.py": CORE.replace("+= 2", "+= 3"),
                       "vllm/tagma.py": "theirs\n"}, "1.3")  # fmt: skip
    before = checkout.files()
    output = checkout.project.root / "out"
    done = checkout.cli(
        "matrix", "1.1", "1.2", "1.3", "--json", "--output", str(output)
    )
    assert done.returncode == 0, done.stderr
    columns = json.loads(done.stdout)["data"]["releases"]
    cells = [[cell["landing"] for cell in column["cells"]] for column in columns]
    assert cells == [["moved", "clean"], ["conflict", "clean"], ["upstream", "clean"]]
    assert [column["share"] for column in columns] == [1.0, 0.5, 1.0]
    assert columns[2]["clashes"] == ["vllm/tagma.py"]
    assert any("+= 20" in line for line in columns[1]["cells"][0]["details"])
    assert checkout.files() == before
    assert not (checkout.project.build / "rebase").exists()
    first = {path.name: path.read_bytes() for path in output.iterdir()}
    assert set(first) == {"matrix.json", "matrix.md", "matrix.svg"}
    checkout.cli("matrix", "1.1", "1.2", "1.3", "--output", str(output))
    assert {path.name: path.read_bytes() for path in output.iterdir()} == first
