"""Where changes stand: by lines, and by functions and classes."""

from pathlib import Path

from tools.base.git import Repository
from tools.carry.place import Scopes, changes


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
