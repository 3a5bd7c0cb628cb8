"""What became of the names of upstream that the overlays use."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tools.carry.definitions import Definition, Definitions
from tools.carry.uses import Use, UseKind


class Fate(Enum):
    """What became of a used name, worst last."""

    SAME = "same"
    BODY = "body"
    SIGNATURE = "signature"
    MISFIT = "misfit"  # the overlay's call or override does not fit any more
    MISSING = "missing"

    @property
    def weight(self) -> int:
        """The risk of it: 0 none, 1 to read, 3 to look at closely, 5 broken."""
        return {"same": 0, "body": 1, "signature": 3}.get(self.value, 5)


@dataclass(frozen=True)
class NameDrift:
    """What two releases say about one use.

    Args:
        use: The use.
        fate: The worst that is true of it.
        old: The signature in the old release.
        new: The signature in the new one.
        why: For a MISFIT, what does not fit.
        moved: The file that has it now, if that is another.
    """

    use: Use
    fate: Fate
    old: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    why: str = ""
    moved: str = ""


def compare(uses: list[Use], old: Definitions, new: Definitions) -> list[NameDrift]:
    """Return what became of each use that the old release can satisfy."""
    drifts = []
    for use in uses:
        before = old.find(use.module, use.name)
        if before is None:
            continue  # a member that only the overlay has, or a patch adds
        names = ((use.module, use.name), *use.instead)
        after = next(filter(None, (new.find(*name) for name in names)), None)
        if after is None:
            drifts.append(NameDrift(use, Fate.MISSING, before.signature))
            continue
        why = misfit(use, after)
        # What does not fit the old release either is no news, and no call of ours
        # that this reading understands.
        if why and not misfit(use, before):
            fate = Fate.MISFIT
        elif before.signature != after.signature:
            fate, why = Fate.SIGNATURE, ""
        else:
            fate = Fate.SAME if before.body == after.body else Fate.BODY
            why = ""
        moved = after.path if after.path != before.path else ""
        drifts.append(
            NameDrift(use, fate, before.signature, after.signature, why, moved)
        )
    return drifts


def misfit(use: Use, found: Definition) -> str:
    """Return why a call or an override does not fit a definition; "" if it does."""
    if found.parameters is None:
        return ""
    if use.kind is UseKind.OVERRIDE and use.accepts is not None:
        lacking = [name for name in found.parameters if name not in use.accepts]
        return f"the override lacks {', '.join(lacking)}" if lacking else ""
    call = use.call
    if use.kind is not UseKind.CALL or call is None or call.open:
        return ""
    strangers = [k for k in call.keywords if k not in found.parameters]
    if strangers and not found.any_keyword:
        return f"it takes no {', '.join(strangers)}"
    if found.positional is not None and call.positional > found.positional:
        return f"it takes {found.positional} positional arguments"
    given = {*found.parameters[: call.positional], *call.keywords}
    if missing := [name for name in found.required if name not in given]:
        return f"it also needs {', '.join(missing)}"
    return ""


def names_data(drifts: Iterable[NameDrift]) -> list[dict[str, Any]]:
    """Return the used names that changed, the worst first, each with its users."""
    changed: dict[str, dict[str, Any]] = {}
    for drift in drifts:
        if drift.fate is Fate.SAME:
            continue
        entry = changed.setdefault(
            drift.use.target,
            {
                "name": drift.use.target,
                "change": drift.fate.value,
                "removed": [part for part in drift.old if part not in drift.new],
                "added": [part for part in drift.new if part not in drift.old],
                "why": "",
                "moved_to": drift.moved,
                "used_at": [],
            },
        )
        place = drift.use.file  # no line: that would change with every edit
        if drift.fate.weight > Fate(entry["change"]).weight:
            entry["change"] = drift.fate.value
        entry["why"] = entry["why"] or (f"{place}: {drift.why}" if drift.why else "")
        if place not in entry["used_at"]:
            entry["used_at"].append(place)
    return sorted(
        changed.values(), key=lambda e: (-Fate(e["change"]).weight, e["name"])
    )
