"""What identifies a base: found out once, and recorded from then on.

A base is a release of the package index, a local sdist or a commit of a git
repository. Its tree is imported; its hashes and its wheels make a pin.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path

import requests
from packaging.version import InvalidVersion, Version

from tools.base import atomic, console
from tools.base.digest import sha256
from tools.base.errors import ToolError
from tools.base.git import Repository
from tools.base.outcome import Outcome
from tools.carry.releases import PROJECT, Releases, sdist_of
from tools.carry.wheels import with_wheels
from tools.source.fetch import GitRemote, Sdist, make_cache
from tools.source.index import IndexConfig, offline
from tools.source.pin import Pin
from tools.tree.compose import base_reference, import_base
from tools.tree.scratch import scratch
from tools.tree.tree import Tree

_HASH = re.compile(r"[0-9a-f]{64}")
_COMMIT = re.compile(r"^__commit_id__ = .*'g?([0-9a-f]{7,40})'", re.MULTILINE)
_VERSION_FIELD = re.compile(r"^Version: (\S+)$", re.MULTILINE)


def identified(
    tree: Tree,
    known: Releases,
    version: str,
    source: Sdist | GitRemote | None = None,
) -> Pin:
    """Return a base whose files are in the tree's object store.

    What is not known yet is taken as its source gives it; whoever calls records it,
    so that it cannot change any more.

    Args:
        tree: Whose object store to import into; it has a repository.
        known: The known releases, the pinned one among them.
        version: For example "0.33.0"; "" takes the source's own.
        source: A local sdist, or a repository and what to fetch from it; None is the
            package index.

    Raises:
        ToolError: There is no such base, it cannot be had, or it is not what was
            recorded under its version.
    """
    if isinstance(source, GitRemote):
        pin = _of_commit(tree, source, version)
    elif source is not None and source.file:
        pin = _of_file(tree, source.file, version)
    else:
        pin = known.pins.get(version) or _of_index(version)
        pin = pin if pin.tree else replace(pin, tree=_import(tree, pin))
    if recorded := known.pins.get(pin.version):
        _refuse_other(recorded, pin)
        pin = recorded
    is_imported = source is not None or not recorded
    cache = tree.project.cache
    proven = _Imported(pin.tree) if is_imported else Sdist(cache)
    import_base(tree.project, pin, proven)
    if not pin.commit:
        pin = replace(pin, commit=_commit_of(tree.repository, pin.tree))
    return pin if recorded else with_wheels(pin, known)


def another(
    tree: Tree, pinned: Pin, version: str, source: Sdist | GitRemote | None
) -> Pin:
    """Return a base that is not the pinned one, with the wheels that there are by now.

    Args:
        tree: As `identified` takes it.
        pinned: The base under the series.
        version: As `identified` takes it.
        source: As `identified` takes it.

    Raises:
        ToolError: It is the pinned one, or as `identified` does.
    """
    known = Releases.read(tree.project.releases_file).including(pinned)
    pin = identified(tree, known, version, source)
    if pin.version == pinned.version:
        raise ToolError(
            Outcome.USAGE,
            f"the series is on {pin.version} already",
            ("Name another release",),
        )
    return with_wheels(pin, known)


def check(tree: Tree, source: Sdist | GitRemote) -> None:
    """Refuse a source that is not the pinned base, though that is imported already.

    Raises:
        ToolError: It cannot be had, or gives another tree.
    """
    pin = Pin.read(tree.project.pin_file, locked=False)
    if tree.repository.resolve(base_reference(pin)) is None:
        return  # it will be imported from there
    with scratch(tree.project) as folder:
        found = source.import_into(tree.repository, pin, folder)
    if found != pin.tree:
        raise ToolError(
            Outcome.WRONG_TREE,
            f"{source.name} does not give the pinned tree of {pin.version}",
            ("Use the pinned source (the default)",),
            (f"expected tree {pin.tree}", f"found    tree {found}"),
        )


@dataclass(frozen=True)
class _Imported:
    """A source whose files are in the object store already."""

    tree: str
    name: str = "the import"

    def import_into(self, repository: Repository, pin: Pin, scratch: Path) -> str:
        return self.tree


def _import(tree: Tree, pin: Pin) -> str:
    """Import an sdist whose tree is not known yet, to see which one it has."""
    with scratch(tree.project) as folder:
        source = Sdist(tree.project.cache)
        return source.import_into(tree.repository, pin, folder)


def _of_index(version: str) -> Pin:
    """Return a release without its tree, with the hash that an index states."""
    _check_version(version, "Name a release as the package index does, like 0.33.0")
    filename = sdist_of(version, "").filename
    try:
        digest = IndexConfig.from_pip().digests(PROJECT).get(filename, "")
    except (requests.RequestException, ValueError) as error:
        mend = f"or name a local copy: --sdist {filename}"
        raise offline(f"the hash of {filename}", error, mend) from error
    if not _HASH.fullmatch(digest):
        raise ToolError(
            Outcome.OFFLINE,
            f"no configured package index has {filename} with its sha256",
            (
                f"Check the version: pip index versions {PROJECT}",
                f"or name a local copy: --sdist {filename}",
                "or a commit: --git URL --ref REF",
            ),
        )
    console.note(f"{filename} is new here; the index states sha256 {digest}")
    return Pin(version, "", sdist_of(version, digest), "", "", {})


def _of_file(tree: Tree, file: Path, version: str) -> Pin:
    """Return the base that a local sdist holds; the cache keeps a copy of it."""
    digest = sha256(file)
    unnamed = Pin(version, "", sdist_of(version, digest), "", "", {})
    with scratch(tree.project) as folder:
        source = Sdist(tree.project.cache, file)
        found = source.import_into(tree.repository, unnamed, folder)
    if not version:
        about = tree.repository.git(
            "cat-file", "blob", f"{found}:PKG-INFO", check=False
        )
        match = _VERSION_FIELD.search(about.text)
        version = match[1] if match else ""
    step = f"Name it: python -m tools pin VERSION --sdist {file}"
    _check_version(version, step, of=str(file))
    sdist = sdist_of(version, digest)
    kept = tree.project.cache / "files" / digest / sdist.filename
    if not kept.is_file():
        make_cache(kept.parent)
        atomic.write(kept, file.read_bytes())
    return Pin(version, "", sdist, found, "", {})


def _of_commit(tree: Tree, remote: GitRemote, version: str) -> Pin:
    """Return the base that a commit is; `remote.commit` is a reference or its id."""
    version = version or _version_of_tag(remote.commit)
    step = f"Name it: python -m tools pin VERSION --git {remote.url} --ref REF"
    _check_version(version, step, of=remote.commit)
    commit = remote.fetch(tree.repository, remote.commit)
    found = tree.repository.tree_of(commit)
    if Path(remote.url).is_dir():
        console.note(f"other machines cannot fetch from {remote.url}")
    return Pin(version, commit, None, found, "", {}, remote.url)


def _version_of_tag(reference: str) -> str:
    """Return the version that a tag names; "" if the reference is none of a release.

    >>> _version_of_tag("v0.33.1"), _version_of_tag("1f2e")
    ('0.33.1', '')
    """
    tag = reference.removeprefix("refs/tags/").removeprefix("v")
    try:
        return Version(tag).public
    except InvalidVersion:
        return ""


def _check_version(version: str, step: str, *, of: str = "") -> None:
    """Refuse what is no public version: the fork adds a local one to it."""
    try:
        if Version(version).public == version:
            return
    except InvalidVersion:
        pass
    what = f"{version!r} is no version of a release"
    if of:
        what = f"{of} does not tell its version" if not version else f"{what} ({of})"
    raise ToolError(Outcome.USAGE, what, (step,))


def _refuse_other(recorded: Pin, pin: Pin) -> None:
    """Refuse a base that is not what its version meant before."""
    same = recorded.tree == pin.tree and (
        not (recorded.sdist and pin.sdist) or recorded.sdist == pin.sdist
    )
    if same:
        return
    raise ToolError(
        Outcome.WRONG_HASH,
        f"{pin.version} is known already, and is not this one",
        (
            "Give this one a version of its own, like "
            f"{Version(pin.version).base_version}.post1",
            "Do not change what is recorded unless upstream says that it replaced it",
        ),
        (
            *(f"recorded {line}" for line in recorded.identity),
            *(f"found    {line}" for line in pin.identity),
        ),
    )


def _commit_of(repository: Repository, tree: str) -> str:
    """Return the commit that an sdist says it was made of."""
    shown = repository.git("cat-file", "blob", f"{tree}:vllm/_version.py", check=False)
    match = _COMMIT.search(shown.text)
    return match[1] if match else "unknown"
