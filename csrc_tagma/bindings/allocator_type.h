// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

// The type `KVAllocator`: a pool of blocks.

#pragma once

#include <Python.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "docstrings.h"
#include "errors.h"
#include "objects.h"
#include "ranges_type.h"
#include "values.h"

namespace vllm::tagma::bindings {

inline RangeList reversed(const RangeList& blocks) {
  RangeList result;
  for (int64_t i = blocks.num_blocks(); i-- > 0;) {
    result.append({blocks.at(i), 1});
  }
  return result;
}

inline PyObject* allocator_new(PyTypeObject* type, PyObject* args,
                               PyObject* kwargs) {
  static const char* keywords[] = {"num_blocks", "max_ranges", nullptr};
  Py_ssize_t num_blocks = 0;
  Py_ssize_t max_ranges = 256;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "n|n:KVAllocator",
                                   const_cast<char**>(keywords), &num_blocks,
                                   &max_ranges)) {
    return nullptr;
  }
  if (num_blocks < 1 || num_blocks > kMaxBlocks) {
    return PyErr_Format(PyExc_ValueError,
                        "num_blocks must be in [1, %d], got %zd", kMaxBlocks,
                        num_blocks);
  }
  if (max_ranges < 0 || max_ranges > kMaxBlocks) {
    return PyErr_Format(PyExc_ValueError,
                        "max_ranges must be in [0, %d], got %zd; 0 means no "
                        "cap",
                        kMaxBlocks, max_ranges);
  }
  auto* state = static_cast<ModuleState*>(PyType_GetModuleState(type));
  PyObject* self = allocate_object(reinterpret_cast<PyObject*>(type));
  if (state == nullptr || self == nullptr) {
    Py_XDECREF(self);
    return nullptr;
  }
  PyObject* ready = guarded([&]() -> PyObject* {
    as_allocator(self)->state = state;
    as_allocator(self)->engine = new KVAllocator(
        static_cast<int32_t>(num_blocks), static_cast<int32_t>(max_ranges));
    return self;
  });
  if (ready == nullptr) {
    Py_DECREF(self);
  }
  return ready;
}

inline void allocator_dealloc(PyObject* self) {
  delete as_allocator(self)->engine;
  delete as_allocator(self)->index;
  free_object(self);
}

inline PyObject* allocator_allocate(PyObject* self, PyObject* arg) {
  int64_t count = 0;
  if (!parse_int(arg, &count)) {
    return nullptr;
  }
  return guarded([&]() -> PyObject* {
    Range range;
    const Result result = engine_of(self).allocate(count, &range);
    return result.ok() ? tuple_of(range)
                       : raise(as_allocator(self), result, count);
  });
}

inline PyObject* allocator_new_ranges(PyObject* self, PyObject*) {
  return new_ranges_object(as_allocator(self), /*is_view=*/false);
}

inline PyObject* allocator_extend(PyObject* self, PyObject* const* args,
                                  Py_ssize_t nargs) {
  int64_t count = 0;
  int64_t expected = 0;
  if (!check_nargs("extend", nargs, nargs == 3 ? 3 : 2) ||
      !parse_int(args[1], &count) ||
      (nargs == 3 && !parse_int(args[2], &expected))) {
    return nullptr;
  }
  RangesObject* request = parse_request(self, args[0]);
  if (request == nullptr) {
    return nullptr;
  }
  PyObject* view = new_ranges_object(as_allocator(self), /*is_view=*/true);
  if (view == nullptr) {
    return nullptr;
  }
  PyObject* done = guarded([&]() -> PyObject* {
    engine_of(self).expect(&request->blocks, expected);
    const Result result = engine_of(self).extend(&request->blocks, count,
                                                 &as_ranges(view)->blocks);
    return result.ok() ? view : raise(as_allocator(self), result, count);
  });
  if (done == nullptr) {
    Py_DECREF(view);
  }
  return done;
}

inline PyObject* allocator_grow(PyObject* self, PyObject* const* args,
                                Py_ssize_t nargs) {
  int64_t count = 0;
  if (!check_nargs("grow", nargs, 2) || !parse_int(args[1], &count)) {
    return nullptr;
  }
  RangesObject* request = parse_request(self, args[0]);
  if (request == nullptr) {
    return nullptr;
  }
  return guarded([&]() -> PyObject* {
    const size_t before = request->blocks.num_ranges();
    const Result result = engine_of(self).extend(&request->blocks, count);
    return result.ok()
               ? PyLong_FromSize_t(request->blocks.num_ranges() - before)
               : raise(as_allocator(self), result, count);
  });
}

