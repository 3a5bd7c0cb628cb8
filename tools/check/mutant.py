"""Mutants: patches that break a promise on purpose, and the tests that must see it."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tools.base.errors import ToolError
from tools.base.outcome import Outcome

_FIELD = "Killed-by: "
_END = "---\n"


class Kind(Enum):
    """How a test runs; the value is the word in a mutant's head."""

    NATIVE = "native"
    BINDING = "binding"
    OVERLAY = "overlay"


@dataclass(frozen=True)
class Killer:
    """A test that must fail on a mutant.

    Args:
        kind: How it runs.
        test: The test: "copies_test Copies.AChain*" is a program of csrc_tagma/tests
            and a filter of GoogleTest, for the binding it is one of
            test_tagma_engine.py, and for an overlay a path with a name,
            "tests/v1/core/test_a.py::test_b".
    """

    kind: Kind
    test: str

    def __str__(self) -> str:
        """Return it as a mutant's head has it."""
        return f"{self.kind.value} {self.test}"


@dataclass(frozen=True)
class Mutant:
    """A patch of the patched tree.

    Args:
        path: Its file, which git can apply.
        title: What is wrong.
        killers: The tests that must see that.
        targets: The files that it changes, by their paths in the tree.
    """

    path: Path
    title: str
    killers: tuple[Killer, ...]
    targets: tuple[str, ...]

    @property
    def name(self) -> str:
        """The file's name without its suffix."""
        return self.path.stem

    @classmethod
    def read(cls, path: Path) -> "Mutant":
        """Read a file: a title, a paragraph perhaps, the killers, `---` and a diff.

        Raises:
            ToolError: The head has no title or names no test.
        """
        head, _, diff = path.read_text("utf-8").partition(_END)
        lines = head.splitlines()
        killers = tuple(
            _killer(path, line.removeprefix(_FIELD))
            for line in lines
            if line.startswith(_FIELD)
        )
        if not killers or not lines[0] or lines[0].startswith(_FIELD):
            raise _bad(path, f"its head needs a title and lines with {_FIELD.strip()}")
        targets = tuple(
            line.removeprefix("+++ b/")
            for line in diff.splitlines()
            if line.startswith("+++ b/")
        )
        return cls(path, lines[0], killers, targets)


def read_all(root: Path, names: tuple[str, ...] = ()) -> list[Mutant]:
    """Read the mutants of a checkout, in the order of their names.

    Args:
        root: The checkout.
        names: Only these; none means all.

    Raises:
        ToolError: One is broken, or none has one of the names.
    """
    folder = root / "tests" / "tools" / "mutants"
    mutants = [Mutant.read(path) for path in sorted(folder.glob("*.patch"))]
    if unknown := set(names) - {mutant.name for mutant in mutants}:
        raise ToolError(
            Outcome.USAGE,
            f"there is no mutant {', '.join(sorted(unknown))}",
            (f"See {folder}",),
        )
    return [mutant for mutant in mutants if not names or mutant.name in names]


def _killer(path: Path, words: str) -> Killer:
    kind, _, test = words.partition(" ")
    try:
        return Killer(Kind(kind), test)
    except ValueError:
        known = ", ".join(kind.value for kind in Kind)
        raise _bad(path, f"{kind} is none of {known}") from None


def _bad(path: Path, why: str) -> ToolError:
    return ToolError(Outcome.BAD_PATCH, f"{path.name}: {why}", (f"Mend {path}",))
