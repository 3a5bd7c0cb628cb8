"""`serve`: a server with the tagma backend."""

import json
import os
import shlex
from pathlib import Path

import click

from tools.base import console
from tools.base.outcome import Outcome, Report
from tools.cli.options import Settings, json_option
from tools.serve import model
from tools.serve.port import ADDRESS, choose_port
from tools.serve.server import Server, running
from tools.serve.serving import Serving, ensure_serving

_USUAL_PORT = 8000


@click.command("serve")
@click.option("--model", "other", help="Serve this model instead: a folder or a name.")
@click.option("--port", type=click.IntRange(1, 65535), help="Default: a free one.")
@click.option(
    "--wait",
    type=click.IntRange(min=1),
    default=600,
    show_default=True,
    help="Seconds to wait until the server answers.",
)
@click.argument("extra", nargs=-1, type=click.UNPROCESSED)
@json_option
@click.pass_obj
def command(
    settings: Settings,
    other: str | None,
    port: int | None,
    wait: int,
    extra: tuple[str, ...],
    as_json: bool,
) -> None:
    """Apply and build where needed, then run `vllm serve` with the tagma backend.

    EXTRA goes to `vllm serve` and wins over what is set here. Without --model a
    small model with random weights is made; nothing is downloaded for it.

    Example: python -m tools serve --port 8000 -- --max-model-len 2048
    """
    project = settings.project
    serving = ensure_serving(project)
    port = choose_port(port, _USUAL_PORT)
    name = _served_name(other)
    env = serving.host.environment(os.environ)
    if other is None or Path(other).is_dir():
        env["HF_HUB_OFFLINE"] = "1"
    with running(
        _command_line(serving, other, name, port, extra),
        name="vllm serve (tagma)",
        env=env,
        port=port,
        log=project.build / "logs" / "serve.log",
        limit_s=wait,
    ) as server:
        console.show(_report(server, name), as_json)
        try:
            server.wait_end()
        except KeyboardInterrupt:
            console.note("stopping …")


def _command_line(
    serving: Serving, other: str | None, name: str, port: int, extra: tuple[str, ...]
) -> list[str | Path]:
    return [
        serving.host.vllm,
        "serve",
        other or serving.model,
        *serving.host.arguments,
        *(() if other else ("--kv-cache-memory-bytes=1G",)),
        f"--served-model-name={name}",
        f"--host={ADDRESS}",
        f"--port={port}",
        "--kv-cache-backend=tagma",
        *extra,
    ]


def _served_name(other: str | None) -> str:
    if other is None:
        return model.NAME
    return Path(other).resolve().name if Path(other).is_dir() else other


def _report(server: Server, name: str) -> Report:
    body = {"model": name, "prompt": "The KV cache of vLLM", "max_tokens": 32}
    curl = ["curl", f"{server.url}/v1/completions"]
    curl += ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
    return Report(
        "serve",
        Outcome.DONE,
        f"{name} is served at {server.url} with the tagma backend",
        (f"Try it: {shlex.join(curl)}", "Stop it: Ctrl-C"),
        (f"log: {server.log}",),
        {
            "url": server.url,
            "model": name,
            "log": str(server.log),
            "process": server.process.pid,
        },
    )
