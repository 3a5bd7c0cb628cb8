"""The one wrapper around git: a named repository, and nobody's configuration."""

import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tools.base.process import Completed, run

# One fixed identity and date: the same inputs must give the same commit ids.
IDENTITY = "tagma <tagma@localhost>"
EPOCH = "2026-01-01T00:00:00+0000"

PINNED_OPTIONS = (
    "core.autocrlf=false",  # two upstream files have CRLF line ends
    "core.eol=lf",
    "core.safecrlf=false",
    "core.fileMode=true",
    "core.symlinks=true",
    "core.ignoreCase=false",
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null",
    "core.quotePath=false",
    "core.abbrev=12",
    "diff.algorithm=myers",
    "merge.renames=true",
    "merge.directoryRenames=conflict",
    "merge.conflictStyle=diff3",
    "rerere.enabled=false",
    "commit.gpgSign=false",
    "pack.compression=1",  # of the import, which git reads back at once
    "fastimport.unpackLimit=0",  # else small imports become loose objects
    "gc.auto=0",  # no background process may outlive the lock
    "maintenance.auto=false",
    "init.defaultBranch=tagma",
    "advice.detachedHead=false",
)


def without_git(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables that steer git."""
    return {k: v for k, v in environment.items() if not k.startswith("GIT_")}


def clean_environment(ceiling: Path) -> dict[str, str]:
    """Return our environment without anything that steers git.

    Args:
        ceiling: git must not look for a repository in this folder or above it.
    """
    env = without_git(os.environ)
    name, _, email = IDENTITY.partition(" <")
    return env | {
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_CEILING_DIRECTORIES": str(ceiling),
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",  # looking at the tree must not write to it
        "GIT_AUTHOR_NAME": name,
        "GIT_AUTHOR_EMAIL": email.rstrip(">"),
        "GIT_AUTHOR_DATE": EPOCH,
        "GIT_COMMITTER_NAME": name,
        "GIT_COMMITTER_EMAIL": email.rstrip(">"),
        "GIT_COMMITTER_DATE": EPOCH,
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
    }


@dataclass(frozen=True)
class TreeEntry:
    """A file in a tree.

    Args:
        mode: git's, for example "100755"; "120000" is a link.
        blob: The id of its content.
    """

    mode: str
    blob: str


@dataclass(frozen=True)
class Repository:
    """A git repository with a work tree, always named and never searched for."""

    path: Path
    _env: dict[str, str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Fix the environment once; building it for every call is measurable."""
        object.__setattr__(self, "_env", clean_environment(self.path.parent))

    @property
    def git_dir(self) -> Path:
        """The folder of the repository's own data."""
        return self.path / ".git"

    @property
    def exists(self) -> bool:
        """Whether the repository has been made."""
        return (self.git_dir / "HEAD").is_file()

    def git(
        self,
        *args: str | Path,
        stdin: bytes | None = None,
        check: bool = True,
        index: Path | None = None,
        work_tree: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Completed:
        """Run one git command on this repository.

        Args:
            args: The git command and its arguments.
            stdin: Bytes to feed.
            check: Raise if git fails.
            index: Use this index file instead of the work tree's own.
            work_tree: Use this folder as the work tree.
            env: Variables on top of the clean environment, for example the author.

        Raises:
            ToolError: git failed and `check` is set.
        """
        environment = dict(self._env)
        if index is not None:
            environment["GIT_INDEX_FILE"] = str(index)
        environment.update(env or {})
        options = [part for option in PINNED_OPTIONS for part in ("-c", option)]
        folder = work_tree or self.path
        where = (f"--git-dir={self.git_dir}", f"--work-tree={folder}")
        return run(
            ["git", *options, *where, *args],
            cwd=folder,
            env=environment,
            stdin=stdin,
            check=check,
            shown=("git", *args),
        )

    def init(self) -> None:
        """Make the repository; harmless when it is there."""
        self.path.mkdir(parents=True, exist_ok=True)
        # An empty template: the user's template may carry hooks.
        self.git("init", "--quiet", "--template=")

    def resolve(self, revision: str) -> str | None:
        """Return the object id of a revision, or None if there is no such thing."""
        done = self.git("rev-parse", "--verify", "--quiet", revision, check=False)
        return done.text if done.status == 0 else None

    def tree_of(self, revision: str) -> str:
        """Return the id of the revision's tree."""
        return self.git("rev-parse", "--verify", f"{revision}^{{tree}}").text

    def paths(self, tree: str) -> frozenset[str]:
        """Return the paths of all files of a tree."""
        listed = self.git("ls-tree", "-r", "-z", "--name-only", tree).text
        return frozenset(listed.split("\0")) - {""}

    def paths_between(self, old: str, new: str, *, added: bool = False) -> set[str]:
        """Return the paths in which two trees differ.

        Args:
            old: A commit or tree.
            new: Another one.
            added: Only those that `old` lacks.
        """
        only = ["--diff-filter=A"] if added else []
        done = self.git(
            *("diff-tree", "-r", "-z", "--no-renames", "--name-only"),
            *(*only, old, new),
        )
        return set(done.text.split("\0")) - {""}

    def entry(self, tree: str, path: str) -> TreeEntry | None:
        """Return the entry of a file in a tree; None if there is no such file."""
        listed = self.git("ls-tree", "-z", tree, "--", path).text
        mode, kind, name = listed.partition("\t")[0].split(" ") if listed else [""] * 3
        return TreeEntry(mode, name) if kind not in ("", "tree") else None

    def content(self, blob: str) -> bytes:
        """Return the bytes of a file, named by its blob id or as TREE:PATH."""
        return self.git("cat-file", "blob", blob).stdout

    def store(self, data: bytes) -> str:
        """Store the bytes of a file; return its blob id."""
        return self.git("hash-object", "-w", "--stdin", stdin=data).text

    def tree_with(self, tree: str, source: str, paths: Iterable[str]) -> str:
        """Return a tree whose files at some paths are as in another tree.

        Args:
            tree: The tree to begin with.
            source: Where the files come from; what it lacks is removed.
            paths: The files.
        """
        wanted = sorted(paths)
        if not wanted:
            return self.tree_of(tree)
        there = self.git("ls-tree", "-r", "-z", source, "--", *wanted).text
        gone = "".join(f"0 {'0' * 40}\t{path}\0" for path in wanted)
        entries = (gone + there).encode("utf-8", "surrogateescape")
        return self.tree_with_entries(tree, entries)

    def tree_with_entries(self, tree: str, entries: bytes) -> str:
        """Return a tree with entries replaced, in the form of `update-index -z`."""
        with tempfile.TemporaryDirectory(dir=self.git_dir) as scratch:
            index = Path(scratch) / "index"
            self.git("read-tree", tree, index=index)
            self.git("update-index", "-z", "--index-info", stdin=entries, index=index)
            return self.git("write-tree", index=index).text

    def changed_paths(self) -> list[str]:
        """Paths that differ from HEAD, untracked ones included, ignored ones not."""
        done = self.git(
            "status", "--porcelain", "-z", "--untracked-files=all", "--no-renames"
        )
        return [entry[3:] for entry in done.text.split("\0") if len(entry) > 3]

    def commit_tree(
        self,
        tree: str,
        message: str,
        parent: str | None,
        author: str = IDENTITY,
        date: str = EPOCH,
    ) -> str:
        """Commit a tree and return the commit's id; no reference moves."""
        name, _, email = author.partition(" <")
        parents = ["-p", parent] if parent else []
        return self.git(
            "commit-tree",
            tree,
            *parents,
            stdin=message.encode(),
            env={
                "GIT_AUTHOR_NAME": name,
                "GIT_AUTHOR_EMAIL": email.rstrip(">"),
                "GIT_AUTHOR_DATE": date,
            },
        ).text
