"""The series, carried to another release: a state machine that survives a kill.

Patches are carried as objects only, and a journal says at any moment what is done, so
that the same work can be finished or given up. The new files are checked as `apply`
would check them; then all of them change in one transaction.
"""

from dataclasses import replace
from pathlib import Path

from tools.base import atomic, console
from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.base.project import Project
from tools.carry import resolutions
from tools.carry.begin import begin
from tools.carry.finish import Finished, finish, finished
from tools.carry.journal import Entry, Journal
from tools.carry.landing import Carried, Landing
from tools.carry.merge import carry, solve
from tools.carry.stop import Stop
from tools.source.fetch import GitRemote, Sdist
from tools.tree import underway
from tools.tree.compose import commit_patch
from tools.tree.patch import Patch
from tools.tree.placed import PlacedPatch
from tools.tree.tree import Tree


class Rebase:
    """The rebase of a project. The caller holds the project's lock."""

    def __init__(self, project: Project):
        self.project = project
        self.tree = Tree(project)
        self.repository = self.tree.repository
        self.stop = Stop(project)
        self.folder = self.stop.folder

    @property
    def journal(self) -> Journal | None:
        """The journal of the rebase that is under way."""
        return Journal.read(self.project)

    def start(
        self,
        version: str,
        source: Sdist | GitRemote | None = None,
        *,
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
        self._recover()
        underway.refuse(self.project)
        self._clear()
        journal = begin(self.tree, version, source, offer)
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
            return finished(self.project, before)
        journal = self._require(journal)
        if journal.stopped:
            journal = journal.with_entry(self._resolved(journal))
            journal.write(self.project)
            self.stop.keep_work(journal)
        return self._replay(journal)

    def take(self, side: str, name: str) -> Journal:
        """Give a file at which the rebase stops as one side has it.

        Args:
            side: "patch" or "upstream".
            name: The file.

        Raises:
            ToolError: No rebase stops at this file.
        """
        journal = self._require_stop("no patch waits for a side to be taken")
        journal = self.stop.take(journal, side, name)
        journal.write(self.project)
        return journal

    def skip(self) -> Journal | Finished:
        """Drop the patch that stops the rebase; its file is kept as a copy.

        Raises:
            ToolError: No patch stops a rebase.
        """
        journal = self._require_stop("no patch waits to be skipped")
        found = journal.stopped
        assert found
        self.stop.keep_work(journal)
        entry = Entry(found.name, Landing.SKIPPED, "", found.details)
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
        kept = [self.stop.keep_work(journal), self.stop.keep_resolutions()]
        self._clear()
        return tuple(path for path in kept if path)

    # ---- carrying

    def _replay(self, journal: Journal) -> Journal | Finished:
        stored = resolutions.read(self.project.patches) if journal.offer else {}
        stored |= self.stop.resolutions()
        with console.step("carry the series", len(journal.series)) as shown:
            shown.advance(len(journal.done))
            while journal.next_patch:
                name, commit = journal.next_patch
                patch = self._patch(name)
                tip = self.repository.tree_of(journal.tip)
                placed = PlacedPatch.of_commit(self.repository, patch, commit)
                found = carry(self.repository, placed, tip)
                entry = self._settle(journal, patch, found, stored)
                if entry is None:
                    self.stop.lay_out(journal, found)
                    journal = replace(journal, stopped=found)
                    journal.write(self.project)
                    return journal
                journal = journal.with_entry(entry)
                journal.write(self.project)
                shown.advance(1)
        return finish(self.tree, journal, self.stop.resolutions())

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

    def _resolved(self, journal: Journal) -> Entry:
        """Return the entry of the stopped patch with what the user made of it."""
        found = journal.stopped
        assert found
        tree = self.stop.resolved(journal)
        used = tuple(self.stop.learn(journal, tree))
        patch = self._patch(found.name)
        commit = commit_patch(self.repository, patch, tree, journal.tip)
        taken = tuple(f"{name}: taken from {side}" for name, side in journal.taken)
        return Entry(found.name, Landing.RESOLVED, commit, found.details + taken, used)

    def _patch(self, name: str) -> Patch:
        return Patch.parse(name, (self.project.patches / name).read_bytes())

    def _clear(self) -> None:
        """Forget the rebase: the journal goes with the folder, in one step."""
        atomic.remove_folder(self.folder)

    def _recover(self) -> Journal | None:
        """Complete what a killed run began; return the journal of what is left."""
        self.tree.recover()
        return self.journal

    def _require_stop(self, otherwise: str) -> Journal:
        journal = self._require(self._recover())
        if not journal.stopped:
            raise ToolError(
                Outcome.NOT_IN_PROGRESS,
                otherwise,
                ("Go on: python -m tools rebase --continue",),
            )
        return journal

    def _require(self, journal: Journal | None) -> Journal:
        if journal is None:
            raise ToolError(
                Outcome.NOT_IN_PROGRESS,
                "no rebase is under way",
                (
                    "Begin one: python -m tools rebase RELEASE",
                    "or take a finished one back: python -m tools undo",
                ),
            )
        return journal
