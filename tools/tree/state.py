"""What the patched tree was made from, recorded beside it."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tools.base import atomic
from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.base.project import Project


@dataclass(frozen=True)
class State:
    """What the tree was made from; written before and after the work tree moves.

    Args:
        inputs: Digest of pin, overlays and series.
        overlays: The commit that laid the overlays.
        commit: The last commit of the series.
        moving: The work tree is on its way to `here`.
        position: Where the work tree stands in the series; "": at `commit`.
        patches: Digest of each file in patches/ that it was made from, by name.
    """

    inputs: str
    overlays: str
    commit: str
    moving: bool
    position: str = ""
    patches: dict[str, str] = field(default_factory=dict)

    @property
    def here(self) -> str:
        """The commit that the work tree belongs to."""
        return self.position or self.commit

    @staticmethod
    def file(project: Project) -> Path:
        """Return where a project's state is recorded: it goes with the tree."""
        return project.tree / ".git" / "tagma.json"

    @classmethod
    def read(cls, path: Path) -> "State | None":
        """Return the recorded state; None if there is none."""
        try:
            return cls(**json.loads(path.read_text("utf-8")))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise ToolError(
                Outcome.TREE_EDITED,
                f"{path} is damaged, so edits in the tree cannot be told apart",
                ("Save what you need from the tree, then remove its folder",),
            ) from error

    def write(self, path: Path) -> None:
        """Record the state in one step."""
        atomic.write(path, json.dumps(asdict(self)).encode())
