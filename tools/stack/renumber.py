"""New numbers for patches of two people who took the same one."""

from dataclasses import replace

from tools.stack.rewrite import Rewritten, rewrite
from tools.stack.stack import Stack


def renumber(stack: Stack) -> Rewritten:
    """Give each patch whose number an earlier one has the next free number."""
    steps = stack.steps
    last = max((int(name[:4]) for name in stack.names), default=0)
    seen: set[str] = set()
    for place, step in enumerate(steps):
        name = step.patch.name
        if name[:4] in seen:
            last += 1
            patch = replace(step.patch, name=f"{last:04}{name[4:]}")
            steps[place] = replace(step, patch=patch)
        seen.add(name[:4])
    return rewrite(stack.tree, steps, stack.position)
