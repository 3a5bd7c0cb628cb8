"""The one gateway for subprocesses: logged, never through a shell."""

import logging
import shlex
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TextIO

from tools.base import fault
from tools.base.errors import ToolError
from tools.base.outcome import Outcome

log = logging.getLogger(__name__)
_inherited: list[int] = []
_SHOWN = 20  # lines of a failed command


@contextmanager
def inherited(descriptor: int) -> Iterator[None]:
    """Let every program that `run` starts in the block hold a file open."""
    _inherited.append(descriptor)
    try:
        yield
    finally:
        _inherited.remove(descriptor)


def inherited_files() -> tuple[int, ...]:
    """Return what a program started now would hold open."""
    return tuple(_inherited)


@dataclass(frozen=True)
class Completed:
    """A finished process: exit status and what it wrote, byte for byte."""

    argv: tuple[str, ...]
    status: int
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        """Standard output as text, without the final newline."""
        return self.stdout.decode("utf-8", "surrogateescape").rstrip("\n")

    @property
    def error_text(self) -> str:
        """Standard error as text, without surrounding white space."""
        return self.stderr.decode("utf-8", "replace").strip()

    def checked(self, shown: Sequence[str | Path], output: Path | None) -> "Completed":
        """Return the process, if it did not fail."""
        if self.status != 0:
            last = (self.error_text or self.text).splitlines()[-_SHOWN:]
            raise _failed(shown or self.argv, self.status, output, last)
        return self


def _sink(output: Path | None) -> AbstractContextManager[BinaryIO | int]:
    """Return where the output of a program goes: to a file, or to us."""
    return output.open("ab") if output else nullcontext(subprocess.PIPE)


@contextmanager
def _named(program: str) -> Iterator[None]:
    """Name a program that is missing."""
    try:
        yield
    except FileNotFoundError as error:
        raise ToolError(
            Outcome.MISSING_TOOL,
            f"{program} is not installed",
            (f"Install {Path(program).name} and run the command again",),
        ) from error


def _failed(
    argv: Sequence[str | Path], status: int, output: Path | None, last: Iterable[str]
) -> ToolError:
    """Return the error of a command that failed, with its last lines."""
    return ToolError(
        Outcome.COMMAND_FAILED,
        f"{shlex.join(map(str, argv[:6]))} failed with status {status}",
        (f"Read {output}",) if output else (),
        tuple(last),
    )


def run(
    argv: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    check: bool = True,
    output: Path | None = None,
    shown: Sequence[str | Path] = (),
) -> Completed:
    """Run a program to its end.

    Args:
        argv: The program and its arguments.
        cwd: Working directory.
        env: The whole environment of the process; None inherits ours.
        stdin: Bytes to feed; None gives it an empty input.
        check: Raise if the status is not zero.
        output: File that receives both output streams instead of the result.
        shown: What to call the command in an error, if not by all of `argv`.

    Raises:
        ToolError: The program is missing, or failed and `check` is set.
    """
    args = tuple(str(arg) for arg in argv)
    log.debug("run %s (in %s)", shlex.join(args), cwd or Path.cwd())
    fault.point()
    with _sink(output) as sink, _named(args[0]):
        done = subprocess.run(
            args,
            cwd=cwd,
            env=env,
            input=stdin if stdin is not None else b"",
            stdout=sink,
            stderr=subprocess.STDOUT if output else subprocess.PIPE,
            check=False,
            pass_fds=inherited_files(),
        )
    result = Completed(args, done.returncode, done.stdout or b"", done.stderr or b"")
    return result.checked(shown, output) if check else result


def run_visibly(
    argv: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    to_stderr: bool = False,
) -> int:
    """Run a program whose output is the user's to read; return its status.

    Args:
        argv: The program and its arguments.
        cwd: Working directory.
        env: The whole environment of the process; None inherits ours.
        to_stderr: Send its standard output to our standard error.
    """
    args = [str(arg) for arg in argv]
    log.debug("run visibly %s (in %s)", shlex.join(args), cwd or Path.cwd())
    return subprocess.run(
        args,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr if to_stderr else None,
        check=False,
    ).returncode


def run_watched(
    argv: Sequence[str | Path],
    *,
    output: Path,
    on_line: Callable[[str], None],
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> None:
    """Run a long program, showing each line of its output to the caller.

    The output goes through a pipe of ours, so the program ends with us.

    Args:
        argv: The program and its arguments.
        output: File that receives both output streams too.
        on_line: Called with every line.
        cwd: Working directory.
        env: The whole environment of the process; None inherits ours.

    Raises:
        ToolError: The program is missing or failed.
    """
    args = [str(arg) for arg in argv]
    log.debug("watch %s (in %s)", shlex.join(args), cwd or Path.cwd())
    output.parent.mkdir(parents=True, exist_ok=True)
    with _named(args[0]):
        process = subprocess.Popen(
            args,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    with process, output.open("w", encoding="utf-8") as sink:
        last = _follow(process, sink, on_line)
    if process.returncode != 0:
        raise _failed(args, process.returncode, output, last)


def _follow(
    process: subprocess.Popen[str], sink: TextIO, on_line: Callable[[str], None]
) -> Iterable[str]:
    """Pass on each line of a program's output; return the last ones."""
    assert process.stdout
    last: deque[str] = deque(maxlen=_SHOWN)
    for line in process.stdout:
        sink.write(line)
        last.append(line.rstrip("\n"))
        on_line(line)
    return last


def start(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str],
    output: Path | BinaryIO,
    cwd: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own, both streams going to `output`.

    A session of its own lets the caller end the program with all its children.
    """
    args = [str(arg) for arg in argv]
    log.debug("start %s (in %s)", shlex.join(args), cwd or Path.cwd())
    opened = output.open("wb") if isinstance(output, Path) else nullcontext(output)
    with opened as sink:
        return subprocess.Popen(
            args,
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def find_program(name: str) -> Path | None:
    """Return the path of a program on PATH, if it is there."""
    found = shutil.which(name)
    return Path(found) if found else None
