"""What the overlays use of upstream, and what became of it in another release."""

from pathlib import Path

import pytest
from checkout import Checkout, tree_id

from tools.base.git import Repository
from tools.carry.definitions import Definitions
from tools.carry.name_drift import Fate, compare, misfit
from tools.carry.uses import Call, Use, UseKind, collect

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


def made(folder: Path, up: str, **more: str) -> Definitions:
    """A release with `vllm/up.py` and two files that it imports from."""
    files = {
        "vllm/up.py": up,
        "vllm/base.py": "class Deep:\n    def deep(self, count):\n        return 1\n",
        "vllm/other.py": "def helper():\n    pass\n",
    } | {name.replace("__", "/") + ".py": text for name, text in more.items()}
    tree = tree_id(folder, {name: text.encode() for name, text in files.items()})
    return Definitions(Repository(folder), tree)


def test_uses_are_imports_calls_overrides_and_inherited_members(
    uses: list[Use],
) -> None:
    found = {(use.kind, use.name) for use in uses}
    assert found == {
        (UseKind.IMPORT, "Base"),
        (UseKind.IMPORT, "Config"),
        (UseKind.IMPORT, "helps"),
        (UseKind.IMPORT, "plain"),
        (UseKind.CALL, "plain"),
        (UseKind.CALL, "Config"),
        (UseKind.CALL, "helps"),
        (UseKind.CALL, "Base.__init__"),
        (UseKind.CALL, "Base.deep"),
        (UseKind.OVERRIDE, "Base.__init__"),
        (UseKind.OVERRIDE, "Base.grow"),
        (UseKind.INHERIT, "Base.size"),
    }


@pytest.mark.parametrize(
    ("old", "new", "name", "fate"),
    [
        ("return a\n", "return b\n", "plain", Fate.BODY),
        ('"""Says something."""', '"""Says it."""', "plain", Fate.SAME),
        ("return a\n", "# why\n    return  a\n", "plain", Fate.SAME),
        ("def plain(a, b=1", "def plain(a, b=2", "plain", Fate.SIGNATURE),
        ("*, c)", "*, c, d)", "plain", Fate.MISFIT),
        ("*, c)", "*, d=1)", "plain", Fate.MISFIT),
        ("*, c)", "*, d=1, **more)", "plain", Fate.SIGNATURE),
        ("def plain", "def simple", "plain", Fate.MISSING),
        ("    name: str", "    title: str", "Config", Fate.SIGNATURE),
        ("def grow(self, count)", "def grow(self, count, why)", "Base.grow",
         Fate.MISFIT),
        ("size, *, medium", "size, rank, *, medium", "Base.__init__", Fate.MISFIT),
        ("self.size = size", "self.length = size", "Base.size", Fate.MISSING),
        ("import helper as helps", "import helps", "helps", Fate.MISSING),
        ("class Base(Deep)", "class Base(object)", "Base.deep", Fate.MISSING),
    ],
)  # fmt: skip
def test_each_kind_of_change_is_told(
    uses: list[Use], tmp_path: Path, old: str, new: str, name: str, fate: Fate
) -> None:
    assert old in UPSTREAM
    findings = compare(
        uses,
        made(tmp_path / "old", UPSTREAM),
        made(tmp_path / "new", UPSTREAM.replace(old, new)),
    )
    worst = max(
        (f.fate for f in findings if f.use.name == name), key=lambda c: c.weight
    )
    assert worst is fate
    others = {f.use.name: f.fate for f in findings if f.use.name != name}
    assert Fate.MISFIT not in others.values()


def test_moved_definition_is_found_through_imports(
    uses: list[Use], tmp_path: Path
) -> None:
    start = UPSTREAM.index("class Config")
    end = UPSTREAM.index("class Base")
    up = "from .config import Config\n" + UPSTREAM[:start] + UPSTREAM[end:]
    new = made(tmp_path / "new", up, vllm__config=UPSTREAM[start:end])
    findings = compare(uses, made(tmp_path / "old", UPSTREAM), new)
    config = [f for f in findings if f.use.name == "Config"]
    assert {f.fate for f in config} == {Fate.SAME}
    assert {f.moved for f in config} == {"vllm/config.py"}


def test_base_behind_another_overlays_class_is_upstreams(checkout: Checkout) -> None:
    """Or a class between hides what is used of upstream's."""
    folder = checkout.project.root / "vllm_overlay"
    between = "from vllm.up import Base\n\n\nclass Between(Base):\n    own: int\n"
    (folder / "between.py").write_text(between)
    (folder / "mine.py").write_text(
        "from vllm.between import Between\n\n\nclass Near(Between):\n    pass\n\n\n"
        "class Mine(Near):\n    def grow(self, count):\n        return self.size\n"
    )
    found = {(use.kind, use.name) for use in collect(checkout.project.root)
             if use.file.endswith("mine.py")}  # fmt: skip
    assert found == {(UseKind.OVERRIDE, "Base.grow"), (UseKind.INHERIT, "Base.size")}


def test_name_that_is_imported_in_place_of_another_is_not_missing(
    checkout: Checkout, tmp_path: Path
) -> None:
    (checkout.project.root / "vllm_overlay" / "mine.py").write_text(
        "try:\n    from vllm.config import plain\nexcept ImportError:\n"
        "    from vllm.up import plain\nplain(1, c=2)\n"
    )
    start, end = UPSTREAM.index("def plain"), UPSTREAM.index("class Config")
    old = made(tmp_path / "old", UPSTREAM)
    rest, plain = UPSTREAM[:start] + UPSTREAM[end:], UPSTREAM[start:end]
    new = made(tmp_path / "new", rest, vllm__config=plain)
    drifts = compare(collect(checkout.project.root), old, new)
    assert {drift.fate for drift in drifts} == {Fate.SAME}
    gone = compare(collect(checkout.project.root), old, made(tmp_path / "no", rest))
    assert {drift.fate for drift in gone} == {Fate.MISSING}


def test_open_calls_are_not_judged(tmp_path: Path) -> None:
    release_ = made(tmp_path / "r", UPSTREAM)
    found = release_.find("vllm.up", "plain")
    assert found
    use = Use("x.py", 1, UseKind.CALL, "vllm.up", "plain", Call(0, (), True))
    assert misfit(use, found) == ""
    use = Use("x.py", 1, UseKind.CALL, "vllm.up", "plain", Call(0, ("c",), False))
    assert misfit(use, found) == "it also needs a"
