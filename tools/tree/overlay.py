"""The overlays: folders of new files and where they are laid into the tree."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tools.base import text
from tools.base.errors import ToolError
from tools.base.outcome import Outcome

# Source folder in this repository → folder in the patched tree.
FOLDERS = {
    "csrc_tagma": "csrc/tagma",
    "vllm_overlay": "vllm",
    "tests/vllm": "tests",
}


@dataclass(frozen=True)
class OverlayFile:
    """One new file.

    Args:
        source: Where it is edited.
        target: Its path in the tree, with forward slashes.
    """

    source: Path
    target: str

    @property
    def mode(self) -> str:
        """The file's git mode."""
        return "100755" if self.source.stat().st_mode & 0o100 else "100644"


def files(root: Path) -> Iterator[OverlayFile]:
    """Iterate over the overlay files of a checkout, in a fixed order."""
    for folder, target in FOLDERS.items():
        base = root / folder
        for path in sorted(base.rglob("*")):
            inside = path.relative_to(base)
            if path.is_file() and not any(map(_is_litter, inside.parts)):
                yield OverlayFile(path, f"{target}/{inside.as_posix()}")


def tests(root: Path) -> list[str]:
    """Return the test files among the overlays, by their paths in the tree."""
    targets = (file.target for file in files(root))
    return [
        target
        for target in targets
        if target.startswith("tests/") and Path(target).match("test_*.py")
    ]


def refuse_conflicts(overlays: Iterable[OverlayFile]) -> None:
    """Stop at a file that has the marks of a conflict.

    Raises:
        ToolError: One has.
    """
    for file in overlays:
        if line := text.conflict_line(file.source.read_bytes()):
            raise ToolError(
                Outcome.BAD_OVERLAY,
                f"{file.source}: line {line} is the mark of a conflict",
                ("Solve it",),
            )


def replaced(targets: Iterable[str], upstream: Iterable[str]) -> tuple[str, ...]:
    """Return the overlays' targets that would replace a file or folder of upstream's.

    >>> replaced(["vllm/a.py", "vllm/b/c.py", "vllm/d"], ["vllm/b", "vllm/d/e.py"])
    ('vllm/b/c.py', 'vllm/d')
    """
    files = set(upstream)
    folders = {str(above) for path in files for above in PurePosixPath(path).parents}
    return tuple(
        target
        for target in targets
        if target in files | folders
        or files & {str(above) for above in PurePosixPath(target).parents}
    )


def source_of(target: str) -> str | None:
    """Return where a file of the tree would be an overlay, by its place alone.

    >>> source_of("csrc/tagma/new.h"), source_of("csrc/new.h")
    ('csrc_tagma/new.h', None)
    """
    for folder, laid in FOLDERS.items():
        if target.startswith(f"{laid}/"):
            return folder + target.removeprefix(laid)
    return None


def is_litter(path: str) -> bool:
    """Whether a path is what tools leave behind, which is never an overlay."""
    return any(map(_is_litter, path.split("/")))


def _is_litter(name: str) -> bool:
    """Whether a file or folder is what tools leave behind: caches, editor files."""
    return name.startswith(".") or name == "__pycache__" or name.endswith("~")
