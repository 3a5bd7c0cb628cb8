"""What a benchmark's round is: it times its operations once."""

import gc
from collections.abc import Callable

# Nanoseconds by operation.
Round = Callable[[], dict[str, float]]


def settle() -> None:
    """Collect garbage now, and leave out of later collections what has survived."""
    gc.collect()
    gc.freeze()
