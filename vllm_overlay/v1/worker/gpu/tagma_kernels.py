# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Triton kernels that read block ranges, from rows of a `RangeTable`."""

from vllm.triton_utils import tl, triton
from vllm.v1.worker.gpu.buffer_utils import _load_ptr


@triton.jit(do_not_specialize=["num_reqs"])
def _expand_ranges_to_block_table_kernel(
    batch_idx_to_req_idx,  # [batch_size]
    range_table_ptr,  # [num_kv_cache_groups * max_num_reqs, row_width]
    range_table_stride,
    max_num_reqs,
    src_block_table_ptrs,  # [num_kv_cache_groups], used only when HAS_FALLBACK
    dst_block_table_ptrs,  # [num_kv_cache_groups]
    block_table_strides,  # [num_kv_cache_groups]
    num_reqs,  # actual number of requests (for padding)
    HAS_FALLBACK: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    # kv cache group id
    group_id = tl.program_id(0)
    batch_idx = tl.program_id(1)

    stride = tl.load(block_table_strides + group_id)
    max_num_blocks = stride  # stride equals max_num_blocks for this group.
    dst_block_table_ptr = _load_ptr(dst_block_table_ptrs + group_id, tl.int32)
    dst_row_ptr = dst_block_table_ptr + batch_idx * stride

    if batch_idx >= num_reqs:
        # Zero out padded rows.
        for i in tl.range(0, max_num_blocks, BLOCK_SIZE):
            offset = i + tl.arange(0, BLOCK_SIZE)
            tl.store(dst_row_ptr + offset, 0, mask=offset < max_num_blocks)
        return

    req_idx = tl.load(batch_idx_to_req_idx + batch_idx)
    row = (group_id * max_num_reqs + req_idx).to(tl.int64)
    row_ptr = range_table_ptr + row * range_table_stride
    # idx_mapping == -1 marks a dummy request. It has no row, hence no ranges.
    num_ranges = tl.load(row_ptr, mask=req_idx >= 0, other=0)

    begin = 0
    for r in range(num_ranges):
        start = tl.load(row_ptr + 2 * r + 2)
        end = tl.load(row_ptr + 2 * r + 3)
        # A range of the null block repeats it.
        step = tl.where(start == 0, 0, 1)
        for i in range(begin, end, BLOCK_SIZE):
            offset = i + tl.arange(0, BLOCK_SIZE)
            block_ids = start + (offset - begin) * step
            tl.store(dst_row_ptr + offset, block_ids, mask=offset < end)
        begin = end

    if HAS_FALLBACK and num_ranges < 0:
        # Over the cap: -num_ranges is the number of blocks.
        src_block_table_ptr = _load_ptr(src_block_table_ptrs + group_id, tl.int32)
        src_row_ptr = src_block_table_ptr + req_idx * stride
        for i in range(0, -num_ranges, BLOCK_SIZE):
            offset = i + tl.arange(0, BLOCK_SIZE)
            block_ids = tl.load(src_row_ptr + offset, mask=offset < -num_ranges)
            tl.store(dst_row_ptr + offset, block_ids, mask=offset < -num_ranges)


@triton.jit
def _find_range(cums_ptr, num_ranges, block_index):
    """Return the last range that begins at or before a block of the request."""
    low = 0
    high = num_ranges
    while high - low > 1:
        middle = (low + high) // 2
        begins_before = tl.load(cums_ptr + 2 * middle) <= block_index
        low = tl.where(begins_before, middle, low)
        high = tl.where(begins_before, high, middle)
    return low


@triton.jit
def _compute_slot_mappings_tagma_kernel(
    max_num_tokens,
    idx_mapping,  # [num_reqs]
    query_start_loc,  # [num_reqs + 1]
    pos,  # [num_tokens]
    range_table_ptr,  # [num_kv_cache_groups * max_num_reqs, row_width]
    range_table_stride,
    max_num_reqs,
    block_table_ptrs,  # [num_kv_cache_groups], used only when HAS_FALLBACK
    block_table_strides,  # [num_kv_cache_groups], used only when HAS_FALLBACK
    block_sizes,  # [num_kv_cache_groups]
    slot_mapping_enabled,  # [num_kv_cache_groups]
    slot_mappings_ptr,  # [num_kv_cache_groups, max_num_tokens]
    slot_mappings_stride,
    HAS_FALLBACK: tl.constexpr,
    PAD_ID: tl.constexpr,
    TRITON_BLOCK_SIZE: tl.constexpr,
):
    # kv cache group id
    group_id = tl.program_id(0)
    batch_idx = tl.program_id(1)
    slot_mapping_ptr = slot_mappings_ptr + group_id * slot_mappings_stride

    if batch_idx == tl.num_programs(1) - 1:
        # Pad from the actual token count to the end of the buffer: CUDA graphs
        # read there, and earlier steps left valid slots behind.
        actual_num_tokens = tl.load(query_start_loc + batch_idx)
        for i in range(actual_num_tokens, max_num_tokens, TRITON_BLOCK_SIZE):
            offset = i + tl.arange(0, TRITON_BLOCK_SIZE)
            tl.store(slot_mapping_ptr + offset, PAD_ID, mask=offset < max_num_tokens)
        return

    req_state_idx = tl.load(idx_mapping + batch_idx)
    mapping_enabled = tl.load(slot_mapping_enabled + group_id)
    # int64: a product of two int32 may overflow, here and with the block size.
    row = (group_id * max_num_reqs + req_state_idx).to(tl.int64)
    row_ptr = range_table_ptr + row * range_table_stride
    cums_ptr = row_ptr + 1
    starts_ptr = row_ptr + 2
    # idx_mapping == -1 marks a dummy (or CUDA-graph padding) request. It has no
    # row, and like a group without a mapping it has no ranges: all is PAD.
    num_ranges = tl.load(row_ptr, mask=mapping_enabled & (req_state_idx >= 0), other=0)
    kv_block_size = tl.load(block_sizes + group_id).to(tl.int64)

    start_idx = tl.load(query_start_loc + batch_idx)
    end_idx = tl.load(query_start_loc + batch_idx + 1)
    for i in range(start_idx, end_idx, TRITON_BLOCK_SIZE):
        offset = i + tl.arange(0, TRITON_BLOCK_SIZE)
        # Lanes past the end repeat a position, which keeps first and last right.
        first_lane = tl.load(pos + i)
        positions = tl.load(pos + offset, mask=offset < end_idx, other=first_lane)
        first_position = tl.min(positions)
        last_position = tl.max(positions)

        # All of a range's slots are at one distance from their positions, hence
        # one descriptor serves every position of the tile that it covers.
        slot_ids = tl.full([TRITON_BLOCK_SIZE], PAD_ID, tl.int64)
        r = _find_range(cums_ptr, num_ranges, first_position // kv_block_size)
        range_begin = tl.load(cums_ptr + 2 * r, mask=r < num_ranges, other=0)
        range_begin = range_begin * kv_block_size
        while (r < num_ranges) & (range_begin <= last_position):
            range_end = tl.load(cums_ptr + 2 * (r + 1)) * kv_block_size
            range_start = tl.load(starts_ptr + 2 * r)
            range_slots = positions + (range_start * kv_block_size - range_begin)
            if range_start == 0:
                # A range of the null block repeats it.
                range_slots = positions % kv_block_size
            is_in_range = (positions >= range_begin) & (positions < range_end)
            slot_ids = tl.where(is_in_range, range_slots, slot_ids)
            range_begin = range_end
            r += 1

        if HAS_FALLBACK and num_ranges < 0:
            # Over the cap: -num_ranges is the number of blocks.
            block_table_ptr = _load_ptr(block_table_ptrs + group_id, tl.int32)
            block_table_stride = tl.load(block_table_strides + group_id)
            block_indices = positions // kv_block_size
            has_block = block_indices < -num_ranges
            block_numbers = tl.load(
                block_table_ptr + req_state_idx * block_table_stride + block_indices,
                mask=has_block,
                other=0,
            )
            slot_ids = tl.where(
                has_block,
                block_numbers * kv_block_size + positions % kv_block_size,
                PAD_ID,
            )

        tl.store(slot_mapping_ptr + offset, slot_ids, mask=offset < end_idx)


@triton.jit
def _copy_blocks_kernel(
    segment_addresses,  # [num_segments], of block 0, in bytes
    segment_strides,  # [num_segments], from block to block, in elements
    segment_lengths,  # [num_segments], of a block, in elements
    plan_ptr,  # [num_sequences, 4] and behind it [num_runs, 3]
    NUM_SEGMENTS: tl.constexpr,
    ELEMENT: tl.constexpr,
    # What all numbers of segments are multiples of: in elements, and in bytes.
    VECTOR: tl.constexpr,
    VECTOR_BYTES: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """Copy blocks in all segments of the KV cache.

    A sequence is (first run, end of its runs, saved source, saved target), a run is
    (source, target, count). One program makes a whole sequence of copies for one tile
    of a block, so that an order among them needs no other launch. What comes first is
    read before and written after the runs: a cycle's block, unless its target is -1.
    """
    sequence = tl.program_id(0) // NUM_SEGMENTS
    segment = tl.program_id(0) % NUM_SEGMENTS
    length = tl.multiple_of(tl.load(segment_lengths + segment), VECTOR)
    begin = tl.program_id(1).to(tl.int64) * BLOCK_SIZE
    if begin >= length:
        return
    offset = begin + tl.arange(0, BLOCK_SIZE)
    mask = offset < length
    stride = tl.multiple_of(tl.load(segment_strides + segment), VECTOR)
    address = tl.load(segment_addresses + segment)
    block_0 = tl.cast(address, tl.pointer_type(ELEMENT))
    block_0 = tl.multiple_of(block_0, VECTOR_BYTES)

    sequence_ptr = plan_ptr + 4 * sequence
    runs_ptr = plan_ptr + 4 * (tl.num_programs(0) // NUM_SEGMENTS)
    saved_source = tl.load(sequence_ptr + 2)
    saved_target = tl.load(sequence_ptr + 3)
    saves = offset < tl.where(saved_target < 0, 0, length)
    saved = tl.load(block_0 + saved_source * stride + offset, mask=saves)
    for r in tl.range(tl.load(sequence_ptr), tl.load(sequence_ptr + 1), num_stages=1):
        # Other threads may have read what is written from here on, and behind the loop.
        tl.debug_barrier()
        source = tl.load(runs_ptr + 3 * r)
        target = tl.load(runs_ptr + 3 * r + 1)
        count = tl.load(runs_ptr + 3 * r + 2)
        for i in tl.range(0, count, num_stages=1):
            tile = tl.load(block_0 + (source + i) * stride + offset, mask=mask)
            tl.store(block_0 + (target + i) * stride + offset, tile, mask=mask)
    tl.debug_barrier()
    tl.store(block_0 + saved_target * stride + offset, saved, mask=saves)
