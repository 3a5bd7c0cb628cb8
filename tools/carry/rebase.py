"""The series, carried to another release: a state machine that survives a kill.

Patches are carried as objects only, and a journal says at any moment what is done, so
that the same work can be finished or given up. The new files are checked as `apply`
would check them; then all of them change in one transaction.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tools.base import atomic, console
from tools.base.errors import ToolError
from tools.base.git import Repository
from tools.base.outcome import Outcome
from tools.base.project import Project
from tools.carry import report, resolutions
from tools.carry.identity import identified
from tools.carry.journal import Entry, Journal, folder
from tools.carry.landing import Carried, Landing
from tools.carry.merge import Step, carry, solve
from tools.carry.releases import Releases
from tools.carry.wheels import with_wheels
from tools.source.fetch import GitRemote, Sdist
from tools.tree import overlay
from tools.tree.compose import commit_patch, compose, lay_overlays
from tools.tree.edits import Snapshot
from tools.tree.export import diff_between, files_of
from tools.tree.inputs import Inputs
from tools.tree.patch import Patch
from tools.tree.scratch import scratch
from tools.tree.series import Series
from tools.tree.transaction import File, Transaction, write
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


class Rebase:
    """The rebase of a project. The caller holds the project's lock."""

    def __init__(self, project: Project):
        self.project = project
        self.tree = Tree(project)
        self.repository = self.tree.repository
        self.folder = folder(project)
        # The user works in a repository of its own that borrows the tree's objects:
        # nothing done in it can harm the tree.
        self.work = Repository(self.folder / "tree")

    @property
    def journal(self) -> Journal | None:
        """The journal of the rebase that is under way."""
        return Journal.read(self.project)

    def start(
        self,
        version: str,
        *,
        source: Sdist | GitRemote | None = None,
        offer: bool = True,
    ) -> Journal | Finished:
        """Begin, and carry patches until one stops or all are done.

        Args:
            version: The release to go to.
            source: Where it comes from, as `identified` takes it.
            offer: Use stored resolutions.

        Raises:
            ToolError: A rebase is under way, the tree has edits, or the release
                cannot be had. Nothing has changed then.
        """
        if journal := self._recover():
            raise ToolError(
                Outcome.IN_PROGRESS,
                f"a rebase to {journal.new.version} is under way",
                (
                    "Go on: python -m tools rebase --continue",
                    "or give it up: python -m tools rebase --abort",
                ),
            )
        self._clear()
        inputs = Inputs.read(self.project)
        self.tree.apply(Sdist(self.project.cache))
        state = self.tree.state
        assert state
        commits = self.tree.commits(state)
        known = Releases.read(self.project.releases_file).including(inputs.pin)
        pin = identified(self.tree, known, version, source)
        if pin.version == inputs.pin.version:
            raise ToolError(
                Outcome.USAGE,
                f"the series is on {pin.version} already",
                ("Name another release",),
            )
        pin = with_wheels(pin, known)
        journal = Journal(
            inputs.digest(),
            inputs.pin,
            pin,
            tuple(zip(inputs.series.names, commits[1:], strict=True)),
            lay_overlays(self.project, replace(inputs, pin=pin)),
            offer=offer,
        )
        journal.write(self.project)
        return self._replay(journal)

    def proceed(self) -> Journal | Finished:
        """Go on: with the user's resolution, or where a killed run stopped.

        Raises:
            ToolError: There is no rebase, or the patch is not resolved yet.
        """
        before = self.journal
        journal = self._recover()
        if before and not journal:  # killed as it ended; the files are in place now
            return self._finished(before)
        journal = self._require(journal)
        if journal.stopped:
            journal = journal.with_entry(self._take_resolution(journal))
            journal.write(self.project)
            self._keep_work(journal)
        return self._replay(journal)

    def skip(self) -> Journal | Finished:
        """Drop the patch that stops the rebase; its file is kept as a copy.

        Raises:
            ToolError: No patch stops a rebase.
        """
        journal = self._require(self._recover())
        if not journal.stopped:
            raise ToolError(
                Outcome.NOT_IN_PROGRESS,
                "no patch waits to be skipped",
                ("Go on: python -m tools rebase --continue",),
            )
        self._keep_work(journal)
        entry = Entry(
            journal.stopped.name, Landing.SKIPPED, "", journal.stopped.details
        )
        journal = journal.with_entry(entry)
        journal.write(self.project)
        return self._replay(journal)

    def abort(self) -> tuple[Path, ...]:
        """Forget the rebase; no file of the checkout has changed yet.

        Returns:
            Copies of what the user did: edits in the work tree, resolutions.

        Raises:
            ToolError: There is no rebase, or a killed run had come to its end.
        """
        before = self.journal
        journal = self._recover()
        if before and not journal:
            raise ToolError(
                Outcome.NOT_IN_PROGRESS,
                f"the rebase to {before.new.version} was replacing files when it was "
                "interrupted; that is completed now",
                ("Take it back: python -m tools undo",),
            )
        journal = self._require(journal)
        kept = [self._keep_work(journal), self._keep_resolutions(journal)]
        self._clear()
        return tuple(path for path in kept if path)

    # ---- carrying

    def _replay(self, journal: Journal) -> Journal | Finished:
        stored = resolutions.read(self.project.patches) if journal.offer else {}
        stored |= self._own_resolutions()
        with console.step("carry the series", len(journal.steps)) as shown:
            shown.advance(len(journal.done))
            while journal.next_step:
                name, commit = journal.next_step
                patch = self._patch(name)
                tip = self.repository.tree_of(journal.tip)
                found = carry(self.repository, Step(patch, commit), tip)
                entry = self._settle(journal, patch, found, stored)
                if entry is None:
                    self._stop(journal, found)
                    journal = replace(journal, stopped=found)
                    journal.write(self.project)
                    return journal
                journal = journal.with_entry(entry)
                journal.write(self.project)
                shown.advance(1)
        return self._end(journal)

    def _settle(
        self,
        journal: Journal,
        patch: Patch,
        found: Carried,
        stored: dict[str, resolutions.Resolution],
    ) -> Entry | None:
        """Return the entry of a patch; None if the user must act."""
        if found.landing is Landing.UPSTREAM:
            return Entry(patch.name, found.landing, "", found.details)
        if not found.landing.stops:
            commit = commit_patch(self.repository, patch, found.tree, journal.tip)
            return Entry(patch.name, found.landing, commit, found.details)
        solved = solve(self.repository, found, stored)
        if solved is None:
            return None
        tree, used = solved
        for path, file in used:
            console.note(f"{patch.name}: {path} by stored resolution {file}")
        commit = commit_patch(self.repository, patch, tree, journal.tip)
        return Entry(patch.name, Landing.RESOLVED, commit, found.details, used)

    def _patch(self, name: str) -> Patch:
        return Patch.parse(name, (self.project.patches / name).read_bytes())

    # ---- a stop

    def _stop(self, journal: Journal, found: Carried) -> None:
        """Lay out the work tree of a conflict, and the three versions beside it."""
        shutil.rmtree(self.folder / "versions", ignore_errors=True)
        shutil.rmtree(self.work.path, ignore_errors=True)
        for conflict in found.conflicts:
            for version, blob in conflict.versions.items():
                content = self.repository.git("cat-file", "blob", blob).stdout
                copy = self.folder / "versions" / f"{conflict.path}.{version}"
                atomic.write(copy, content)
        self.work.init()
        borrowed = self.work.git_dir / "objects" / "info" / "alternates"
        borrowed.write_text(f"{self.repository.git_dir / 'objects'}\n", "utf-8")
        marked = self.work.commit_tree(found.tree, "with marks\n", journal.tip)
        self.work.git("reset", "--hard", "--quiet", marked)
        self.work.git("reset", "--mixed", "--quiet", journal.tip)

    def _take_resolution(self, journal: Journal) -> Entry:
        """Return the entry of the stopped patch with what the user made of it."""
        found = journal.stopped
        assert found
        if not self.work.exists:
            self._stop(journal, found)
        snapshot = Snapshot.take(self.work)
        tree = self.work.tree_of(snapshot.commit)
        self._refuse_unresolved(journal, found, tree)
        if snapshot.commit != journal.tip:  # the tree's store has that already
            self.repository.git(
                "fetch", "--quiet", "--no-tags", self.work.path, snapshot.commit
            )
        patch = self._patch(found.name)
        used = tuple(self._learn(journal, found, tree))
        commit = commit_patch(self.repository, patch, tree, journal.tip)
        return Entry(found.name, Landing.RESOLVED, commit, found.details, used)

    def _refuse_unresolved(self, journal: Journal, found: Carried, tree: str) -> None:
        tip = self.repository.tree_of(journal.tip)
        changed = self.work.paths_between(tip, tree)
        again = "then run: python -m tools rebase --continue"
        marked = []
        for path in sorted(changed):
            file = self.work.path / path
            before = self.repository.git(
                "cat-file", "blob", f"{tip}:{path}", check=False
            )
            if (
                file.is_file()
                and resolutions.has_marks(file.read_bytes())
                and not resolutions.has_marks(before.stdout)
            ):
                marked.append(path)
        if marked:
            raise ToolError(
                Outcome.CONFLICT,
                f"{marked[0]} still has conflict marks",
                (f"Edit it in {self.work.path}, {again}",),
                tuple(marked),
            )
        if found.landing is Landing.DELETED and tree == found.tree:
            raise ToolError(
                Outcome.CONFLICT,
                f"{found.conflicts[0].path} is as the patch left it, but upstream "
                "deleted it",
                (
                    f"Make the change elsewhere in {self.work.path}, {again}",
                    "or drop the patch: python -m tools rebase --skip",
                ),
            )
        if tree == tip:
            raise ToolError(
                Outcome.CONFLICT,
                f"nothing is left of {found.name}",
                ("Drop it, keeping a copy: python -m tools rebase --skip",),
            )
        ours = {file.target for file in overlay.files(self.project.root)} & changed
        if ours:
            raise ToolError(
                Outcome.BAD_OVERLAY,
                f"{sorted(ours)[0]} is an overlay, which no patch may change",
                ("Undo that, and change the overlay in its own folder",),
            )

    def _learn(
        self, journal: Journal, found: Carried, tree: str
    ) -> Iterator[tuple[str, str]]:
        """Keep the user's resolutions for the next time; yield path and file."""
        for conflict in found.conflicts:
            sides = [
                self.work.git(
                    "cat-file", "blob", f"{side}:{conflict.path}", check=False
                )
                for side in (found.tree, tree)
            ]
            if any(side.status != 0 for side in sides):
                continue
            about = {
                "Patch": found.name,
                "File": conflict.path,
                "Rebase": f"{journal.old.version} to {journal.new.version}",
            }
            marked, solved = (side.stdout for side in sides)
            learned = resolutions.learn(marked, solved, about)
            if not learned and resolutions.has_marks(marked):
                console.note(
                    f"{conflict.path}: changed outside the conflict too, so this "
                    "resolution cannot be used again"
                )
            for resolution in learned:
                atomic.write(self._learned / resolution.filename, resolution.to_bytes())
                yield conflict.path, resolution.filename

    @property
    def _learned(self) -> Path:
        return self.folder / "patches" / resolutions.FOLDER

    def _own_resolutions(self) -> dict[str, resolutions.Resolution]:
        return resolutions.read(self._learned.parent)

    def _keep_resolutions(self, journal: Journal) -> Path | None:
        """Keep a copy of the resolutions that the user made in this rebase."""
        made = self._own_resolutions()
        target = _kept(self.project, journal) / "patches" / resolutions.FOLDER
        for resolution in made.values():
            atomic.write(target / resolution.filename, resolution.to_bytes())
        return target if made else None

    def _keep_work(self, journal: Journal) -> Path | None:
        """Keep a copy of what the user did in the work tree, and remove that."""
        kept = None
        if self.work.exists and journal.stopped:
            snapshot = Snapshot.take(self.work)
            found = journal.stopped
            if self.work.tree_of(snapshot.commit) != found.tree:
                diff = self.work.git(
                    "diff", "--binary", "--full-index", found.tree, snapshot.commit
                )
                kept = self.project.dropped / f"{snapshot.commit[:12]}.patch"
                atomic.write(kept, diff.stdout)
                console.note(f"your edits are kept in {kept}")
        shutil.rmtree(self.work.path, ignore_errors=True)
        shutil.rmtree(self.folder / "versions", ignore_errors=True)
        return kept

    # ---- the end

    def _end(self, journal: Journal) -> Finished:
        """Check what the new files make, then put them in place."""
        inputs = Inputs.read(self.project)
        if inputs.digest() != journal.inputs:
            raise ToolError(
                Outcome.OUT_OF_SYNC,
                "pin, patches or overlays changed since the rebase began",
                (
                    "Restore them, then: python -m tools rebase --continue",
                    "or begin again: python -m tools rebase --abort",
                ),
            )
        changes = dict(self._new_files(journal))
        with scratch(self.project) as folder:
            write(changes, folder)
            series = Series.read(folder / "patches")
            new = Inputs(journal.new, inputs.overlays, series)
            state = compose(self.project, new)
        if state.commit != journal.tip:
            raise ToolError(
                Outcome.WRONG_TREE,
                "the new patches do not give the tree that the rebase made",
                ("Keep build/rebase and report this",),
                (f"expected commit {journal.tip}", f"found    commit {state.commit}"),
            )
        self.tree.refuse_edits()
        self.tree.refuse_overwriting(state.commit)
        title = f"rebase {journal.new.version}"
        self.tree.change(title, changes, state, spent=(self.folder.name,))
        return self._finished(journal)

    def _finished(self, journal: Journal) -> Finished:
        name = f"{report.name(journal.old, journal.new)}.md"
        made = Transaction.last(self.project)
        assert made and made.kept
        return Finished(journal, self.project.reports / name, made.kept)

    def _new_files(self, journal: Journal) -> Iterator[tuple[str, File | None]]:
        """Yield the files that the rebase changes, below the project."""
        project, repository = self.project, self.repository
        patches = []
        for entry in journal.done:
            if not entry.commit:
                yield f"patches/{entry.name}", None
            else:
                diff = diff_between(repository, f"{entry.commit}^", entry.commit)
                patches.append(replace(self._patch(entry.name), diff=diff))
        for name, content in files_of(project.patches, patches).items():
            yield f"patches/{name}", File(content)
        for resolution in self._own_resolutions().values():
            name = f"patches/{resolutions.FOLDER}/{resolution.filename}"
            yield name, File(resolution.to_bytes())
        pin_text = project.pin_file.read_text("utf-8")
        yield "upstream/pin.toml", File(journal.new.to_toml(pin_text).encode())
        tree = repository.tree_of(journal.tip)
        yield "upstream/tree.lock", File(f"{tree}\n".encode())
        known = Releases.read(project.releases_file)
        both = known.text_with(journal.old, journal.new)
        yield "upstream/releases.toml", File(both)
        for name, content in report.files(project, repository, journal).items():
            yield f"upstream/reports/{name}", File(content)

    def _clear(self) -> None:
        """Forget the rebase: the journal goes with the folder, in one step."""
        atomic.remove_folder(self.folder)

    def _recover(self) -> Journal | None:
        """Complete what a killed run began; return the journal of what is left."""
        self.tree.recover()
        return self.journal

    def _require(self, journal: Journal | None) -> Journal:
        if journal is None:
            raise ToolError(
                Outcome.NOT_IN_PROGRESS,
                "no rebase is under way",
                ("Begin one: python -m tools rebase RELEASE",),
            )
        return journal


def _kept(project: Project, journal: Journal) -> Path:
    name = f"{report.name(journal.old, journal.new)}-{journal.inputs[:8]}"
    return project.dropped / name
