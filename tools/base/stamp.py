"""What a build step was made from, kept beside what it made."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.base import atomic


@dataclass(frozen=True)
class Stamp:
    """A file that names the inputs of a finished step.

    It is cleared before a step begins and written after it ends, so a killed step
    leaves none and runs again.

    Args:
        path: The file; it should vanish with what the step makes.
    """

    path: Path

    def fits(self, inputs: Mapping[str, str]) -> bool:
        """Whether the step has been finished with these inputs."""
        try:
            found: object = json.loads(self.path.read_text("utf-8"))
        except (OSError, ValueError):
            return False
        return found == dict(inputs)

    def clear(self) -> None:
        """Forget the step."""
        self.path.unlink(missing_ok=True)

    def write(self, inputs: Mapping[str, str]) -> None:
        """Record the step as finished."""
        atomic.write(self.path, json.dumps(dict(inputs), indent=2).encode())
