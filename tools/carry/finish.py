"""The end of a rebase: the files that it makes, checked, then put in place at once."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.base.project import Project
from tools.carry import report, resolutions
from tools.carry.journal import Journal
from tools.carry.releases import Releases
from tools.tree import underway
from tools.tree.compose import compose
from tools.tree.export import diff_between
from tools.tree.folder import files_of
from tools.tree.inputs import Inputs
from tools.tree.patch import Patch
from tools.tree.scratch import scratch
from tools.tree.series import Series
from tools.tree.state import State
from tools.tree.transaction import Changes, File, Transaction, write
from tools.tree.tree import Tree


@dataclass(frozen=True)
class Finished:
    """A rebase that is done.

    Args:
        journal: What it did.
        report: The report for people.
        kept: The folder with copies of all that was replaced or dropped.
    """

    journal: Journal
    report: Path
    kept: Path


def finish(
    tree: Tree, journal: Journal, learned: Mapping[str, resolutions.Resolution]
) -> Finished:
    """Check what the new files make, then put them in place.

    Args:
        tree: The tree.
        journal: The rebase; all its patches are done.
        learned: The resolutions that the user made in it.

    Raises:
        ToolError: The series changed since the rebase began, or the tree has edits.
            Nothing has changed then.
    """
    project = tree.project
    inputs = Inputs.read(project)
    if inputs.digest() != journal.inputs:
        raise ToolError(
            Outcome.OUT_OF_SYNC,
            "pin, patches or overlays changed since the rebase began",
            (
                "Restore them, then: python -m tools rebase --continue",
                "or begin again: python -m tools rebase --abort",
            ),
        )
    changes = dict(_new_files(tree, journal, learned))
    state = _checked(project, journal, inputs, changes)
    tree.refuse_edits()
    tree.refuse_overwriting(state.commit)
    spent = (underway.folder(project).name,)
    tree.change(f"rebase {journal.new.version}", changes, state, spent)
    return finished(project, journal)


def finished(project: Project, journal: Journal) -> Finished:
    """Return a rebase whose files are in place."""
    name = f"{report.name(journal.old, journal.new)}.md"
    made = Transaction.last(project)
    assert made and made.kept
    return Finished(journal, project.reports / name, made.kept)


def _checked(
    project: Project, journal: Journal, inputs: Inputs, changes: Changes
) -> State:
    """Return the state that the new files make, as `apply` would make it."""
    with scratch(project) as folder:
        write(changes, folder)
        series = Series.read(folder / "patches")
        state = compose(project, Inputs(journal.new, inputs.overlays, series))
    if state.commit != journal.tip:
        raise ToolError(
            Outcome.WRONG_TREE,
            "the new patches do not give the tree that the rebase made",
            ("Keep build/rebase and report this",),
            (f"expected commit {journal.tip}", f"found    commit {state.commit}"),
        )
    return state


def _new_files(
    tree: Tree, journal: Journal, learned: Mapping[str, resolutions.Resolution]
) -> Iterator[tuple[str, File | None]]:
    """Yield the files that the rebase changes, below the project."""
    project, repository = tree.project, tree.repository
    patches = []
    for entry in journal.done:
        path = project.patches / entry.name
        if not entry.commit:
            yield f"patches/{entry.name}", None
        else:
            diff = diff_between(repository, f"{entry.commit}^", entry.commit)
            old = Patch.parse(entry.name, path.read_bytes())
            patches.append(replace(old, diff=diff))
    for name, content in files_of(project.patches, patches).items():
        yield f"patches/{name}", File(content)
    for resolution in learned.values():
        name = f"patches/{resolutions.FOLDER}/{resolution.filename}"
        yield name, File(resolution.to_bytes())
    pin_text = project.pin_file.read_text("utf-8")
    yield "upstream/pin.toml", File(journal.new.to_toml(pin_text).encode())
    lock = repository.tree_of(journal.tip)
    yield "upstream/tree.lock", File(f"{lock}\n".encode())
    known = Releases.read(project.releases_file)
    yield "upstream/releases.toml", File(known.text_with(journal.old, journal.new))
    for name, content in report.files(project, repository, journal).items():
        yield f"upstream/reports/{name}", File(content)
