"""What a rebase has done so far, in one file that is replaced in one step."""

import json
from dataclasses import asdict, dataclass, replace

from tools.base import atomic
from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.base.project import Project
from tools.carry.landing import Carried, Landing
from tools.source.pin import Artifact, Pin
from tools.tree import underway
from tools.tree.threeway import Conflict


@dataclass(frozen=True)
class Entry:
    """A patch of the series that is done.

    Args:
        name: Its file.
        landing: What became of it.
        commit: Its new commit; "" if it was dropped.
        details: What a person should know.
        resolutions: Files of the resolutions that solved it, with the path of each.
    """

    name: str
    landing: Landing
    commit: str
    details: tuple[str, ...] = ()
    resolutions: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Journal:
    """The state of a rebase.

    Args:
        inputs: Digest of pin, overlays and series at its start.
        old: The release that the series is on.
        new: The release that it goes to.
        series: Each patch file and its commit in the old tree, in order.
        tip: The last commit of the new series so far.
        done: The patches that are done, in order.
        stopped: The patch that waits for the user.
        offer: Use stored resolutions.
        taken: The files of that patch for which the user named a side, and the side.
    """

    inputs: str
    old: Pin
    new: Pin
    series: tuple[tuple[str, str], ...]
    tip: str
    done: tuple[Entry, ...] = ()
    stopped: Carried | None = None
    offer: bool = True
    taken: tuple[tuple[str, str], ...] = ()

    @classmethod
    def read(cls, project: Project) -> "Journal | None":
        """Return the journal of the rebase that is under way, if there is one."""
        path = underway.journal_file(project)
        try:
            data = json.loads(path.read_text("utf-8"))
            return cls(
                inputs=data["inputs"],
                old=_pin(data["old"]),
                new=_pin(data["new"]),
                series=tuple((name, commit) for name, commit in data["series"]),
                tip=data["tip"],
                done=tuple(_entry(entry) for entry in data["done"]),
                stopped=_carried(data["stopped"]) if data["stopped"] else None,
                offer=data["offer"],
                taken=tuple((name, side) for name, side in data["taken"]),
            )
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise ToolError(
                Outcome.SYSTEM,
                f"{path} is damaged",
                (f"Move {path.parent} away; patches/ is as it was", "git status"),
                (str(error),),
            ) from error

    def write(self, project: Project) -> None:
        """Record the state in one step."""
        data = {"title": f"a rebase to {self.new.version}", **asdict(self)}
        text = json.dumps(data, indent=1, default=lambda member: member.value)
        atomic.write(underway.journal_file(project), text.encode())

    @property
    def phase(self) -> str:
        """Where it stands: "stopped" at a patch, or in the middle of the "replay"."""
        return "stopped" if self.stopped else "replay"

    @property
    def next_patch(self) -> tuple[str, str] | None:
        """The patch that comes next, and its old commit."""
        return next(iter(self.series[len(self.done) :]), None)

    def with_entry(self, entry: Entry) -> "Journal":
        """Return the journal after one more patch."""
        return replace(
            self,
            done=(*self.done, entry),
            tip=entry.commit or self.tip,
            stopped=None,
            taken=(),
        )


def _pin(data: dict[str, object]) -> Pin:
    fields = dict(data)
    if sdist := fields["sdist"]:
        fields["sdist"] = Artifact(**sdist)  # type: ignore[arg-type]
    wheels = fields["wheels"]
    assert isinstance(wheels, dict)
    fields["wheels"] = {device: Artifact(**wheel) for device, wheel in wheels.items()}
    return Pin(**fields)  # type: ignore[arg-type]


def _entry(data: dict[str, object]) -> Entry:
    return Entry(
        str(data["name"]),
        Landing(data["landing"]),
        str(data["commit"]),
        tuple(data["details"]),  # type: ignore[arg-type]
        tuple((a, b) for a, b in data["resolutions"]),  # type: ignore[attr-defined]
    )


def _carried(data: dict[str, object]) -> Carried:
    conflicts = data["conflicts"]
    assert isinstance(conflicts, list)
    return Carried(
        str(data["name"]),
        Landing(data["landing"]),
        str(data["tree"]),
        tuple(data["details"]),  # type: ignore[arg-type]
        tuple(Conflict(**conflict) for conflict in conflicts),
    )
