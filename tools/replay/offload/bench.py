"""The run of the offloading benchmark."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.base import console
from tools.replay.offload import copies, pools
from tools.replay.offload.plan import OffloadPlan
from tools.replay.offload.pools import OffloadRun
from tools.replay.offload.result import OffloadBenchmark
from tools.replay.transfer.stream import Stream
from tools.serve.host import Host


def run(host: Host, plan: OffloadPlan, jobs: int, logs: Path) -> OffloadBenchmark:
    """Count the copies of both backends, then make some of them.

    Raises:
        ToolError: A program failed, a trace cannot be read, or a byte is wrong.
    """
    setting, tasks = plan.setting, list(plan.tasks())
    memory = plan.memory(host.on_cpu)

    def serve(task: tuple[Stream, int, str]) -> OffloadRun:
        requests, chunks, backend = task
        return pools.run(host, setting, backend, requests, chunks)

    runs = []
    with (
        console.step("offload to host memory", len(tasks)) as step,
        ThreadPoolExecutor(jobs) as executor,
    ):
        for done in executor.map(serve, tasks):
            runs.append(done)
            step.advance(1)
    first = {one.backend: one for one in reversed(runs)}
    with console.step("copy blocks", 1 + memory.rounds) as step:
        made = copies.make(
            host, memory, first, logs / "bench-offload.log", lambda: step.advance(1)
        )
    return OffloadBenchmark(tuple(runs), made, setting)
