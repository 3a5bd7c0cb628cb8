# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What upstream's engine asks of the KV cache manager, read from its sources.

A release of upstream that asks for more, or for something else, fails here and not
in production. Then look at what is new, see that the tagma backend serves it, and
write it down below.
"""

import ast
import hashlib
import inspect
import textwrap
from collections import defaultdict
from collections.abc import Iterator

import pytest

import vllm.distributed.kv_transfer.kv_connector.v1.base as connector_base
import vllm.v1.core.kv_cache_coordinator as upstream_coordinator
import vllm.v1.core.kv_cache_manager as upstream_manager
import vllm.v1.core.sched.async_scheduler as async_scheduler
import vllm.v1.core.sched.scheduler as scheduler
import vllm.v1.core.single_type_kv_cache_manager as upstream_group
import vllm.v1.engine.core as engine_core
import vllm.v1.metrics.loggers as loggers
import vllm.v1.metrics.stats as stats
from tests.v1.core.test_tagma_kv_cache_manager import make_manager
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.tagma_block_list import TagmaBlock, TagmaBlockList
from vllm.v1.core.tagma_block_pool import TagmaBlockPool
from vllm.v1.core.tagma_kv_cache_coordinator import (
    TagmaFullAttentionManager,
    TagmaKVCacheCoordinator,
)
from vllm.v1.core.tagma_kv_cache_manager import (
    TagmaKVCacheBlocks,
    TagmaKVCacheManager,
)

pytestmark = [pytest.mark.cpu_test, pytest.mark.skip_global_cleanup]

CALLERS = (scheduler, async_scheduler, engine_core, loggers, stats, connector_base)

# By the object that it is looked up on.
TOUCHED = {
    "kv_cache_manager": {
        "allocate_slots",
        "block_pool",
        "cache_blocks",
        "coordinator",
        "empty_kv_cache_blocks",
        "estimate_cached_tokens",
        "evict_blocks",
        "finalize_partial_tail_offloads",
        "free",
        "get_block_ids",
        "get_block_ids_for_computed_tokens",
        "get_blocks",
        "get_computed_blocks",
        "get_computed_blocks_for_connector",
        "make_prefix_cache_stats",
        "mamba_shared_prefix_checkpoint",
        "new_step_starts",
        "pop_blocks_for_free",
        "record_blocks_for_zeroing",
        "record_prefix_cache_stats",
        "remove_skipped_blocks",
        "reset_prefix_cache",
        "take_boundary_state_offloads",
        "take_events",
        "take_kv_cache_block_copies",
        "take_new_block_ids",
        "truncate_computed_blocks",
        "usage",
    },
    "coordinator": {
        "enable_partial_hash_hits",
        "get_num_blocks_to_allocate",
        "single_type_managers",
    },
    "block_pool": {"free_blocks"},
}

# What the scheduler looks up on the results, which have no type there.
KV_CACHE_BLOCKS = {
    "blocks",
    "get_block_ids",
    "get_unhashed_block_ids",
    "get_unhashed_block_ids_all_groups",
    "new_empty",
}


def trees() -> Iterator[ast.AST]:
    for module in CALLERS:
        yield ast.parse(inspect.getsource(module))


def touched() -> dict[str, set[str]]:
    """The attributes looked up on anything of one of the names in `TOUCHED`."""
    found = defaultdict(set)
    for tree in trees():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute):
                continue
            owner = node.value
            name = getattr(owner, "attr", None) or getattr(owner, "id", None)
            if name in TOUCHED and not _is_hisparse(node):
                found[name].add(node.attr)
    return dict(found)


def _is_hisparse(node: ast.Attribute) -> bool:
    """Whether the path leads to HiSparse's own managers: it is refused."""
    return "hisparse" in ast.unparse(node)


def calls() -> Iterator[tuple[str, ast.Call]]:
    """Yield the calls of the manager's methods."""
    for tree in trees():
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and ast.unparse(node.func.value).endswith("kv_cache_manager")
            ):
                yield node.func.attr, node


def test_the_engine_asks_for_nothing_unknown():
    assert touched() == TOUCHED


def test_all_that_the_engine_asks_for_is_there():
    manager = make_manager(num_blocks=8)
    owners = {
        "kv_cache_manager": manager,
        "coordinator": manager.coordinator,
        "block_pool": manager.block_pool,
    }
    for owner, names in TOUCHED.items():
        for name in names:
            getattr(owners[owner], name)
    public = {
        name
        for name in vars(upstream_manager.KVCacheBlocks)
        if not name.startswith("_") or name == "__add__"
    } | set(upstream_manager.KVCacheBlocks.__annotations__)
    assert public - {"__add__"} == KV_CACHE_BLOCKS
    for blocks in (manager.empty_kv_cache_blocks, TagmaKVCacheBlocks(((),))):
        for name in public:
            getattr(blocks, name)


