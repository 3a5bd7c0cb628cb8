"""A running `vllm serve`: started, waited for, talked to and always stopped."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import requests

from tools.base import console, signals
from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.base.process import start
from tools.serve.log import error_lines
from tools.serve.port import ADDRESS

_POLL_S = 0.25
_STOP_S = 20.0
_CONNECT_AND_READ_S = (10.0, 300.0)


class Server:
    """A server process of ours; made by `started` and `running`."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        name: str,
        port: int,
        log: Path,
        health: str = "/health",
    ):
        self.process = process
        self.name = name
        self.url = f"http://{ADDRESS}:{port}"
        self.log = log
        self._health = health

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

    def order(self, path: str) -> None:
        """Have the server do something that it answers without a word.

        Raises:
            ToolError: The server refused it or is gone.
        """
        self._send("POST", path, None, stream=False).close()

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
                return session.get(f"{self.url}{self._health}", timeout=5).ok
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
def started(
    argv: Sequence[str | Path],
    *,
    name: str,
    env: Mapping[str, str],
    port: int,
    log: Path,
    health: str = "/health",
) -> Iterator[Server]:
    """Run a server for the time of the block, without waiting until it answers.

    However the block ends, by an exception or a signal too, the server and its
    children are stopped.

    Args:
        argv: The program and its arguments; it must listen on `port` of `ADDRESS`.
        name: What to call it, for example "vllm serve (tagma)".
        env: Its whole environment.
        port: Where it will listen.
        log: File for what it writes.
        health: The path that it answers when it is ready.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with signals.raised():
        server = Server(start(argv, env=env, output=log), name, port, log, health)
        try:
            yield server
        finally:
            server.stop()


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
    """Run a server for the time of the block, which begins when it answers.

    Args:
        argv: As in `started`, which says how it is stopped.
        name: What to call it, for example "vllm serve (tagma)".
        env: Its whole environment.
        port: Where it will listen.
        log: File for what it writes.
        limit_s: How long to wait until it answers.

    Raises:
        ToolError: It does not come up.
    """
    with started(argv, name=name, env=env, port=port, log=log) as server:
        server.wait_ready(limit_s)
        yield server
