"""Rounds of upstream's whole scheduler, without a worker."""

from pathlib import Path
from time import thread_time_ns

from vllm.engine.arg_utils import EngineArgs
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from tools.inside.pool import make_cache_config, use_up
from tools.inside.request import make_request, random_hashes
from tools.inside.rounds import Round, settle
from tools.inside.setting import (
    BLOCK_SIZE,
    DECODE_PROMPT,
    DECODING,
    MAX_TOKENS,
    POOL_BLOCKS,
    POOL_TOKENS,
)


def schedule_decode(name: str, model: Path, caching: bool, backend: str) -> Round:
    """The whole of `Scheduler.schedule()` in a decode step of many requests."""
    scheduler = make_scheduler(model, caching, backend)
    use_up(scheduler.kv_cache_manager, random_hashes() if caching else None)
    hasher = random_hashes() if caching else None
    for index in range(DECODING):
        scheduler.add_request(make_request(DECODE_PROMPT - index % BLOCK_SIZE, hasher))
    step(scheduler)

    def measure() -> dict[str, float]:
        settle()
        times = [step(scheduler) for _ in range(BLOCK_SIZE)]
        if len(scheduler.running) != DECODING:
            raise RuntimeError("a request is not running")
        return {name: sum(times) / BLOCK_SIZE}

    return measure


def schedule_prompt(name: str, num_tokens: int, model: Path, backend: str) -> Round:
    """The whole of `Scheduler.schedule()` when it admits one long prompt."""
    scheduler = make_scheduler(model, True, backend)
    use_up(scheduler.kv_cache_manager, random_hashes())

    def measure() -> dict[str, float]:
        request = make_request(num_tokens, random_hashes())
        scheduler.add_request(request)
        settle()
        spent = step(scheduler)
        if request.num_computed_tokens != num_tokens:
            raise RuntimeError("the prompt was not admitted as a whole")
        scheduler.finish_requests(request.request_id, RequestStatus.FINISHED_ABORTED)
        step(scheduler)  # tells the worker
        return {name: spent}

    return measure


def make_scheduler(model: Path, caching: bool, backend: str) -> Scheduler:
    """Return upstream's scheduler over the pool, without a worker."""
    config = EngineArgs(
        model=str(model),
        skip_tokenizer_init=True,
        enforce_eager=True,
        async_scheduling=False,
        max_model_len=MAX_TOKENS,
        max_num_seqs=DECODING,
        max_num_batched_tokens=POOL_TOKENS,
        enable_prefix_caching=caching,
        kv_cache_backend=backend,
    ).create_engine_config()
    config.cache_config.num_gpu_blocks = POOL_BLOCKS
    return Scheduler(
        vllm_config=config,
        kv_cache_config=make_cache_config(),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_SIZE,
        log_stats=True,
    )


def step(scheduler: Scheduler) -> int:
    """Schedule once and answer as a worker; return the time of `schedule()`."""
    begin = thread_time_ns()
    output = scheduler.schedule()
    spent = thread_time_ns() - begin
    scheduler.update_from_output(output, answer(output))
    return spent


def answer(output: SchedulerOutput) -> ModelRunnerOutput:
    """Return one token for each request: all prompts are scheduled as a whole."""
    ids = list(output.num_scheduled_tokens)
    return ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={req_id: index for index, req_id in enumerate(ids)},
        sampled_token_ids=[[1] for _ in ids],
    )
