"""What a server says of itself; the demo reads it from real servers."""

import pytest

from tools.measure.observed import (
    backend_of,
    block_copies,
    preemptions,
    problems,
    values,
    write_path_of,
)

METRICS = """\
# HELP vllm:kv_cache_tagma_spills_total Growths.
vllm:kv_cache_tagma_spills_total{engine="0",model_name="m"} 3.0
vllm:kv_cache_tagma_block_copies_total{engine="0",model_name="m"} 5.0
vllm:kv_cache_tagma_block_copies_per_step_bucket{engine="0",le="1.0",model_name="m"} 2.0
vllm:kv_cache_tagma_block_copies_per_step_count{engine="0",model_name="m"} 7.0
vllm:kv_cache_tagma_kept_cached_tokens_total{engine="0",model_name="m"} 96.0
vllm:kv_cache_tagma_cap_events_total{engine="0",model_name="m"} 0.0
vllm:kv_cache_tagma_largest_free_extent_blocks{engine="0",model_name="m"} 12.0
vllm:kv_cache_tagma_one_range_requests_perc{engine="0",model_name="m"} 0.5
vllm:kv_cache_tagma_ranges_per_request_bucket{engine="0",le="1.0",model_name="m"} 2.0
vllm:kv_cache_tagma_ranges_per_request_count{engine="0",model_name="m"} 4.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.1
"""
LOG = (
    "INFO 11-29 [tagma_logger.py:1] Engine 000: KV cache ranges: 50.0% of 4 reqs in "
    "one range, Largest free extent: 12 blocks, Spills: 3, Block copies: 5, "
    "Kept cached tokens: 96, Cap events: 0\n"
)


def test_values_are_those_of_the_backend_alone():
    assert values(METRICS) == {
        "spills_total": 3.0,
        "block_copies_total": 5.0,
        "block_copies_per_step_count": 7.0,
        "kept_cached_tokens_total": 96.0,
        "cap_events_total": 0.0,
        "largest_free_extent_blocks": 12.0,
        "one_range_requests_perc": 0.5,
        "ranges_per_request_count": 4.0,
    }


def test_all_shown_is_no_problem():
    assert list(problems("tagma", METRICS, LOG)) == []


@pytest.mark.parametrize("name", values(METRICS))
def test_a_missing_metric_is_named(name):
    lines = METRICS.splitlines(keepends=True)
    cut = "".join(line for line in lines if f"_{name}{{" not in line)
    assert list(problems("tagma", cut, LOG)) == [
        f"/metrics lacks vllm:kv_cache_tagma_{name}"
    ]


def test_a_count_that_stood_still_is_a_problem():
    still = METRICS.replace('m"} 3.0', 'm"} 0.0')
    assert list(problems("tagma", still, LOG)) == [
        "vllm:kv_cache_tagma_spills_total is 0"
    ]


def test_a_missing_log_line_is_a_problem():
    assert list(problems("tagma", METRICS, "")) == ["the log has no line about ranges"]


def test_paged_shows_none_of_it():
    assert list(problems("paged", "vllm:kv_cache_usage_perc 0.1", "")) == []
    for metrics, log in ((METRICS, ""), ("", LOG)):
        assert list(problems("paged", metrics, log)) == [
            "paged shows what only tagma measures"
        ]


VLLM_METRICS = """\
# HELP vllm:num_preemptions_total Cumulative number of preemption from the engine.
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="tagma-tiny"} 2.0
# TYPE vllm:num_preemptions_created gauge
vllm:num_preemptions_created{engine="0",model_name="tagma-tiny"} 1.795978982903573e+09
vllm:cache_config_info{block_size="32",kv_cache_backend="tagma",num_gpu_blocks="64"} 1.0
"""


def test_values_of_the_servers_metrics() -> None:
    assert preemptions(VLLM_METRICS) == 2
    assert block_copies(METRICS) == 5
    assert block_copies(VLLM_METRICS) == 0
    assert backend_of(VLLM_METRICS) == "tagma"
    assert backend_of("# nothing\n") == "unknown"


def test_the_write_path_is_read_from_the_log() -> None:
    line = "(EngineCore pid=7) INFO 11-29 [x.py:9] KV cache write path: tagma, slot …"
    assert write_path_of(f"INFO ready\n{line}\n") == "tagma"
    assert write_path_of("INFO ready\n") == "paged"