inline PyObject* allocator_acquire(PyObject* self, PyObject* const* args,
                                   Py_ssize_t nargs) {
  if (!check_nargs("acquire", nargs, 2)) {
    return nullptr;
  }
  RangesObject* request = parse_request(self, args[0]);
  if (request == nullptr) {
    return nullptr;
  }
  return guarded([&]() -> PyObject* {
    RangeList blocks;
    if (!parse_blocks(self, args[1], &blocks)) {
      return nullptr;
    }
    return none_or_raise(self,
                         engine_of(self).acquire(&request->blocks, blocks));
  });
}

inline PyObject* allocator_release(PyObject* self, PyObject* ranges) {
  RangesObject* request = parse_request(self, ranges);
  if (request == nullptr) {
    return nullptr;
  }
  return guarded([&]() -> PyObject* {
    return none_or_raise(self, engine_of(self).release(&request->blocks));
  });
}

// Calls `use(blocks)` with the blocks that `arg` names.
template <typename Use>
PyObject* with_blocks(PyObject* self, PyObject* arg, Use use) {
  return guarded([&]() -> PyObject* {
    RangeList blocks;
    return parse_blocks(self, arg, &blocks) ? use(blocks) : nullptr;
  });
}

inline PyObject* allocator_retain_blocks(PyObject* self, PyObject* block_ids) {
  return with_blocks(self, block_ids, [self](const RangeList& blocks) {
    return none_or_raise(self, engine_of(self).retain(blocks));
  });
}

inline PyObject* allocator_release_blocks(PyObject* self, PyObject* block_ids) {
  return with_blocks(self, block_ids, [self](const RangeList& blocks) {
    // The engine releases a list from its end.
    RangeList last_first = reversed(blocks);
    return none_or_raise(self, engine_of(self).release(&last_first));
  });
}

inline PyObject* allocator_cache_blocks(PyObject* self, PyObject* block_ids) {
  return with_blocks(self, block_ids, [self](const RangeList& blocks) {
    return none_or_raise(self, engine_of(self).cache(blocks));
  });
}

inline PyObject* allocator_count_unreferenced(PyObject* self,
                                              PyObject* block_ids) {
  return with_blocks(self, block_ids, [self](const RangeList& blocks) {
    return PyLong_FromLongLong(engine_of(self).count_unreferenced(blocks));
  });
}

// Calls `use(block)` with the block that `arg` names.
template <typename Use>
PyObject* with_block(PyObject* self, PyObject* arg, Use use) {
  int32_t block = 0;
  return parse_block(self, arg, &block) ? use(block) : nullptr;
}

inline PyObject* allocator_cache(PyObject* self, PyObject* block_id) {
  return with_block(self, block_id, [self](int32_t block) {
    return none_or_raise(self, engine_of(self).cache(block));
  });
}

inline PyObject* allocator_uncache(PyObject* self, PyObject* block_id) {
  return with_block(self, block_id, [self](int32_t block) {
    return none_or_raise(self, engine_of(self).uncache(block));
  });
}

inline PyObject* allocator_is_cached(PyObject* self, PyObject* block_id) {
  return with_block(self, block_id, [self](int32_t block) {
    return PyBool_FromLong(engine_of(self).is_cached(block));
  });
}

inline PyObject* allocator_ref_count(PyObject* self, PyObject* block_id) {
  return with_block(self, block_id, [self](int32_t block) {
    return PyLong_FromLong(engine_of(self).ref_count(block));
  });
}

inline PyObject* allocator_take_evicted(PyObject* self, PyObject*) {
  const std::vector<int32_t>& evicted = engine_of(self).evicted();
  PyObject* list = list_of(evicted.size(), [&](auto add) {
    return std::all_of(evicted.begin(), evicted.end(), [&](int32_t block) {
      return add(PyLong_FromLong(block));
    });
  });
  if (list != nullptr) {
    engine_of(self).clear_evicted();
  }
  return list;
}

