"""A patch that waits for its user: the work tree, and what the user made of it.

The user works in a repository of its own that borrows the tree's objects: nothing done
in it can harm the tree.
"""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tools.base import atomic, console
from tools.base.errors import ToolError
from tools.base.git import Repository
from tools.base.outcome import Outcome
from tools.base.project import Project
from tools.carry import resolutions
from tools.carry.journal import Journal
from tools.carry.landing import Carried
from tools.carry.resolutions import Resolution
from tools.carry.unresolved import Choice
from tools.tree import overlay, underway
from tools.tree.edits import Snapshot

_AGAIN = "python -m tools rebase"


class Stop:
    """The stop of a rebase. The caller holds the project's lock."""

    def __init__(self, project: Project):
        self.project = project
        self.repository = Repository(project.tree)
        self.folder = underway.folder(project)
        self.work = Repository(self.folder / "tree")
        self.versions = self.folder / "versions"
        self.learned = self.folder / "learned"

    def lay_out(self, journal: Journal, found: Carried) -> None:
        """Make the work tree of a conflict, and the three versions beside it."""
        shutil.rmtree(self.versions, ignore_errors=True)
        shutil.rmtree(self.work.path, ignore_errors=True)
        for conflict in found.conflicts:
            for version, blob in conflict.versions.items():
                copy = self.versions / f"{conflict.path}.{version}"
                atomic.write(copy, self.repository.content(blob))
        self.work.init()
        borrowed = self.work.git_dir / "objects" / "info" / "alternates"
        borrowed.write_text(f"{self.repository.git_dir / 'objects'}\n", "utf-8")
        marked = self.work.commit_tree(found.tree, "with marks\n", journal.tip)
        self.work.git("reset", "--hard", "--quiet", marked)
        self.work.git("reset", "--mixed", "--quiet", journal.tip)

    def take(self, journal: Journal, side: str, name: str) -> Journal:
        """Give one file as one side has it.

        Args:
            journal: The rebase, stopped.
            side: "patch" or "upstream".
            name: The file, as it is named where the rebase stopped.

        Returns:
            The journal that holds the choice.

        Raises:
            ToolError: The patch does not stop at this file.
        """
        found = self._found(journal)
        names = {name} | {c.name for c in found.conflicts if c.path == name}
        conflicts = [c for c in found.conflicts if c.name in names]
        if not conflicts:
            raise ToolError(
                Outcome.USAGE,
                f"{found.name} does not stop at {name}",
                ("Name one of the files at which it stops",),
                tuple(dict.fromkeys(c.name for c in found.conflicts)),
            )
        journal = self._laid_out(journal)
        tree = self._snapshot()
        new, paths = self._choice(journal).taken(conflicts, side, tree)
        self._check_out(new, paths)
        name = conflicts[0].name
        taken = dict(journal.taken) | {name: side}
        return replace(journal, taken=tuple(taken.items()))

    def resolved(self, journal: Journal) -> str:
        """Return the tree that the user made of a stop, in the tree's store.

        Raises:
            ToolError: A file is open, nothing is left of the patch, or an overlay was
                changed.
        """
        journal = self._laid_out(journal)
        snapshot = Snapshot.take(self.work, "rebase")
        tree = self.work.tree_of(snapshot.commit)
        self._refuse_open(journal, tree)
        tip = self.work.tree_of(journal.tip)
        if tree == tip:
            raise ToolError(
                Outcome.CONFLICT,
                f"nothing is left of {self._found(journal).name}",
                (f"Drop it, keeping a copy: {_AGAIN} --skip",),
            )
        changed = self.work.paths_between(tip, tree)
        ours = {file.target for file in overlay.files(self.project.root)} & changed
        if ours:
            raise ToolError(
                Outcome.BAD_OVERLAY,
                f"{sorted(ours)[0]} is an overlay, which no patch may change",
                ("Undo that, and change the overlay in its own folder",),
            )
        if snapshot.commit != journal.tip:  # the tree's store has that already
            self.repository.git(
                "fetch", "--quiet", "--no-tags", self.work.path, snapshot.commit
            )
        return tree

    def learn(self, journal: Journal, tree: str) -> Iterator[tuple[str, str]]:
        """Keep the user's resolutions for the next time; yield path and file."""
        found = self._found(journal)
        for conflict in found.conflicts:
            path = conflict.path
            marked, solved = (self.work.entry(t, path) for t in (found.tree, tree))
            if not marked or not solved:
                continue
            about = {
                "Patch": found.name,
                "File": conflict.path,
                "Rebase": f"{journal.old.version} to {journal.new.version}",
            }
            text = self.work.content(marked.blob)
            learned = resolutions.learn(text, self.work.content(solved.blob), about)
            if not learned and resolutions.has_marks(text):
                console.note(
                    f"{conflict.path}: changed outside the conflict too, so this "
                    "resolution cannot be used again"
                )
            for resolution in learned:
                target = self.learned / resolutions.FOLDER / resolution.filename
                atomic.write(target, resolution.to_bytes())
                yield conflict.path, resolution.filename

    def resolutions(self) -> dict[str, Resolution]:
        """Return what the user resolved in this rebase, by the id of the clash."""
        return resolutions.read(self.learned)

    def keep_resolutions(self) -> Path | None:
        """Keep a copy of the resolutions that the user made in this rebase."""
        made = self.resolutions()
        target = self.project.dropped / resolutions.FOLDER
        for resolution in made.values():
            atomic.write(target / resolution.filename, resolution.to_bytes())
        return target if made else None

    def keep_work(self, journal: Journal) -> Path | None:
        """Keep a copy of what the user did in the work tree, and remove that."""
        kept = None
        if self.work.exists and journal.stopped:
            snapshot = Snapshot.take(self.work, "rebase")
            found = journal.stopped
            if self.work.tree_of(snapshot.commit) != found.tree:
                diff = self.work.git(
                    "diff", "--binary", "--full-index", found.tree, snapshot.commit
                )
                kept = self.project.dropped / f"{snapshot.commit[:12]}.patch"
                atomic.write(kept, diff.stdout)
                console.note(f"your edits are kept in {kept}")
        shutil.rmtree(self.work.path, ignore_errors=True)
        shutil.rmtree(self.versions, ignore_errors=True)
        return kept

    def _refuse_open(self, journal: Journal, tree: str) -> None:
        """Stop while a file is open, naming what is open in each.

        Raises:
            ToolError: One is.
        """
        choice, taken = self._choice(journal), dict(journal.taken)
        conflicts = self._found(journal).conflicts
        marked = dict(choice.marked(tree))
        rest = [c for c in conflicts if c.name not in taken and c.path not in marked]
        silent = dict(choice.unresolved(rest, tree))
        found = tuple(f"{path} {what}" for path, what in (marked | silent).items())
        if not found:
            return
        steps = [f"Edit them in {self.work.path}, then run: {_AGAIN} --continue"]
        if silent:
            name = next(iter(silent))
            steps.append(
                f"Where that shows nothing, say whose version it shall be: {_AGAIN} "
                f"--take patch {name} (or: --take upstream {name})"
            )
        steps.append(f"or drop the patch: {_AGAIN} --skip")
        more = f" (and {len(found) - 1} more files)" if len(found) > 1 else ""
        raise ToolError(Outcome.CONFLICT, f"{found[0]}{more}", tuple(steps), found)

    def _choice(self, journal: Journal) -> Choice:
        assert journal.next_patch
        _, commit = journal.next_patch
        upstream, patch = map(self.work.tree_of, (journal.tip, commit))
        return Choice(self.work, upstream, patch, self._found(journal).tree)

    def _snapshot(self) -> str:
        return self.work.tree_of(Snapshot.take(self.work, "rebase").commit)

    def _laid_out(self, journal: Journal) -> Journal:
        """Lay the work tree out again if the user removed it."""
        if self.work.exists:
            return journal
        self.lay_out(journal, self._found(journal))
        return replace(journal, taken=())

    def _check_out(self, tree: str, paths: frozenset[str]) -> None:
        """Put some files of a tree into the work tree; remove those that it lacks."""
        for path in sorted(paths):
            file = self.work.path / path
            if file.is_dir() and not file.is_symlink():
                continue
            file.unlink(missing_ok=True)
            for above in file.parents:
                if above == self.work.path or any(above.iterdir()):
                    break
                above.rmdir()
        there = [path for path in sorted(paths) if self.work.entry(tree, path)]
        if there:
            wanted = "".join(f"{path}\0" for path in there).encode()
            self.work.git(
                *("--literal-pathspecs", "restore", "--worktree", f"--source={tree}"),
                *("--pathspec-from-file=-", "--pathspec-file-nul"),
                stdin=wanted,
            )

    def _found(self, journal: Journal) -> Carried:
        assert journal.stopped
        return journal.stopped
