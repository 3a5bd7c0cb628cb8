"""The tree's own git configuration, which shields it from the user's.

The tools themselves read no configuration of the user's. But people run git in the
tree too, as messages advise them to, and the tools take what that leaves there: a
stash that rewrote all line ends would become a patch.
"""

import os

from tools.base import atomic
from tools.base.git import IDENTITY, PINNED_OPTIONS, Repository
from tools.base.process import run

_FILE = "tagma.config"
_INCLUDE = f"[include]\n\tpath = {_FILE}\n"
# What else a user may set that changes files, messages or what a command accepts.
_OPTIONS = (
    "am.keepCR=true",
    "apply.ignoreWhitespace=no",
    "apply.whitespace=nowarn",
    "core.commentChar=#",
    "core.logAllRefUpdates=true",
    "core.sparseCheckout=false",
    "core.splitIndex=false",
    "mailinfo.scissors=false",
    "merge.default=text",
    "merge.verifySignatures=false",
    "rebase.updateRefs=false",
    "submodule.recurse=false",
    "tag.gpgSign=false",
    "user.useConfigOnly=false",
)
# Filters are the one attribute that other files than the tree's may define.
_ATTRIBUTES = "* -filter\n"


def shield(repository: Repository) -> None:
    """Give the tree its own configuration; does nothing where that stands."""
    options = (*PINNED_OPTIONS, *_OPTIONS, *_identity(repository))
    _write(repository, _FILE, "".join(map(_entry, options)))
    _write(repository, "info/attributes", _ATTRIBUTES)
    config = (repository.git_dir / "config").read_text("utf-8")
    if _INCLUDE not in config:
        _write(repository, "config", f"{config}{_INCLUDE}")


def _identity(repository: Repository) -> tuple[str, ...]:
    """Return who commits; an author is named only if the user's git knows none.

    The committer is in no patch. Without an identity `git commit` and `cherry-pick`
    would refuse, or put the machine's name into a patch.
    """
    name, _, email = IDENTITY.rstrip(">").partition(" <")
    committer = (f"committer.name={name}", f"committer.email={email}")
    named = run(
        ["git", "config", "--get-regexp", r"^(user|author)\.email$"],
        cwd=repository.path.parent,
        env=_users_environment(repository),
        check=False,
    )
    if named.status == 0:
        return committer
    return (*committer, f"author.name={name}", f"author.email={email}")


def _users_environment(repository: Repository) -> dict[str, str]:
    """Return our environment, in which git reads the user's own files alone."""
    kept = ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM")
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GIT_") or name in kept
    }
    return env | {"GIT_CEILING_DIRECTORIES": str(repository.path.parents[1])}


def _entry(option: str) -> str:
    name, _, value = option.partition("=")
    section, _, key = name.partition(".")
    return f'[{section}]\n\t{key} = "{value}"\n'


def _write(repository: Repository, name: str, content: str) -> None:
    path = repository.git_dir / name
    if not path.is_file() or path.read_text("utf-8") != content:
        atomic.write(path, content.encode())