inline PyObject* allocator_clear_evicted(PyObject* self, PyObject*) {
  engine_of(self).clear_evicted();
  Py_RETURN_NONE;
}

// ---- Moves. ----

inline PyObject* allocator_begin_step(PyObject* self, PyObject*) {
  return PyLong_FromLong(engine_of(self).begin_step());
}

inline PyObject* allocator_process_step(PyObject* self, PyObject* arg) {
  int64_t step = 0;
  if (!parse_int(arg, &step)) {
    return nullptr;
  }
  KVAllocator& engine = engine_of(self);
  if (step < engine.processed_step() || step > engine.scheduled_step()) {
    return PyErr_Format(PyExc_ValueError,
                        "step %lld is processed after step %d, and the last "
                        "that begun is %d; process steps in their order",
                        static_cast<long long>(step), engine.processed_step(),
                        engine.scheduled_step());
  }
  engine.process_step(static_cast<int32_t>(step));
  Py_RETURN_NONE;
}

inline PyObject* list_of_copies(const std::vector<Copy>& copies) {
  return list_of(static_cast<int64_t>(copies.size()), [&](auto add) {
    return std::all_of(copies.begin(), copies.end(), [&](const Copy& copy) {
      return add(Py_BuildValue("(ii)", copy.from, copy.to));
    });
  });
}

inline PyObject* allocator_take_copies(PyObject* self, PyObject*) {
  return guarded([&]() -> PyObject* {
    std::vector<Copy> copies;
    engine_of(self).take_copies(&copies);
    return list_of_copies(copies);
  });
}

inline PyObject* allocator_record_moves(PyObject* self, PyObject* record) {
  const int records = PyObject_IsTrue(record);
  if (records < 0) {
    return nullptr;
  }
  engine_of(self).record_moves(records != 0);
  Py_RETURN_NONE;
}

inline PyObject* allocator_take_moves(PyObject* self, PyObject*) {
  PyObject* moves = list_of_copies(engine_of(self).moves());
  if (moves != nullptr) {
    engine_of(self).clear_moves();
  }
  return moves;
}

// Copies, of which there may be any number.
inline PyObject* copies_or_none(int32_t copies) {
  if (copies >= KVAllocator::kNoBound) {
    Py_RETURN_NONE;
  }
  return PyLong_FromLong(copies);
}

inline PyObject* allocator_set_copy_bound(PyObject* self, PyObject* arg) {
  int64_t copies = KVAllocator::kNoBound;
  if (arg != Py_None && !parse_int(arg, &copies)) {
    return nullptr;
  }
  if (copies < 0) {
    return PyErr_Format(PyExc_ValueError,
                        "the bound must be at least 0 copies, got %lld; None "
                        "means no bound",
                        static_cast<long long>(copies));
  }
  constexpr int64_t kMost = KVAllocator::kNoBound;
  engine_of(self).set_copy_bound(static_cast<int32_t>(std::min(copies, kMost)));
  Py_RETURN_NONE;
}

inline PyObject* allocator_keep_copies_from_freed(PyObject* self,
                                                  PyObject* keep) {
  const int keeps = PyObject_IsTrue(keep);
  if (keeps < 0) {
    return nullptr;
  }
  engine_of(self).keep_copies_from_freed(keeps != 0);
  Py_RETURN_NONE;
}

inline PyObject* allocator_source_of(PyObject* self, PyObject* block_id) {
  return with_block(self, block_id, [self](int32_t block) {
    return PyLong_FromLong(engine_of(self).source_of(block));
  });
}

inline PyObject* allocator_free_queue(PyObject* self, PyObject*) {
  const KVAllocator& engine = engine_of(self);
  return list_of(engine.num_free_blocks(), [&](auto add) {
    bool ok = true;
    engine.for_each_free(
        [&](int32_t block) { ok = ok && add(PyLong_FromLong(block)); });
    return ok;
  });
}

