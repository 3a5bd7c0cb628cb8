"""The servers of a pair: one alone, those that prefill, that which decodes, a proxy."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tools.base.errors import ToolError
from tools.measure import observed
from tools.measure.demo.plugin import Probe
from tools.measure.greedy import Ask, send
from tools.measure.pair.connector import Connector, Role, Sites
from tools.measure.pair.counters import Counters, counters_of, recorded
from tools.measure.pair.workload import BLOCK_SIZE
from tools.serve import model
from tools.serve.host import Host
from tools.serve.port import ADDRESS, choose_port
from tools.serve.server import Server, started

READY_S = 400.0
_POLL_S = 0.5
_ARGUMENTS = (
    "--dtype=float32",
    f"--block-size={BLOCK_SIZE}",
    "--kv-cache-memory-bytes=1G",
    "--max-num-seqs=16",
    "--seed=0",
    f"--served-model-name={model.NAME}",
    f"--host={ADDRESS}",
)


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
        """Return what it has counted; Mooncake has no metrics, so the probe counts."""
        lines = self.probe.all_lines()
        return counters_of(self.server.metrics()) + recorded(lines)

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
        sites: The folders of the packages that move blocks.
        blocks: The size of each pool.
    """

    host: Host
    model: Path
    tree: Path
    build: Path
    sites: Sites
    blocks: int

    def node(
        self,
        stack: ExitStack,
        name: str,
        backend: str,
        role: Role,
        *,
        connector: Connector = Connector.NIXL,
        transports: str = "tcp,self,sm",
        ports: tuple[int, int] | None = None,
    ) -> Node:
        """Start a server, which is stopped with the stack; it is not ready yet.

        Args:
            stack: What ends it.
            name: Of its log.
            backend: Its KV cache backend.
            role: What it does.
            connector: What moves its blocks.
            transports: Those that UCX may use.
            ports: Those of a server whose place it takes.
        """
        port, side_port = ports or (choose_port(None), choose_port(None))
        probe = Probe(self.build / "demo-pd" / name, "transfer_probe")
        probe.install()
        env = self.host.neutral_environment()
        env |= self.sites.environment(connector, transports, side_port)
        arguments = (
            f"--num-gpu-blocks-override={self.blocks}",
            *(f"--port={port}", f"--kv-cache-backend={backend}"),
            *connector.arguments(role),
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
        self,
        stack: ExitStack,
        name: str,
        connector: Connector,
        prefills: Sequence[Node],
        decode: Node,
    ) -> Server:
        """Start upstream's proxy for a connector and wait until it answers."""
        port = choose_port(None)
        is_mooncake = connector is Connector.MOONCAKE
        words = (_mooncake_proxy if is_mooncake else _nixl_proxy)(prefills, decode)
        server = stack.enter_context(
            started(
                [
                    self.host.python,
                    self.tree / words[0],
                    *(f"--host={ADDRESS}", f"--port={port}", *words[1:]),
                ],
                name=f"proxy ({name})",
                # A proxy of the user cannot reach this host's own address.
                env=self.host.neutral_environment()
                | {"NO_PROXY": "*", "no_proxy": "*"},
                port=port,
                log=self.build / "logs" / f"demo-pd-{name}-proxy.log",
                health="/openapi.json" if is_mooncake else "/healthcheck",
            )
        )
        server.wait_ready(READY_S)
        if is_mooncake:
            _wait_until_it_serves(server)
        return server


def _nixl_proxy(prefills: Sequence[Node], decode: Node) -> tuple[str, ...]:
    ports = [str(node.port) for node in prefills]
    return (
        "tests/v1/kv_connector/nixl_integration/toy_proxy_server.py",
        *("--prefiller-hosts", *(ADDRESS for _ in ports)),
        *("--prefiller-ports", *ports),
        *("--decoder-hosts", ADDRESS, "--decoder-ports", str(decode.port)),
    )


def _mooncake_proxy(prefills: Sequence[Node], decode: Node) -> tuple[str, ...]:
    url = f"http://{ADDRESS}"
    return (
        "examples/disaggregated/mooncake_connector/mooncake_connector_proxy.py",
        *(
            word
            for node in prefills
            for word in ("--prefill", f"{url}:{node.port}", str(node.side_port))
        ),
        *("--decode", f"{url}:{decode.port}"),
    )


def _wait_until_it_serves(proxy: Server) -> None:
    """Wait until Mooncake's proxy knows the servers; until then it refuses requests.

    Raises:
        ToolError: It goes on refusing.
    """
    deadline = time.monotonic() + READY_S
    while True:
        try:
            send(proxy, Ask((3,), 1))
            return
        except ToolError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_S)
