"""Fault points: places at which a test kills this process, as a power cut would."""

import os
import signal

# The number of the point at which the process dies; unset: never.
VARIABLE = "TAGMA_KILL_AT"
_passed = 0


def point() -> None:
    """Die here by SIGKILL, if a test asks for it. Before anything that lasts."""
    global _passed
    if wanted := os.environ.get(VARIABLE):
        _passed += 1
        if _passed == int(wanted):
            os.kill(os.getpid(), signal.SIGKILL)
