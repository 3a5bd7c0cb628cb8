# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""A tensor's chunks in shared memory are in one piece, apart from all others."""

import uuid

import pytest

from vllm.v1.kv_offload.cpu import tensor_region
from vllm.v1.kv_offload.cpu.tensor_region import TensorOffloadRegion

PAGES = (512, 1024, 256)
NUM_CHUNKS, NUM_WORKERS = 12, 2


@pytest.fixture
def regions():
    """The region as each of two workers has mapped it."""
    engine_id = str(uuid.uuid4())
    made = [
        TensorOffloadRegion(engine_id, NUM_CHUNKS, rank, 4096, sum(PAGES))
        for rank in range(NUM_WORKERS)
    ]
    yield made
    for region in made:
        region.cleanup()


def test_the_chunks_of_a_tensor_are_contiguous_and_its_own(regions):
    for number, region in enumerate(regions):
        for page in PAGES:
            view = region.create_next_worker_view(page)
            assert view.shape == (NUM_CHUNKS, page) and view.is_contiguous()
            assert not view.any()
            view.fill_(number + 1)
    filled = [int((regions[0].base_tensor == n).sum()) for n in (1, 2)]
    assert filled == [NUM_CHUNKS * sum(PAGES)] * 2
    del view


def test_the_pages_that_a_worker_pins_hold_its_chunks_and_no_row(regions):
    for region in regions:
        ((offset, size),) = region.iter_worker_slot_ranges()
        view = region.create_next_worker_view(sum(PAGES))
        start = view.data_ptr() - region.base_tensor.data_ptr()
        assert offset % region.page_size == size % region.page_size == 0
        assert offset <= start < offset + region.page_size
        assert 0 <= offset + size - (start + view.nbytes) < region.page_size
        assert offset + size <= region.total_size_bytes
    del view


def test_no_page_lies_in_two_registrations(regions, monkeypatch):
    monkeypatch.setattr(tensor_region, "MAX_HOST_REGISTER_CHUNK_BYTES", 4 * 4096)
    view = regions[0].create_next_worker_view(PAGES[0])
    assert view.stride() == (4096, 1)
    del view
