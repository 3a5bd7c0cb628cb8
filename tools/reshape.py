"""Changes of the series that need no edits: drop, rename, split, fold."""

import re
from dataclasses import replace
from fnmatch import fnmatchcase

from tools.errors import ToolError
from tools.export import Step, slug
from tools.outcome import Outcome
from tools.refresh import header
from tools.rewrite import Rewritten, merge, rewrite
from tools.stack import Stack


def drop(stack: Stack, number: int) -> Rewritten:
    """Remove a patch from the series.

    Args:
        stack: The series.
        number: The patch's place, from 1.

    Raises:
        ToolError: A later patch needs it.
    """
    steps = stack.steps
    del steps[number - 1]
    commit = stack.commits[number][:12]
    return rewrite(
        stack.tree,
        steps,
        stack.position - (number <= stack.position),
        mend=_by_git(stack, f"rebase --onto {commit}^ {commit}"),
    )


def rename(stack: Stack, number: int, name: str) -> Rewritten:
    """Give a patch another file name; its number stays.

    Raises:
        ToolError: The name has no letter or digit, or another patch has it.
    """
    steps = stack.steps
    old = steps[number - 1].patch
    words = slug(re.sub(r"^\d{4}-|\.patch$", "", name))
    renamed = f"{old.name[:4]}-{words}.patch"
    if renamed != old.name and renamed in stack.names:
        raise ToolError(
            Outcome.USAGE, f"there is a {renamed} already", ("Choose another name",)
        )
    steps[number - 1] = replace(steps[number - 1], patch=replace(old, name=renamed))
    return rewrite(stack.tree, steps, stack.position)


def split(
    stack: Stack, number: int, globs: tuple[str, ...], subject: str, description: str
) -> Rewritten:
    """Move some files of a patch to a new patch behind it.

    Args:
        stack: The series.
        number: The patch's place, from 1.
        globs: Which files, as paths or shell patterns.
        subject: Of the new patch.
        description: Why the new patch is needed.

    Raises:
        ToolError: None or all of the patch's files are named.
    """
    steps = stack.steps
    step = steps[number - 1]
    files = stack.repository.paths_between(step.before, step.after)
    chosen = {path for path in files if any(fnmatchcase(path, g) for g in globs)}
    if not chosen or chosen == files:
        raise ToolError(
            Outcome.USAGE,
            f"{'all' if chosen else 'no'} files of {step.patch.name} are named",
            ("Name some of them",),
            tuple(sorted(files)),
        )
    middle = stack.repository.tree_with(step.after, step.before, chosen)
    patch = header(stack, subject, description, step.patch.fields["From"])
    steps[number - 1 : number] = [
        replace(step, after=middle),
        Step(patch, middle, step.after),
    ]
    return rewrite(stack.tree, steps, stack.position + (number <= stack.position))


def fold(stack: Stack, number: int, into: int) -> Rewritten:
    """Make two patches one; it keeps the header of `into` and both descriptions.

    Args:
        stack: The series.
        number: The place of the patch that goes, from 1.
        into: The place of the patch that stays.

    Raises:
        ToolError: They are one patch, or a patch between them conflicts.
    """
    if number == into:
        raise ToolError(
            Outcome.USAGE, "a patch cannot be folded into itself", ("Name another one",)
        )
    steps = stack.steps
    gone, stays = steps[number - 1], steps[into - 1]
    description = "\n\n".join(
        part
        for part in (
            stays.patch.description,
            gone.patch.fields["Subject"],
            gone.patch.description,
        )
        if part
    )
    patch = replace(stays.patch, description=description)
    mend = _by_git(stack, f"rebase --interactive {stack.state.overlays[:12]}")
    repository = stack.repository
    if into < number:
        after = merge(repository, gone, stays.after, mend)
        steps[into - 1] = Step(patch, stays.before, after)
    else:
        undo = Step(gone.patch, gone.after, gone.before)
        before = merge(repository, undo, stays.before, mend)
        steps[into - 1] = Step(patch, before, stays.after)
    del steps[number - 1]
    position = stack.position - (number <= stack.position)
    return rewrite(stack.tree, steps, position, mend=mend)


def _by_git(stack: Stack, command: str) -> tuple[str, ...]:
    """Return how to solve a conflict of other patches by git."""
    push = ("python -m tools push --all",) if stack.state.position else ()
    return (
        *push,
        f"Solve it by git: git -C {stack.tree.project.tree} {command}",
        "then: python -m tools export",
    )
