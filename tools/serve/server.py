"""A running `vllm serve`: started, waited for, talked to and always stopped."""

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import requests

from tools.base import console
from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.base.process import run, start

HOST = "127.0.0.1"

_POLL_S = 0.25
_STOP_S = 20.0
_CONNECT_AND_READ_S = (10.0, 300.0)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# What vLLM puts before a message: its process, and a level with time and place.
_PREFIX = re.compile(r"^(\(\S+ pid=\d+\) )?([A-Z]+ [\d-]+ [\d:]+ \[[^]]+\] ?)?")
# An exception's last line, what pydantic wraps, and argparse's complaint.
_ERROR = re.compile(r"^([\w.]+(Error|Exception): |  Value error, |[\w. ]+: error: )")


@dataclass(frozen=True)
class Host:
    """What the serving environment runs on.

    Args:
        venv: The environment.
        on_cpu: It holds vLLM's CPU build.
    """

    venv: Path
    on_cpu: bool

    @classmethod
    def of(cls, venv: Path) -> "Host":
        """Return the host of an environment; its vLLM's version names the device."""
        code = "from importlib.metadata import version; print(version('vllm'))"
        return cls(venv, "cpu" in run([venv / "bin" / "python", "-c", code]).text)

    @property
    def vllm(self) -> Path:
        """The program."""
        return self.venv / "bin" / "vllm"

    @property
    def arguments(self) -> tuple[str, ...]:
        """What `vllm serve` needs to run on this host."""
        if not self.on_cpu:
            return ()
        # bfloat16 dies on virtual machines whose CPU claims AMX and has none.
        return ("--dtype=float32", "--enforce-eager")

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of a server, on top of `base`."""
        env = dict(base) | {
            "PATH": f"{self.venv / 'bin'}{os.pathsep}{base.get('PATH', os.defpath)}",
            "VLLM_USE_V2_MODEL_RUNNER": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
        }
        if self.on_cpu:
            env["TRITON_INTERPRET"] = "1"
        return env


def choose_port(wanted: int | None, usual: int = 0) -> int:
    """Return a port to listen on.

    Args:
        wanted: The port that the user named.
        usual: Without one, take this if it is free; 0 takes any free port.

    Raises:
        ToolError: The user's port is taken.
    """
    if wanted is not None:
        if not _is_free(wanted):
            raise ToolError(
                Outcome.COMMAND_FAILED,
                f"port {wanted} of {HOST} is taken",
                ("Leave --port out for a free one, or stop what listens there",),
            )
        return wanted
    if usual and _is_free(usual):
        return usual
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


class Server:
    """A server process of ours; made by `running`."""

    def __init__(
        self, process: subprocess.Popen[bytes], name: str, port: int, log: Path
    ):
        self.process = process
        self.name = name
        self.url = f"http://{HOST}:{port}"
        self.log = log

    def wait_ready(self, limit_s: float) -> None:
        """Wait until the server answers.

        Raises:
            ToolError: It ended, or the time is over.
        """
        deadline = time.monotonic() + limit_s
        with console.step(f"start {self.name}") as step:
            while not self._is_ready():
                if self.process.poll() is not None:
                    raise self._failure("ended before it was ready")
                if time.monotonic() > deadline:
                    raise self._failure(f"was not ready within {limit_s:.0f} s")
                time.sleep(_POLL_S)
                step.advance(_POLL_S)

    def wait_end(self) -> None:
        """Wait until the server ends by itself, which it should not.

        Raises:
            ToolError: It ended.
        """
        self.process.wait()
        raise self._failure("ended by itself")

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a request.

        Raises:
            ToolError: The server refused it or is gone.
        """
        with self._send("POST", path, body, stream=False) as response:
            answer: dict[str, Any] = response.json()
            return answer

    def events(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the events of a streamed answer as they come.

        Raises:
            ToolError: The server refused the request, broke off or is gone.
        """
        try:
            with self._send("POST", path, body, stream=True) as response:
                for line in response.iter_lines():
                    data = line.removeprefix(b"data: ")
                    if data == b"[DONE]":
                        return
                    if data:
                        yield json.loads(data)
        except requests.RequestException as error:
            raise self._failure(f"broke off its answer: {error}") from error
        raise self._failure("broke off its answer")

    def metrics(self) -> str:
        """Return the text of /metrics."""
        with self._send("GET", "/metrics", None, stream=False) as response:
            return response.text

    def stop(self) -> None:
        """End the server and every process that it started."""
        try:
            if self.process.poll() is None:
                self.process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(_STOP_S)
        finally:  # also when the user is impatient and interrupts the wait
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def _is_ready(self) -> bool:
        try:
            with self._session() as session:
                return session.get(f"{self.url}/health", timeout=5).ok
        except requests.RequestException:
            return False

    def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None, *, stream: bool
    ) -> requests.Response:
        try:
            with self._session() as session:
                response = session.request(
                    method,
                    self.url + path,
                    json=body,
                    stream=stream,
                    timeout=_CONNECT_AND_READ_S,
                )
        except requests.RequestException as error:
            raise self._failure(f"does not answer {path}: {error}") from error
        if not response.ok:
            raise self._failure(f"answers {path} with {response.status_code}")
        return response

    @staticmethod
    def _session() -> requests.Session:
        session = requests.Session()
        session.trust_env = False  # a proxy cannot reach this host's own address
        return session

    def _failure(self, what: str) -> ToolError:
        status = self.process.poll()
        end = "" if status is None else f" (status {status})"
        return ToolError(
            Outcome.COMMAND_FAILED,
            f"{self.name} {what}{end}",
            (f"Read {self.log}",),
            error_lines(self.log.read_text("utf-8", "replace")),
        )


@contextmanager
def running(
    argv: Sequence[str | Path],
    *,
    name: str,
    env: Mapping[str, str],
    port: int,
    log: Path,
    limit_s: float,
) -> Iterator[Server]:
    """Run a server for the time of the block.

    However the block ends, by an exception or a signal too, the server and its
    children are stopped.

    Args:
        argv: The program and its arguments; it must listen on `port` of `HOST`.
        name: What to call it, for example "vllm serve (tagma)".
        env: Its whole environment.
        port: Where it will listen.
        log: File for what it writes.
        limit_s: How long to wait until it answers.

    Raises:
        ToolError: It does not come up.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with _signals_raise():
        server = Server(start(argv, env=env, output=log), name, port, log)
        try:
            server.wait_ready(limit_s)
            yield server
        finally:
            server.stop()


@contextmanager
def _signals_raise() -> Iterator[None]:
    """Turn the signals that end a process into an exception, so that blocks close."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    old = {number: signal.signal(number, end) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


_ENDING = (signal.SIGTERM, signal.SIGHUP)


def error_lines(log: str, most: int = 4) -> tuple[str, ...]:
    """Return the lines of a server's log that say what went wrong.

    Those are the messages of the last exceptions, each once, or else the last lines.

    >>> error_lines("(W pid=1) ERROR 01-01 00:00:00 [a.py:1] ValueError: no: it is 2")
    ('ValueError: no: it is 2',)
    """
    lines = [
        _PREFIX.sub("", _COLOUR.sub("", line)).rstrip() for line in log.splitlines()
    ]
    errors = [line for line in lines if _ERROR.match(line)]
    return tuple(dict.fromkeys(errors or filter(None, lines)))[-most:]
