"""The pinned sdist beside upstream's git: what was generated, and what was altered."""

from dataclasses import dataclass
from fnmatch import fnmatchcase

from tools.base.project import Project
from tools.source.fetch import GitRemote, Sdist
from tools.source.pin import Pin
from tools.tree.compose import import_base
from tools.tree.tree import Tree

# What setuptools and setuptools-scm write into an sdist.
_GENERATED = ("PKG-INFO", "setup.cfg", "*.egg-info/*", "vllm/_version.py")


@dataclass(frozen=True)
class Comparison:
    """How sdist and commit differ.

    Args:
        commit: The commit, 40 digits.
        pinned: The pin names this commit.
        same: How many files are the same, byte for byte and in mode.
        changed: Files that differ.
        added: Files that only the sdist has and no build tool writes.
        generated: Files that only the sdist has, as every sdist does.
        missing: Files that only git has; an sdist may leave files out.
    """

    commit: str
    pinned: bool
    same: int
    changed: tuple[str, ...]
    added: tuple[str, ...]
    generated: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def faithful(self) -> bool:
        """Whether the sdist is the commit, but for generated and left out files."""
        return self.pinned and not self.changed and not self.added


def compare(project: Project, source: Sdist, remote: GitRemote) -> Comparison:
    """Compare the pinned sdist with a commit. The caller holds the project's lock.

    Args:
        project: The project.
        source: Where the sdist comes from if it has not been imported yet.
        remote: The git repository; its commit may be a name like v0.32.0, and is
            the pinned version's tag if it is "".

    Raises:
        ToolError: One of the two cannot be had.
    """
    tree = Tree(project)
    tree.recover()
    pin = Pin.read(project.pin_file, locked=False)
    repository = tree.repository
    repository.init()
    sdist = repository.tree_of(import_base(tree.project, pin, source))
    revision = remote.commit or (pin.commit if pin.git else f"v{pin.version}")
    if len(revision) != 40:
        revision = f"refs/tags/{revision}"
    commit = remote.fetch(repository, revision)
    both = repository.paths_between(commit, sdist)
    added = repository.paths_between(commit, sdist, added=True)
    missing = repository.paths_between(sdist, commit, added=True)
    generated = {
        path for path in added if any(fnmatchcase(path, g) for g in _GENERATED)
    }
    listing = repository.git("ls-tree", "-r", "-z", "--name-only", sdist).text
    return Comparison(
        commit,
        commit.startswith(pin.commit),
        listing.count("\0") - len(both - missing),
        tuple(sorted(both - added - missing)),
        tuple(sorted(added - generated)),
        tuple(sorted(generated)),
        tuple(sorted(missing)),
    )