inline PyObject* allocator_free_blocks(PyObject* self, PyObject* const* args,
                                       Py_ssize_t nargs) {
  int32_t block = kNoBlock;
  int64_t limit = 0;
  if (!check_nargs("free_blocks", nargs, 2) ||
      (args[0] != Py_None && !parse_block(self, args[0], &block)) ||
      !parse_int(args[1], &limit)) {
    return nullptr;
  }
  const KVAllocator& engine = engine_of(self);
  limit = std::clamp<int64_t>(limit, 0, engine.num_free_blocks());
  return guarded([&]() -> PyObject* {
    std::vector<int32_t> blocks;
    blocks.reserve(static_cast<size_t>(limit));
    if (block == kNoBlock || !engine.is_held(block)) {
      const bool is_cached = block != kNoBlock && engine.is_cached(block);
      engine.free_order().list_behind(block, is_cached, blocks.capacity(),
                                      &blocks);
    }
    return list_of(static_cast<int64_t>(blocks.size()), [&](auto add) {
      return std::all_of(blocks.begin(), blocks.end(),
                         [&](int32_t id) { return add(PyLong_FromLong(id)); });
    });
  });
}

inline PyObject* allocator_get_copy_bound(PyObject* self, void*) {
  return copies_or_none(engine_of(self).copy_bound());
}

inline PyObject* allocator_get_copies_left(PyObject* self, void*) {
  return copies_or_none(engine_of(self).copies_left());
}

inline PyObject* allocator_stats(PyObject* self, PyObject*) {
  const KVStats stats = engine_of(self).stats();
  PyObject* dict = PyDict_New();
  if (dict == nullptr) {
    return nullptr;
  }
  bool ok = true;
  const std::pair<const char*, int64_t> counts[] = {
      {"free_blocks", stats.free_blocks},
      {"held_blocks", stats.held_blocks},
      {"cache_only_blocks", stats.cache_only_blocks},
      {"extents", stats.extents},
      {"largest_extent", stats.largest_extent},
      {"requests", stats.requests},
      {"spills", stats.spills},
      {"evicted_blocks", stats.evicted_blocks},
      {"kept_blocks", stats.kept_blocks},
      {"block_copies", stats.block_copies},
      {"cap_events", stats.cap_events},
  };
  for (const auto& [key, value] : counts) {
    ok = ok && set_item(dict, key, PyLong_FromLongLong(value));
  }
  static const char* const kBuckets[KVStats::kNumBuckets] = {
      "1",     "2",     "3-4",    "5-8",     "9-16",
      "17-32", "33-64", "65-128", "129-256", ">256"};
  PyObject* histogram = ok ? PyDict_New() : nullptr;
  ok = ok && histogram != nullptr;
  for (int i = 0; ok && i < KVStats::kNumBuckets; ++i) {
    ok = set_item(histogram, kBuckets[i],
                  PyLong_FromLong(stats.ranges_per_request[i]));
  }
  if (!ok) {
    Py_XDECREF(histogram);
    Py_DECREF(dict);
    return nullptr;
  }
  if (!set_item(dict, "ranges_per_request", histogram)) {
    Py_CLEAR(dict);
  }
  return dict;
}

inline PyObject* allocator_check_invariants(PyObject* self, PyObject*) {
  return guarded([&]() -> PyObject* {
    const std::string broken = engine_of(self).check_invariants();
    if (!broken.empty()) {
      PyErr_SetString(PyExc_RuntimeError, broken.c_str());
      return nullptr;
    }
    Py_RETURN_NONE;
  });
}

inline PyObject* allocator_dump(PyObject* self, PyObject*) {
  return guarded([&]() -> PyObject* {
    const std::string bytes = engine_of(self).dump();
    return PyBytes_FromStringAndSize(bytes.data(),
                                     static_cast<Py_ssize_t>(bytes.size()));
  });
}

template <int32_t (KVAllocator::*Get)() const>
PyObject* allocator_get(PyObject* self, void*) {
  return PyLong_FromLong((engine_of(self).*Get)());
}

