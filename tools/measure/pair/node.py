"""The servers of a pair: one alone, those that prefill, that which decodes, a proxy."""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tools.measure import observed
from tools.measure.demo.plugin import Probe
from tools.measure.pair.counters import Counters, counters_of
from tools.measure.pair.workload import BLOCK_SIZE
from tools.serve import model
from tools.serve.host import Host
from tools.serve.port import ADDRESS, choose_port
from tools.serve.server import Server, started

READY_S = 400.0
# Upstream's 30 s end too early on a loaded machine: blocks are freed before they are
# read, and the client gets wrong tokens without an error.
LEASE_S = 600

_PROXY = Path("tests/v1/kv_connector/nixl_integration/toy_proxy_server.py")
_ARGUMENTS = (
    "--dtype=float32",
    f"--block-size={BLOCK_SIZE}",
    "--kv-cache-memory-bytes=1G",
    "--max-num-seqs=16",
    "--seed=0",
    f"--served-model-name={model.NAME}",
    f"--host={ADDRESS}",
)


class Role(Enum):
    """What a server does; the value is vLLM's word."""

    ALONE = "alone"
    PREFILL = "kv_producer"
    DECODE = "kv_consumer"


@dataclass(frozen=True)
class Node:
    """A server of ours, and the probe inside it."""

    name: str
    server: Server
    probe: Probe
    backend: str
    port: int
    side_port: int

    def wait_ready(self) -> None:
        """Wait until it serves the backend that it was asked for.

        Raises:
            ToolError: It does not.
        """
        self.server.wait_ready(READY_S)
        observed.check_backend(self.server, self.backend)

    def counters(self) -> Counters:
        """Return what it has counted."""
        return counters_of(self.server.metrics())

    def held_share(self) -> float:
        """Return the share of its pool that is held, after a step of its own.

        A gauge tells of the last step, so an idle server is first asked for a token.
        """
        self.server.post(
            "/v1/completions",
            {"model": model.NAME, "prompt": [3], "max_tokens": 1},
        )
        return observed.held_share(self.server.metrics())


@dataclass(frozen=True)
class Launcher:
    """Starts servers.

    Args:
        host: What they run on.
        model: The model's folder.
        tree: The tree, with upstream's proxy.
        build: The project's folder of generated files.
        site: The folder of the transfer packages.
        blocks: The size of each pool.
    """

    host: Host
    model: Path
    tree: Path
    build: Path
    site: Path
    blocks: int

    def node(
        self,
        stack: ExitStack,
        name: str,
        backend: str,
        role: Role,
        *,
        connector: str = "NixlConnector",
        transports: str = "tcp,self,sm",
        ports: tuple[int, int] | None = None,
    ) -> Node:
        """Start a server, which is stopped with the stack; it is not ready yet.

        Args:
            stack: What ends it.
            name: Of its log.
            backend: Its KV cache backend.
            role: What it does.
            connector: The class that moves its blocks.
            transports: Those that UCX may use.
            ports: Those of a server whose place it takes.
        """
        port, side_port = ports or (choose_port(None), choose_port(None))
        probe = Probe(self.build / "demo-pd" / name, "transfer_probe")
        probe.install()
        env = self.host.neutral_environment()
        env |= _transfer_environment(self.site, transports, side_port)
        arguments = (
            f"--num-gpu-blocks-override={self.blocks}",
            *(f"--port={port}", f"--kv-cache-backend={backend}"),
            *_transfer_arguments(role, connector),
        )
        server = started(
            [*self._serve, *arguments],
            name=f"vllm serve ({name})",
            env=env | probe.environment(env),
            port=port,
            log=self.build / "logs" / f"demo-pd-{name}.log",
        )
        return Node(name, stack.enter_context(server), probe, backend, port, side_port)

    @property
    def _serve(self) -> list[str | Path]:
        return [self.host.vllm, "serve", self.model, *self.host.arguments, *_ARGUMENTS]

    def proxy(
        self, stack: ExitStack, name: str, prefills: Sequence[Node], decode: Node
    ) -> Server:
        """Start upstream's proxy and wait until it answers."""
        port = choose_port(None)
        ports = [str(node.port) for node in prefills]
        server = stack.enter_context(
            started(
                [
                    self.host.python,
                    self.tree / _PROXY,
                    *(f"--host={ADDRESS}", f"--port={port}"),
                    *("--prefiller-hosts", *(ADDRESS for _ in ports)),
                    *("--prefiller-ports", *ports),
                    *("--decoder-hosts", ADDRESS, "--decoder-ports", str(decode.port)),
                ],
                name=f"proxy ({name})",
                # A proxy of the user cannot reach this host's own address.
                env=self.host.neutral_environment()
                | {"NO_PROXY": "*", "no_proxy": "*"},
                port=port,
                log=self.build / "logs" / f"demo-pd-{name}-proxy.log",
                health="/healthcheck",
            )
        )
        server.wait_ready(READY_S)
        return server


def _transfer_environment(
    site: Path, transports: str, side_port: int
) -> Mapping[str, str]:
    return {
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "PYTHONPATH": os.pathsep.join(
            filter(None, (str(site), os.environ.get("PYTHONPATH")))
        ),
        "UCX_TLS": transports,
        "UCX_NET_DEVICES": "lo",
        "VLLM_HOST_IP": ADDRESS,
        "VLLM_NIXL_SIDE_CHANNEL_HOST": ADDRESS,
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(side_port),
    }


def _transfer_arguments(role: Role, connector: str) -> tuple[str, ...]:
    if role is Role.ALONE:
        return ()
    config = {
        "kv_connector": connector,
        "kv_role": role.value,
        "kv_buffer_device": "cpu",
        "kv_connector_extra_config": {"kv_lease_duration": LEASE_S},
    }
    return (f"--kv-transfer-config={json.dumps(config)}",)
