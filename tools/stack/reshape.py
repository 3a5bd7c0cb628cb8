"""Changes of the series that need no edits: drop, rename, split, fold."""

import re
from dataclasses import replace
from fnmatch import fnmatchcase

from tools.base.errors import ToolError
from tools.base.git import Repository
from tools.base.outcome import Outcome
from tools.stack.refresh import header
from tools.stack.rewrite import Rewritten, merge, rewrite
from tools.stack.stack import Stack
from tools.tree.folder import slug
from tools.tree.hunk import Hunk, split_lines
from tools.tree.patch import Patch
from tools.tree.placed import PlacedPatch


def drop(stack: Stack, number: int) -> Rewritten:
    """Remove a patch from the series.

    Args:
        stack: The series.
        number: The patch's place, from 1.

    Raises:
        ToolError: A later patch needs it.
    """
    placed = list(stack.placed)
    del placed[number - 1]
    commit = stack.commits[number][:12]
    return rewrite(
        stack.tree,
        f"drop {stack.names[number - 1]}",
        placed,
        stack.position - (number <= stack.position),
        mend=_by_git(stack, f"rebase --onto {commit}^ {commit}"),
    )


def rename(stack: Stack, number: int, name: str) -> Rewritten:
    """Give a patch another file name; its number stays.

    Raises:
        ToolError: The name has no letter or digit, or another patch has it.
    """
    placed = list(stack.placed)
    old = placed[number - 1].patch
    words = slug(re.sub(r"^\d{4}-|\.patch$", "", name))
    renamed = f"{old.name[:4]}-{words}.patch"
    if renamed != old.name and renamed in stack.names:
        raise ToolError(
            Outcome.USAGE, f"there is a {renamed} already", ("Choose another name",)
        )
    placed[number - 1] = replace(placed[number - 1], patch=replace(old, name=renamed))
    return rewrite(stack.tree, f"rename {old.name}", placed, stack.position)


def split(
    stack: Stack, number: int, parts: tuple[str, ...], subject: str, description: str
) -> Rewritten:
    """Move some files and hunks of a patch to a new patch behind it.

    Args:
        stack: The series.
        number: The patch's place, from 1.
        parts: Which ones, as paths, hunks (`PATH:2` is a path's second) or shell
            patterns of either.
        subject: Of the new patch.
        description: Why the new patch is needed.

    Raises:
        ToolError: None or all of the patch is named, or a part is none of it.
    """
    placed = list(stack.placed)
    old = placed[number - 1]
    middle = _without(stack.repository, old, parts)
    whole = old.patch.fields
    patch = header(stack, subject, description, whole["From"], whole["Origin"])
    placed[number - 1 : number] = [
        replace(old, after=middle),
        PlacedPatch(patch, middle, old.after),
    ]
    position = stack.position + (number <= stack.position)
    return rewrite(stack.tree, f"split {old.patch.name}", placed, position)


def _without(repository: Repository, old: PlacedPatch, parts: tuple[str, ...]) -> str:
    """Return the tree of a patch without some of its files and hunks.

    Raises:
        ToolError: All of them are named, or a part names none.
    """
    paths = sorted(repository.paths_between(old.before, old.after))
    hunks: dict[str, dict[str, Hunk]] = {path: {} for path in paths}
    for hunk in old.patch.hunks():
        of_path = hunks[hunk.path]
        of_path[f"{hunk.path}:{len(of_path) + 1}"] = hunk
    names = [name for path, of_path in hunks.items() for name in (path, *of_path)]
    named = {part: {n for n in names if fnmatchcase(n, part)} for part in parts}
    chosen = set().union(*named.values())
    tree, files = old.after, set()
    for path, of_path in hunks.items():
        stay = [hunk for name, hunk in of_path.items() if name not in chosen]
        if path in chosen or (of_path and not stay):
            files.add(path)
        elif len(stay) < len(of_path):
            tree = _with_hunks(repository, old, tree, path, stay)
    tree = repository.tree_with(tree, old.before, files)
    unknown = [part for part, found in named.items() if not found]
    if unknown or tree == old.before:
        what = f"no part is named {unknown[0]} in" if unknown else "that is all of"
        raise ToolError(
            Outcome.USAGE,
            f"{what} {old.patch.name}",
            ("Name some of it",),
            tuple(names),
        )
    return tree


def _with_hunks(
    repository: Repository, old: PlacedPatch, tree: str, path: str, hunks: list[Hunk]
) -> str:
    """Return a tree with the file as before a patch, changed by some of its hunks."""
    before = repository.git("cat-file", "blob", f"{old.before}:{path}").stdout
    lines = split_lines(before)
    for hunk in reversed(hunks):
        first = hunk.start - 1
        lines[first : first + len(hunk.old_lines)] = hunk.new_lines
    blob = repository.git("hash-object", "-w", "--stdin", stdin=b"".join(lines)).text
    mode = repository.git("ls-tree", tree, "--", path).text.partition(" ")[0]
    entry = f"{mode} {blob}\t{path}\0".encode("utf-8", "surrogateescape")
    return repository.tree_with_entries(tree, entry)


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
    placed = list(stack.placed)
    gone, stays = placed[number - 1], placed[into - 1]
    patch = _described(stays.patch, gone.patch)
    mend = _by_git(stack, f"rebase --interactive {stack.state.overlays[:12]}")
    repository = stack.repository
    if into < number:
        after = merge(repository, gone, stays.after, mend)
        placed[into - 1] = PlacedPatch(patch, stays.before, after)
    else:
        undo = PlacedPatch(gone.patch, gone.after, gone.before)
        before = merge(repository, undo, stays.before, mend)
        placed[into - 1] = PlacedPatch(patch, before, stays.after)
    del placed[number - 1]
    position = stack.position - (number <= stack.position)
    title = f"fold {gone.patch.name} into {patch.name}"
    return rewrite(stack.tree, title, placed, position, mend=mend)


def _described(patch: Patch, other: Patch) -> Patch:
    """Return a patch whose description tells of another patch too."""
    parts = (patch.description, other.fields["Subject"], other.description)
    description = "\n\n".join(part for part in parts if part)
    return replace(patch, header=patch.header.with_description(description))


def _by_git(stack: Stack, command: str) -> tuple[str, ...]:
    """Return how to solve a conflict of other patches by git."""
    push = ("python -m tools push --all",) if stack.state.position else ()
    return (
        *push,
        f"Solve it by git: git -C {stack.tree.project.tree} {command}",
        "then: python -m tools export",
    )
