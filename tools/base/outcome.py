"""How a command can end, as a closed set, and the record that `--json` prints."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Outcome(Enum):
    """The end of a command. The value is the name in JSON."""

    DONE = "done"
    UNCHANGED = "unchanged"
    # The user must act.
    TREE_EDITED = "tree-edited"
    LOCKED = "locked"
    OFFLINE = "offline"
    OUT_OF_SYNC = "out-of-sync"
    MISSING_TOOL = "missing-tool"
    COMMAND_FAILED = "command-failed"
    SYSTEM = "system"
    DIFFERENT = "different"
    CONFLICT = "conflict"
    IN_PROGRESS = "in-progress"
    NOT_IN_PROGRESS = "not-in-progress"
    USAGE = "usage"
    # The input is broken.
    BAD_PIN = "bad-pin"
    WRONG_HASH = "wrong-hash"
    UNSAFE_ARCHIVE = "unsafe-archive"
    BAD_SERIES = "bad-series"
    BAD_PATCH = "bad-patch"
    PATCH_FAILED = "patch-failed"
    BAD_OVERLAY = "bad-overlay"
    WRONG_TREE = "wrong-tree"
    BAD_PLACE = "bad-place"
    BAD_WHEEL = "bad-wheel"
    BAD_LOCK = "bad-lock"
    BAD_TRACE = "bad-trace"

    @property
    def exit_code(self) -> int:
        """0 done, 1 the user must act, 2 wrong usage, 3 broken input."""
        if self in (Outcome.DONE, Outcome.UNCHANGED):
            return 0
        if self is Outcome.USAGE:
            return 2
        return 1 if self in _USER_MUST_ACT else 3


_USER_MUST_ACT = frozenset(
    {
        Outcome.TREE_EDITED,
        Outcome.LOCKED,
        Outcome.OFFLINE,
        Outcome.OUT_OF_SYNC,
        Outcome.MISSING_TOOL,
        Outcome.COMMAND_FAILED,
        Outcome.SYSTEM,
        Outcome.DIFFERENT,
        Outcome.CONFLICT,
        Outcome.IN_PROGRESS,
        Outcome.NOT_IN_PROGRESS,
    }
)


@dataclass(frozen=True)
class Report:
    """What one command did, in the form that every command shares.

    Args:
        command: The command's name.
        outcome: How it ended.
        message: One line for people.
        next_steps: What the user can do now.
        details: Further lines for people.
        data: Measured values and paths, for programs.
    """

    command: str
    outcome: Outcome
    message: str
    next_steps: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the record as one JSON object."""
        return json.dumps(
            {
                "command": self.command,
                "outcome": self.outcome.value,
                "exit_code": self.outcome.exit_code,
                "message": self.message,
                "next_steps": list(self.next_steps),
                "details": list(self.details),
                "data": dict(self.data),
            },
            indent=2,
        )
