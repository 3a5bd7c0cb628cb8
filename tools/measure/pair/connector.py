"""How servers move blocks to each other: NIXL, pulled or pushed, and Mooncake."""

import json
import os
from collections.abc import Mapping
from ctypes.util import find_library
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from tools.base.project import Project
from tools.compile import beside
from tools.serve.port import ADDRESS

# Upstream's 30 s end too early on a loaded machine: blocks are freed before they are
# read, and the client gets wrong tokens without an error.
LEASE_S = 600
# What a server may listen at for others that want its blocks.
_NIXL_PORT, _MOONCAKE_PORT = (
    "VLLM_NIXL_SIDE_CHANNEL_PORT",
    "VLLM_MOONCAKE_BOOTSTRAP_PORT",
)


class Role(Enum):
    """What a server does; the value is vLLM's word."""

    ALONE = "alone"
    PREFILL = "kv_producer"
    DECODE = "kv_consumer"


class Connector(Enum):
    """The class that moves blocks; the value is vLLM's word."""

    NIXL = "NixlConnector"
    NIXL_PUSH = "NixlPushConnector"
    MOONCAKE = "MooncakeConnector"

    @property
    def label(self) -> str:
        """What to add to a setting's name; NIXL that pulls is what is usual."""
        return {
            Connector.NIXL: "",
            Connector.NIXL_PUSH: ", push",
            Connector.MOONCAKE: ", Mooncake",
        }[self]

    def arguments(self, role: Role) -> tuple[str, ...]:
        """Return those of a server."""
        if role is Role.ALONE:
            return ()
        extra: dict[str, Any] = {"kv_lease_duration": LEASE_S}
        if self is Connector.MOONCAKE:
            extra = {"mooncake_protocol": "tcp"}
        config = {
            "kv_connector": self.value,
            "kv_role": role.value,
            "kv_buffer_device": "cpu",
            "kv_connector_extra_config": extra,
        }
        return (f"--kv-transfer-config={json.dumps(config)}",)


@dataclass(frozen=True)
class Sites:
    """The folders of the packages that move blocks.

    Args:
        nixl: Those of NIXL.
        mooncake: Those of Mooncake.
    """

    nixl: Path
    mooncake: Path

    def environment(
        self, connector: Connector, transports: str, side_port: int
    ) -> Mapping[str, str]:
        """Return the variables of a server.

        Args:
            connector: What moves its blocks.
            transports: Those that UCX may use.
            side_port: Where others ask it for its blocks.
        """
        is_mooncake = connector is Connector.MOONCAKE
        site = self.mooncake if is_mooncake else self.nixl
        env = {
            "OMP_NUM_THREADS": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "PYTHONPATH": _path(str(site), os.environ.get("PYTHONPATH")),
            "VLLM_HOST_IP": ADDRESS,
        }
        if is_mooncake:
            env |= {_MOONCAKE_PORT: str(side_port)}
            if libraries := self._libraries():
                env["LD_LIBRARY_PATH"] = _path(
                    *map(str, libraries), os.environ.get("LD_LIBRARY_PATH")
                )
            return env
        return env | {
            "UCX_TLS": transports,
            "UCX_NET_DEVICES": "lo",
            "VLLM_NIXL_SIDE_CHANNEL_HOST": ADDRESS,
            _NIXL_PORT: str(side_port),
        }

    def _libraries(self) -> tuple[Path, ...]:
        """Return where Mooncake finds libibverbs, if the system has none.

        NIXL's wheel brings a copy, under a name of its own.
        """
        if find_library("ibverbs"):
            return ()
        bundled = next(self.nixl.glob("nixl_cu*.libs/libibverbs-*.so.*"), None)
        if bundled is None:
            return ()
        link = self.mooncake.parent / "lib" / "libibverbs.so.1"
        link.parent.mkdir(exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(bundled)
        return link.parent, bundled.parent


def install(project: Project, python: Path) -> Sites:
    """Install the packages that move blocks, where it is needed.

    Args:
        project: The project. The caller holds its lock.
        python: The interpreter of the environment that serves.

    Raises:
        ToolError: One cannot be installed.
    """
    build = project.build
    sites = Sites(build / "transfer" / "site", build / "mooncake" / "site")
    beside.install(project, python, "transfer", sites.nixl)
    beside.install(project, python, "mooncake", sites.mooncake)
    return sites


def _path(*folders: str | None) -> str:
    return os.pathsep.join(filter(None, folders))
