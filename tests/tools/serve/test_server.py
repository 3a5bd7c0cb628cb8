"""Servers are waited for, explained when they fail, and always stopped."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.serve.port import choose_port
from tools.serve.server import Server, running

# Answers like vLLM, and has a child as vLLM has its engine.
PROGRAM = """\
import json, subprocess, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

port, folder, mode = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
if mode == "dies":
    print("(EngineCore pid=9) ERROR 01-02 03:04:05 [core.py:1] ValueError: no blocks")
    sys.exit("RuntimeError: Engine core initialization failed.")
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
(folder / "child.new").write_text(str(child.pid))
(folder / "child.new").rename(folder / "child")
if mode == "hangs":
    time.sleep(600)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(200, b"")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/stream":
            events = [f"data: {json.dumps({'n': n})}\\n\\n" for n in range(body["n"])]
            end = "" if body["breaks"] else "data: [DONE]\\n\\n"
            self.answer(200, ("".join(events) + end).encode())
        elif self.path == "/echo":
            self.answer(200, json.dumps(body).encode())
        else:
            self.answer(404, b"{}")

    def answer(self, status, content):
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def serve(
    folder: Path, mode: str = "serves", limit_s: float = 300
) -> AbstractContextManager[Server]:
    program = folder / "program.py"
    program.write_text(PROGRAM)
    port = choose_port(None)
    return running(
        [sys.executable, program, str(port), folder, mode],
        name="the server",
        env=os.environ,
        port=port,
        log=folder / "logs" / "server.log",
        limit_s=limit_s,
    )


def ends(pid: int) -> bool:
    """Return whether a process is gone soon; a zombie counts as gone."""
    for _ in range(1200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def command_of(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:  # it ended meanwhile
        return b""


def child(folder: Path) -> int:
    return int((folder / "child").read_text())


def test_it_serves_for_the_block_and_ends_with_its_children(tmp_path: Path) -> None:
    with serve(tmp_path) as server:
        assert server.post("/echo", {"a": [1, 2]}) == {"a": [1, 2]}
        events = server.events("/stream", {"n": 3, "breaks": False})
        assert [event["n"] for event in events] == [0, 1, 2]
        os.kill(child(tmp_path), 0)
    assert server.process.returncode is not None
    assert ends(child(tmp_path))


def test_a_proxy_of_the_user_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    with serve(tmp_path) as server:
        assert server.post("/echo", {}) == {}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_stops_it(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), serve(tmp_path) as server:
        raise error
    assert server.process.returncode is not None
    assert ends(child(tmp_path))


def test_a_signal_to_the_tool_stops_it(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as raised, serve(tmp_path) as server:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
    assert raised.value.code == 128 + signal.SIGTERM
    assert server.process.returncode is not None
    assert ends(child(tmp_path))
    assert signal.getsignal(signal.SIGTERM) == before


def test_an_early_end_shows_what_the_log_says(tmp_path: Path) -> None:
    with pytest.raises(ToolError) as raised, serve(tmp_path, "dies"):
        pass
    error = raised.value
    assert error.outcome is Outcome.COMMAND_FAILED
    assert error.message == "the server ended before it was ready (status 1)"
    assert error.details == (
        "ValueError: no blocks",
        "RuntimeError: Engine core initialization failed.",
    )
    assert error.next_steps == (f"Read {tmp_path / 'logs' / 'server.log'}",)


def test_one_that_never_answers_is_given_up_and_stopped(tmp_path: Path) -> None:
    """On a busy machine it may not have come as far as its child."""
    with (
        pytest.raises(ToolError, match="was not ready within 2 s"),
        serve(tmp_path, "hangs", limit_s=2),
    ):
        pass
    program = str(tmp_path / "program.py").encode()
    assert not [
        process
        for process in Path("/proc").glob("[0-9]*")
        if program in command_of(process)
    ]
    assert not (tmp_path / "child").exists() or ends(child(tmp_path))


def test_refused_and_broken_answers_are_errors(tmp_path: Path) -> None:
    def read(events: Iterator[object]) -> list[object]:
        return list(events)

    with serve(tmp_path) as server:
        with pytest.raises(ToolError, match="answers /nowhere with 404"):
            server.post("/nowhere", {})
        with pytest.raises(ToolError, match="broke off its answer"):
            read(server.events("/stream", {"n": 2, "breaks": True}))
        server.process.kill()
        server.process.wait()
        with pytest.raises(ToolError, match=r"does not answer /echo.*\(status -9\)"):
            server.post("/echo", {})
        with pytest.raises(ToolError, match="ended by itself"):
            server.wait_end()
