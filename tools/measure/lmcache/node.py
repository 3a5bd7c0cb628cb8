"""The two servers: LMCache's, and vLLM's in front of it."""

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.measure import observed
from tools.measure.demo.plugin import Probe
from tools.measure.lmcache.setting import Setting
from tools.measure.lmcache.workload import (
    BLOCK_SIZE,
    BLOCKS,
    CHUNK_TOKENS,
    MAX_TOKENS,
)
from tools.serve import model
from tools.serve.host import Host
from tools.serve.port import ADDRESS, choose_port
from tools.serve.server import Server, running, started

READY_S = 300.0
_SETTLE_S = 60.0
_POLL_S = 0.2
_ARGUMENTS = (
    "--dtype=float32",
    f"--block-size={BLOCK_SIZE}",
    f"--num-gpu-blocks-override={BLOCKS}",
    "--kv-cache-memory-bytes=256M",
    f"--max-model-len={MAX_TOKENS}",
    "--max-num-batched-tokens=256",
    "--max-num-seqs=16",
    "--seed=0",
    f"--served-model-name={model.NAME}",
    f"--host={ADDRESS}",
)


@dataclass(frozen=True)
class Counts:
    """What a server has counted.

    Args:
        local: Prompt tokens found in its own prefix cache.
        loaded: Prompt tokens found in LMCache.
        preemptions: Requests that lost their blocks to others.
    """

    local: int = 0
    loaded: int = 0
    preemptions: int = 0

    def __sub__(self, other: "Counts") -> "Counts":
        return Counts(
            self.local - other.local,
            self.loaded - other.loaded,
            self.preemptions - other.preemptions,
        )


@dataclass(frozen=True)
class Node:
    """vLLM's server."""

    server: Server

    def counts(self) -> Counts:
        """Return what it has counted."""
        metrics = self.server.metrics()
        return Counts(
            observed.total(metrics, "vllm:prefix_cache_hits_total"),
            observed.total(metrics, "vllm:external_prefix_cache_hits_total"),
            observed.preemptions(metrics),
        )

    def reset(self) -> None:
        """Let it forget its prefix cache."""
        self.server.order("/reset_prefix_cache")

    def settle(self) -> float:
        """Wait until it holds no block; return the share that it still holds.

        A gauge tells of the last step, so an idle server is asked for a token.
        """
        deadline = time.monotonic() + _SETTLE_S
        while True:
            body = {"model": model.NAME, "prompt": [3], "max_tokens": 1}
            self.server.post("/v1/completions", body)
            held = observed.held_share(self.server.metrics())
            if not held or time.monotonic() > deadline:
                return held
            time.sleep(_POLL_S)


@dataclass(frozen=True)
class Launcher:
    """Starts servers.

    Args:
        host: What they run on.
        model: The model's folder.
        build: The project's folder of generated files.
        site: The folder of LMCache's packages.
    """

    host: Host
    model: Path
    build: Path
    site: Path

    @contextmanager
    def node(self, setting: Setting) -> Iterator[Node]:
        """Run vLLM's server, and LMCache's if the setting has one."""
        with ExitStack() as stack:
            env = self._environment()
            transfer: tuple[str, ...] = ()
            if setting.uses_lmcache:
                port = stack.enter_context(self._lmcache(setting, env))
                transfer = _transfer_arguments(setting, port)
            if setting.is_control:
                probe = Probe(self.build / "demo-lmcache" / "plugin", "reversed_loads")
                probe.install()
                env |= probe.environment(env)
            port = choose_port(None)
            arguments = (
                *self.host.arguments,
                *_ARGUMENTS,
                *(f"--port={port}", f"--kv-cache-backend={setting.backend}"),
                *transfer,
            )
            server = running(
                [self.host.vllm, "serve", self.model, *arguments],
                name=f"vllm serve ({setting.name})",
                env=env,
                port=port,
                log=self._log(f"{setting.file_name}-vllm"),
                limit_s=READY_S,
            )
            node = Node(stack.enter_context(server))
            observed.check_backend(node.server, setting.backend)
            yield node

    @contextmanager
    def _lmcache(self, setting: Setting, env: Mapping[str, str]) -> Iterator[int]:
        """Run LMCache's server and yield the port of its data."""
        port, http = choose_port(None), choose_port(None)
        options = {
            "--host": ADDRESS,
            "--port": str(port),
            "--http-host": ADDRESS,
            "--http-port": str(http),
            "--prometheus-port": str(choose_port(None)),
            "--chunk-size": str(CHUNK_TOKENS),
            "--l1-size-gb": "1",
            "--eviction-policy": "LRU",
            "--supported-transfer-mode": "auto",
        }
        words = [word for option in options.items() for word in option]
        with started(
            [self.host.python, "-m", "lmcache.cli.main", "server", *words],
            name=f"lmcache server ({setting.name})",
            env=env,
            port=http,
            log=self._log(f"{setting.file_name}-lmcache"),
            health="/healthcheck",
        ) as server:
            server.wait_ready(READY_S)
            yield port

    def _log(self, name: str) -> Path:
        return self.build / "logs" / f"demo-lmcache-{name}.log"

    def _environment(self) -> dict[str, str]:
        path = (str(self.site), os.environ.get("PYTHONPATH"))
        return self.host.neutral_environment() | {
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "OMP_NUM_THREADS": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_SERVER_DEV_MODE": "1",  # It may be told to forget its prefix cache.
            "LMCACHE_TRACK_USAGE": "false",
            "LMCACHE_DISABLE_BANNER": "1",
        }


def _transfer_arguments(setting: Setting, port: int) -> tuple[str, ...]:
    options: dict[str, Any] = {
        "lmcache.mp.host": f"tcp://{ADDRESS}",
        "lmcache.mp.port": port,
        **setting.options,
    }
    config = {
        "kv_connector": "LMCacheMPConnector",
        "kv_connector_module_path": "lmcache.integration.vllm.lmcache_mp_connector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": options,
    }
    return (f"--kv-transfer-config={json.dumps(config)}",)
