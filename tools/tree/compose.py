"""The commits of the tree, made as git objects alone: no file and no branch moves.

One commit holds the release, one the overlays, one each patch of the series.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from tools.base import console
from tools.base.errors import ToolError
from tools.base.git import Repository
from tools.base.outcome import Outcome
from tools.base.project import Project
from tools.source.fetch import ReleaseSource
from tools.source.pin import Pin
from tools.tree import overlay
from tools.tree.folder import file_digests
from tools.tree.hunk import check_place
from tools.tree.inputs import Inputs
from tools.tree.patch import Patch
from tools.tree.scratch import scratch
from tools.tree.state import State

# Of a diff's head: a line of a file's text has a sign before it.
_SUBMODULE = re.compile(rb"^(new file mode|new mode) 160000$", re.MULTILINE)


def base_reference(pin: Pin) -> str:
    """Return the reference of a release that has been imported."""
    return f"refs/tagma/base/{pin.tree}"


def import_base(project: Project, pin: Pin, source: ReleaseSource) -> str:
    """Return the commit of the pinned release, importing it if need be.

    Raises:
        ToolError: The source cannot be had or is not the pinned release.
    """
    repository = Repository(project.tree)
    reference = base_reference(pin)
    if base := repository.resolve(reference):
        return base
    with scratch(project) as folder:
        tree = source.import_into(repository, pin, folder)
    if tree != pin.tree:
        raise ToolError(
            Outcome.WRONG_TREE,
            f"{source.name} does not give the pinned tree of {pin.version}",
            ("Use the pinned sdist (the default source)",),
            (f"expected tree {pin.tree}", f"found    tree {tree}"),
        )
    base = repository.commit_tree(tree, f"Import vllm {pin.version}\n", None)
    repository.git("update-ref", reference, base)
    return base


def lay_overlays(project: Project, inputs: Inputs) -> str:
    """Return a commit of the overlays on top of the base, which is imported.

    Raises:
        ToolError: An overlay would replace a file of upstream's.
    """
    repository = Repository(project.tree)
    reference = base_reference(inputs.pin)
    base = repository.git("rev-parse", "--verify", reference).text
    overlay.refuse_conflicts(inputs.overlays)
    _refuse_replacing(repository, inputs, base)
    paths = "".join(f"{file.source}\n" for file in inputs.overlays)
    blobs = repository.git(
        "hash-object", "-w", "--no-filters", "--stdin-paths", stdin=paths.encode()
    ).text.split()
    entries = "".join(
        f"{file.mode} {blob}\t{file.target}\0"
        for file, blob in zip(inputs.overlays, blobs, strict=True)
    )
    tree = repository.tree_with_entries(base, entries.encode())
    return repository.commit_tree(tree, "Lay the overlays\n", base)


def compose(project: Project, inputs: Inputs) -> State:
    """Make all commits on top of the base, which is imported.

    Returns:
        What the tree's state will be once the work tree has moved there.

    Raises:
        ToolError: An input is broken.
    """
    commits = [lay_overlays(project, inputs)]
    total = len(inputs.series.names)
    with console.step("apply the series", total) as step:
        for commit in _apply_series(project, inputs, commits[0]):
            commits.append(commit)
            step.advance(1)
    patches = file_digests(inputs.series.folder)
    return State(inputs.digest(), commits[0], commits[-1], True, patches=patches)


def commit_patch(repository: Repository, patch: Patch, tree: str, parent: str) -> str:
    """Commit what a patch makes, with its message, author and date.

    Args:
        repository: The repository.
        patch: The patch.
        tree: Git tree id with the patch.
        parent: The commit before it.

    Returns:
        The commit, always the same for the same arguments.
    """
    author, date = patch.fields["From"], patch.fields["Last-Update"]
    return repository.commit_tree(
        tree, patch.message, parent, author, f"{date}T00:00:00+0000"
    )


def _apply_series(project: Project, inputs: Inputs, overlays: str) -> Iterator[str]:
    """Apply one patch after the other; yield their commits."""
    repository = Repository(project.tree)
    commit, tree = overlays, repository.tree_of(overlays)
    with scratch(project) as folder:
        index = folder / "index"
        repository.git("read-tree", overlays, index=index)
        for path in inputs.series.paths:
            patch = Patch.parse(path.name, path.read_bytes())
            _apply(repository, patch, index)
            before, tree = tree, repository.git("write-tree", index=index).text
            if tree == before:
                raise ToolError(
                    Outcome.BAD_PATCH,
                    f"{path.name} changes nothing",
                    ("Remove it from the series",),
                )
            commit = commit_patch(repository, patch, tree, commit)
            yield commit


def _apply(repository: Repository, patch: Patch, index: Path) -> None:
    """Apply a patch to an index, each hunk at the very place that it names."""
    if _SUBMODULE.search(patch.diff):
        raise ToolError(
            Outcome.BAD_PATCH,
            f"{patch.name} adds a submodule, which no sdist can have",
            ("Add its files as an overlay",),
        )
    for hunk in patch.hunks():
        blob = repository.git(
            "cat-file", "blob", f":{hunk.path}", index=index, check=False
        )
        check_place(patch.name, hunk, blob.stdout if blob.status == 0 else None)
    done = repository.git(
        *("apply", "--cached", "--whitespace=nowarn", "-"),
        stdin=patch.diff,
        index=index,
        check=False,
    )
    if done.status != 0:
        raise ToolError(
            Outcome.PATCH_FAILED,
            f"{patch.name} does not apply",
            ("Mend the patch, or restore the file that it was made for",),
            tuple(done.error_text.splitlines()),
        )


def _refuse_replacing(repository: Repository, inputs: Inputs, base: str) -> None:
    """Stop before an overlay replaces a file or a folder of upstream's."""
    sources = {file.target: file.source for file in inputs.overlays}
    if found := overlay.replaced(sources, repository.paths(base)):
        raise ToolError(
            Outcome.BAD_OVERLAY,
            f"{sources[found[0]]} would replace upstream's {found[0]}",
            ("Rename the overlay file, or change upstream's file by a patch",),
            tuple(f"{sources[path]} → {path}" for path in found),
        )
