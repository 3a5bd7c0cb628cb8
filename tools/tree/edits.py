"""Edits in the patched tree: found, kept as a copy, never lost."""

import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tools.base.git import Repository
from tools.base.project import Project


@dataclass(frozen=True)
class Snapshot:
    """The work tree at one moment, as a commit on top of HEAD.

    Args:
        commit: The commit; HEAD itself if the work tree equals it.
    """

    commit: str

    @classmethod
    def take(cls, repository: Repository, command: str) -> "Snapshot":
        """Commit everything that git does not ignore, touching no file.

        Args:
            repository: Whose work tree.
            command: What takes the snapshot, for the commit's message.
        """
        head = repository.resolve("HEAD")
        with tempfile.TemporaryDirectory(dir=repository.git_dir) as scratch:
            index = Path(scratch) / "index"
            # With its time: git compares it to find files changed since.
            with suppress(FileNotFoundError):  # git makes a new one
                shutil.copy2(repository.git_dir / "index", index)
            repository.git("add", "--all", index=index)
            tree = repository.git("write-tree", index=index).text
        if head and tree == repository.tree_of(head):
            return cls(head)
        paths = sorted(repository.paths_between(head, tree)) if head else []
        return cls(repository.commit_tree(tree, _message(command, paths), head))

    def paths_unlike(self, repository: Repository, commit: str) -> set[str]:
        """Return the paths in which the snapshot differs from a commit."""
        return repository.paths_between(commit, self.commit)

    def keep(self, project: Project, base: str) -> Path:
        """Keep the snapshot, as a reference and as a patch against `base`.

        Returns:
            The patch, under build/dropped.
        """
        repository = Repository(project.tree)
        name = self.commit[:12]
        repository.git("update-ref", f"refs/tagma/dropped/{name}", self.commit)
        folder = project.build / "dropped"
        folder.mkdir(exist_ok=True)
        copy = folder / f"{name}.patch"
        diff = repository.git("diff", "--binary", "--full-index", base, self.commit)
        copy.write_bytes(diff.stdout)
        return copy


def _message(command: str, paths: list[str]) -> str:
    """Return the message of a snapshot: the command, and the paths that it keeps."""
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    subject = f"{command}: keep {paths[0]}{more}" if paths else command
    return "\n".join((subject, "", *paths, ""))
