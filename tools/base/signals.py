"""The signals that end a process."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def raised(*more: signal.Signals) -> Iterator[None]:
    """Turn the signals that end a process into an exception, so that blocks close.

    Args:
        more: Further signals to turn, also where our parent has us ignore them.
    """

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    old = {number: signal.signal(number, end) for number in (*_ENDING, *more)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
