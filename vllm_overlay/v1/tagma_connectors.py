# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What KV connectors ask of the tagma backend."""

from collections.abc import Iterator, Mapping

from vllm.config import KVTransferConfig

# They hold the blocks of a request, by references, until nothing is read from them.
_HOLD_WHAT_THEY_READ = frozenset(
    {
        "MooncakeConnector",
        "NixlConnector",
        "NixlPullConnector",
        "NixlPushConnector",
    }
)


def reason_not_to_move_blocks(config: KVTransferConfig | None) -> str | None:
    """Return why cached blocks stay where they are, if a connector needs that."""
    for connector in _connectors(config):
        name = connector.get("kv_connector")
        extra_config = connector.get("kv_connector_extra_config") or {}
        if name == "MoRIIOConnector" and not _is_set(extra_config, "read_mode"):
            # No worker could hold the remote write back until its moves are made.
            return (
                "MoRIIOConnector in WRITE mode lets others write to new blocks before "
                "the workers have seen the step"
            )
        if name != "SimpleCPUOffloadConnector" and any(
            key.rpartition(".")[2] == "lazy_offload" and _is_set(extra_config, key)
            for key in extra_config
        ):
            # SimpleCPUOffloadConnector looks at what is free now. LMCache remembers.
            return (
                f"{name} looks for the blocks of finished requests where they were, to "
                "store them lazily"
            )
    return None


def reads_freed_blocks(config: KVTransferConfig | None) -> bool:
    """Whether blocks may still be read after a request has given them back.

    OffloadingConnector, for one, builds stores of a finished request in the next step.
    A connector that is not known here is taken to do the like.
    """
    return not all(map(_holds_what_it_reads, _connectors(config)))


def _connectors(config: KVTransferConfig | None) -> Iterator[Mapping]:
    """Yield the settings of the connector and of all that MultiConnector has."""
    if config is None:
        return
    queue: list[Mapping] = [vars(config)]
    for connector in queue:
        yield connector
        extra_config = connector.get("kv_connector_extra_config") or {}
        queue.extend(extra_config.get("connectors", ()))


def _holds_what_it_reads(connector: Mapping) -> bool:
    name = connector.get("kv_connector")
    if name == "MultiConnector":
        return True  # Those that it has are asked for themselves.
    is_upstreams = connector.get("kv_connector_module_path") is None
    return is_upstreams and name in _HOLD_WHAT_THEY_READ


def _is_set(settings: Mapping, key: str) -> bool:
    return str(settings.get(key, "false")).lower().strip() in ("true", "1")
