"""A vLLM plugin that lets `--async-scheduling` stand on a CPU.

`tools.measure.demo.plugin` copies this file, so it imports nothing of the tools.
vLLM's CPU platform turns asynchronous scheduling off as "not required", whatever the
option says. All of its parts run there, so a host without a GPU can test it.
"""

from typing import Any


def register() -> None:
    """Wrap the platform's last word on the configuration."""
    from vllm.platforms import current_platform

    platform = type(current_platform)
    update = platform.check_and_update_config
    if not current_platform.is_cpu() or update.__module__ == __name__:
        return  # vLLM may load a plugin more than once

    def update_and_keep(cls: Any, vllm_config: Any) -> None:
        wanted = vllm_config.scheduler_config.async_scheduling
        update.__func__(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = wanted

    platform.check_and_update_config = classmethod(update_and_keep)
