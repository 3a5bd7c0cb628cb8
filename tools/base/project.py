"""Where everything of one checkout lives."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.base.descriptors import inherited
from tools.base.errors import ToolError
from tools.base.git import without_git
from tools.base.outcome import Outcome
from tools.base.process import run

# The checkout that holds these tools.
CHECKOUT = Path(__file__).parents[2]
# How long to wait for another run on the same build folder, in seconds. A user is
# told at once; the jobs of `test` wait for each other.
LOCK_WAIT = "TAGMA_LOCK_WAIT"
_LOCK_WAIT_S = 1.0


def default_cache(build: Path) -> Path:
    """Return the download cache: TAGMA_CACHE, or in the user's cache folder.

    A user without a home gets a cache in the build folder.
    """
    if named := os.environ.get("TAGMA_CACHE"):
        return Path(named).absolute()
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        base = build / "cache"
    return base / "vllm-tagma"


@dataclass(frozen=True)
class Project:
    """The folders of a checkout.

    Args:
        root: The repository.
        build: Generated files; nothing in it is precious but the user's edits.
        cache: Downloads, shared by all checkouts of a user.
    """

    root: Path
    build: Path
    cache: Path

    @classmethod
    def at(cls, root: Path, build: Path | None = None) -> "Project":
        """Return the project of a checkout, with its default folders."""
        root = root.resolve()
        build = (build or root / "build").resolve()
        return cls(root, build, default_cache(build))

    @property
    def pin_file(self) -> Path:
        """The pin of the upstream release."""
        return self.root / "upstream" / "pin.toml"

    @property
    def releases_file(self) -> Path:
        """The hashes of releases that were looked at."""
        return self.root / "upstream" / "releases.toml"

    @property
    def reports(self) -> Path:
        """What rebases and comparisons of releases gave."""
        return self.root / "upstream" / "reports"

    @property
    def dropped(self) -> Path:
        """Copies of whatever a command took away."""
        return self.build / "dropped"

    @property
    def patches(self) -> Path:
        """The patch series."""
        return self.root / "patches"

    @property
    def tree(self) -> Path:
        """The patched source, a git repository."""
        return self.build / "tree"

    @property
    def venv(self) -> Path:
        """The virtual environment that serves."""
        return self.build / "venv"

    def check_place(self) -> None:
        """Refuse a build folder that would litter somebody's git repository.

        Raises:
            ToolError: A repository encloses the build folder and does not ignore it.
        """
        folder = self.build if self.build.is_dir() else self.build.parent
        outer = next(
            (up for up in (folder, *folder.parents) if (up / ".git").exists()), None
        )
        if outer is None:
            return
        # The user's own ignore rules count here, so git runs with their settings,
        # but not with a GIT_DIR that names another repository.
        ignored = run(
            ["git", "-C", outer, "check-ignore", "--quiet", f"{self.build}/x"],
            env=without_git(os.environ),
            check=False,
        )
        if ignored.status == 1:
            raise ToolError(
                Outcome.BAD_PLACE,
                f"the build folder {self.build} lies inside the git repository "
                f"{outer}, which does not ignore it",
                (
                    "Choose a folder outside it: python -m tools --build DIR …",
                    f"or add it to {outer / '.gitignore'}",
                ),
            )

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the build folder for one command.

        Raises:
            ToolError: Another run holds it, or it lies in a bad place or in one that
                cannot be written.
        """
        self.check_place()
        held = self._open_lock()
        try:
            _lock(held, self.build)
            # A git that outlives a killed run still holds the lock.
            with inherited(held):
                yield
        finally:
            os.close(held)

    def _open_lock(self) -> int:
        try:
            self.build.mkdir(parents=True, exist_ok=True)
            return os.open(self.build / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise ToolError(
                Outcome.SYSTEM,
                f"the build folder {self.build} cannot be written: {error.strerror}",
                ("Choose another folder: python -m tools --build DIR …",),
            ) from error


def _lock(descriptor: int, build: Path) -> None:
    """Lock a file, waiting a moment at least: what a killed run left ends soon."""
    wait_s = float(os.environ.get(LOCK_WAIT) or _LOCK_WAIT_S)
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                raise ToolError(
                    Outcome.LOCKED,
                    f"another run is at work in {build}",
                    ("Wait until it ends, then run the command again",),
                ) from error
        time.sleep(0.02)
