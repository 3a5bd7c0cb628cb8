"""Open files that the programs we start keep open, such as a lock."""

from collections.abc import Iterator
from contextlib import contextmanager

_inherited: list[int] = []


@contextmanager
def inherited(descriptor: int) -> Iterator[None]:
    """Let every program that `run` starts in the block hold a file open."""
    _inherited.append(descriptor)
    try:
        yield
    finally:
        _inherited.remove(descriptor)


def inherited_files() -> tuple[int, ...]:
    """Return what a program started now would hold open."""
    return tuple(_inherited)
