"""New numbers for patches of two people who took the same one."""

from dataclasses import replace

from tools.stack.rewrite import Rewritten, rewrite
from tools.stack.stack import Stack


def renumber(stack: Stack) -> Rewritten:
    """Give each patch whose number an earlier one has the next free number."""
    placed = list(stack.placed)
    last = max((int(name[:4]) for name in stack.names), default=0)
    seen: set[str] = set()
    for place, found in enumerate(placed):
        name = found.patch.name
        if name[:4] in seen:
            last += 1
            patch = replace(found.patch, name=f"{last:04}{name[4:]}")
            placed[place] = replace(found, patch=patch)
        seen.add(name[:4])
    return rewrite(stack.tree, "renumber", placed, stack.position)
