"""Files and functions stay short enough to read."""

from pathlib import Path

import pytest

from tools.check.sizes import FUNCTION_LINES, MODULE_LINES, SOURCE_LINES, too_long


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout of which every file is as long as it may be."""
    for folder in ("tools/check", "csrc_tagma/tests", "vllm_overlay"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "tools" / "check" / "full.py").write_text("\n" * MODULE_LINES)
    (tmp_path / "tools" / "function.py").write_text(function(FUNCTION_LINES))
    (tmp_path / "csrc_tagma" / "full.h").write_text("\n" * SOURCE_LINES)
    return tmp_path


def function(lines: int) -> str:
    """Return a method of so many lines, behind a decorator that does not count."""
    body = "        pass\n" * (lines - 4)
    head = '        """Say."""\n        def inner():\n            pass\n'
    return f"class A:\n    @b\n    def method(self):\n{head}{body}"


def test_what_is_at_its_limit_passes(root: Path) -> None:
    assert list(too_long(root)) == []


def test_a_module_over_the_limit_is_named(root: Path) -> None:
    (root / "tools" / "check" / "full.py").write_text("\n" * 251)
    assert list(too_long(root)) == ["tools/check/full.py: 251 lines, at most 250"]


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_function_is_counted_from_def_to_its_last_line(root: Path, kind: str) -> None:
    text = function(41).replace("def method", f"{kind} method")
    (root / "tools" / "function.py").write_text(text)
    line = "tools/function.py:3: method: 41 lines, at most 40"
    assert list(too_long(root)) == [line]


def test_a_source_directly_in_the_engines_folder_is_named(root: Path) -> None:
    for name in ("full.h", "tests/long.cpp"):
        (root / "csrc_tagma" / name).write_text("\n" * 901)
    (root / "vllm_overlay" / "long.py").write_text("\n" * 901)
    assert list(too_long(root)) == ["csrc_tagma/full.h: 901 lines, at most 900"]