inline PyMethodDef allocator_methods[] = {
    {"allocate", allocator_allocate, METH_O, doc::kAllocatorAllocate},
    {"new_ranges", allocator_new_ranges, METH_NOARGS, doc::kAllocatorNewRanges},
    {"extend", as_method(allocator_extend), METH_FASTCALL,
     doc::kAllocatorExtend},
    {"grow", as_method(allocator_grow), METH_FASTCALL, doc::kAllocatorGrow},
    {"stats", allocator_stats, METH_NOARGS, doc::kAllocatorStats},
    {"acquire", as_method(allocator_acquire), METH_FASTCALL,
     doc::kAllocatorAcquire},
    {"release", allocator_release, METH_O, doc::kAllocatorRelease},
    {"retain_blocks", allocator_retain_blocks, METH_O,
     doc::kAllocatorRetainBlocks},
    {"release_blocks", allocator_release_blocks, METH_O,
     doc::kAllocatorReleaseBlocks},
    {"cache", allocator_cache, METH_O, doc::kAllocatorCache},
    {"cache_blocks", allocator_cache_blocks, METH_O,
     doc::kAllocatorCacheBlocks},
    {"count_unreferenced", allocator_count_unreferenced, METH_O,
     doc::kAllocatorCountUnreferenced},
    {"uncache", allocator_uncache, METH_O, doc::kAllocatorUncache},
    {"is_cached", allocator_is_cached, METH_O, doc::kAllocatorIsCached},
    {"ref_count", allocator_ref_count, METH_O, doc::kAllocatorRefCount},
    {"take_evicted", allocator_take_evicted, METH_NOARGS,
     doc::kAllocatorTakeEvicted},
    {"clear_evicted", allocator_clear_evicted, METH_NOARGS,
     doc::kAllocatorClearEvicted},
    {"begin_step", allocator_begin_step, METH_NOARGS, doc::kAllocatorBeginStep},
    {"process_step", allocator_process_step, METH_O,
     doc::kAllocatorProcessStep},
    {"take_copies", allocator_take_copies, METH_NOARGS,
     doc::kAllocatorTakeCopies},
    {"record_moves", allocator_record_moves, METH_O,
     doc::kAllocatorRecordMoves},
    {"take_moves", allocator_take_moves, METH_NOARGS, doc::kAllocatorTakeMoves},
    {"set_copy_bound", allocator_set_copy_bound, METH_O,
     doc::kAllocatorSetCopyBound},
    {"keep_copies_from_freed", allocator_keep_copies_from_freed, METH_O,
     doc::kAllocatorKeepCopiesFromFreed},
    {"source_of", allocator_source_of, METH_O, doc::kAllocatorSourceOf},
    {"free_blocks", as_method(allocator_free_blocks), METH_FASTCALL,
     doc::kAllocatorFreeBlocks},
    {"free_queue", allocator_free_queue, METH_NOARGS, doc::kAllocatorFreeQueue},
    {"check_invariants", allocator_check_invariants, METH_NOARGS,
     doc::kAllocatorCheckInvariants},
    {"dump", allocator_dump, METH_NOARGS, doc::kAllocatorDump},
    {nullptr, nullptr, 0, nullptr},
};

inline PyGetSetDef allocator_getset[] = {
    {"num_blocks", allocator_get<&KVAllocator::num_blocks>, nullptr,
     doc::kAllocatorNumBlocks, nullptr},
    {"num_free_blocks", allocator_get<&KVAllocator::num_free_blocks>, nullptr,
     doc::kAllocatorNumFreeBlocks, nullptr},
    {"num_cache_only_blocks",
     allocator_get<&KVAllocator::num_cache_only_blocks>, nullptr,
     doc::kAllocatorNumCacheOnlyBlocks, nullptr},
    {"num_extents", allocator_get<&KVAllocator::num_extents>, nullptr,
     doc::kAllocatorNumExtents, nullptr},
    {"largest_extent", allocator_get<&KVAllocator::largest_extent>, nullptr,
     doc::kAllocatorLargestExtent, nullptr},
    {"max_ranges", allocator_get<&KVAllocator::max_ranges>, nullptr,
     doc::kAllocatorMaxRanges, nullptr},
    {"copy_bound", allocator_get_copy_bound, nullptr, doc::kAllocatorCopyBound,
     nullptr},
    {"copies_left", allocator_get_copies_left, nullptr,
     doc::kAllocatorCopiesLeft, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

inline PyType_Slot allocator_slots[] = {
    {Py_tp_doc, const_cast<char*>(doc::kAllocator)},
    {Py_tp_new, reinterpret_cast<void*>(allocator_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(allocator_dealloc)},
    {Py_tp_methods, allocator_methods},
    {Py_tp_getset, allocator_getset},
    {0, nullptr},
};

inline PyType_Spec allocator_spec = {
    "vllm.tagma.KVAllocator", sizeof(AllocatorObject), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, allocator_slots};

}  // namespace vllm::tagma::bindings