def test_every_call_of_the_engine_fits_the_signature():
    names = set()
    for name, call in calls():
        signature = inspect.signature(getattr(TagmaKVCacheManager, name))
        args = [object() for _ in call.args]
        keywords = {keyword.arg: object() for keyword in call.keywords}
        signature.bind(None, *args, **keywords)
        names.add(name)
    assert {"allocate_slots", "free", "cache_blocks"} <= names


PAIRS = [
    (TagmaKVCacheManager, upstream_manager.KVCacheManager),
    (TagmaKVCacheBlocks, upstream_manager.KVCacheBlocks),
    (TagmaKVCacheCoordinator, upstream_coordinator.UnitaryKVCacheCoordinator),
    (TagmaFullAttentionManager, upstream_group.FullAttentionManager),
    (TagmaBlockPool, BlockPool),
]


def overrides() -> list:
    return [
        pytest.param(ours, upstreams, name, id=f"{ours.__name__}.{name}")
        for ours, upstreams in PAIRS
        for name, member in vars(ours).items()
        if (inspect.isfunction(member) or isinstance(member, classmethod))
        and name != "__init__"
        and hasattr(upstreams, name)
    ]


def parameters(function) -> dict[str, inspect.Parameter]:
    found = dict(inspect.signature(function).parameters)
    found.pop("self", None)
    return found


@pytest.mark.parametrize("ours, upstreams, name", overrides())
def test_an_override_takes_what_upstreams_takes(ours, upstreams, name):
    """The same names at the same places, so that no call can tell them apart."""
    mine, theirs = parameters(getattr(ours, name)), parameters(getattr(upstreams, name))
    kinds = {parameter.kind for parameter in mine.values()}
    takes_any = inspect.Parameter.VAR_KEYWORD in kinds
    for position, (key, parameter) in enumerate(theirs.items()):
        if key not in mine:
            assert takes_any, key
            continue
        assert mine[key].kind == parameter.kind
        assert mine[key].default == parameter.default
        assert list(mine)[position] == key
    required = {
        key
        for key, parameter in mine.items()
        if parameter.default is inspect.Parameter.empty
        and parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    }
    assert required <= set(theirs)


# Upstream's code whose arithmetic `TagmaKVCacheManager.allocate_slots` writes out for
# one full-attention group. If one changes, follow it there, then renew its digest.
WRITTEN_OUT = {
    (upstream_manager.KVCacheManager, "allocate_slots"): "af6470ef02235eb3",
    (upstream_manager.KVCacheManager, "cache_blocks"): "82f4159951cc8d61",
    (upstream_manager.KVCacheManager, "estimate_cached_tokens"): "93e19e28e1937f2e",
    (
        upstream_coordinator.KVCacheCoordinator,
        "get_num_blocks_to_allocate",
    ): "0eca363b6193d478",
    (
        upstream_group.SingleTypeKVCacheManager,
        "get_num_blocks_to_allocate",
    ): "b430fe06a1f4168d",
}


def digest_of(owner: type, name: str) -> str:
    """A digest of a method's code, without comments, docstring and layout."""
    source = textwrap.dedent(inspect.getsource(getattr(owner, name)))
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    if ast.get_docstring(function) is not None:
        del function.body[0]
    return hashlib.sha256(ast.unparse(function).encode()).hexdigest()[:16]


@pytest.mark.parametrize(
    "owner, name",
    WRITTEN_OUT,
    ids=[f"{owner.__name__}.{name}" for owner, name in WRITTEN_OUT],
)
def test_upstreams_code_is_what_ours_follows(owner, name):
    assert digest_of(owner, name) == WRITTEN_OUT[owner, name]


def test_blocks_have_the_attributes_of_upstreams():
    manager = make_manager(num_blocks=8)
    block = manager.block_pool.blocks[3]
    assert isinstance(block, TagmaBlock)
    for name in ("block_id", "ref_cnt", "block_hash", "block_hash_num_tokens", "pool"):
        getattr(block, name)
    assert not block.is_null and manager.block_pool.null_block.is_null
    # As a list's, and no other: upstream's code must not change them in place.
    for name in ("append", "extend", "pop", "insert", "clear"):
        assert not hasattr(TagmaBlockList, name)
