"""The signals that end a process."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def raised() -> Iterator[None]:
    """Turn the signals that end a process into an exception, so that blocks close."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    old = {number: signal.signal(number, end) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
