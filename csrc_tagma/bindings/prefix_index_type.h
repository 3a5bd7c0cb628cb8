// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

// The type `PrefixIndex`: the cached blocks of a pool, by block hash.

#pragma once

#include <Python.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "allocator_type.h"
#include "arguments.h"
#include "docstrings.h"
#include "errors.h"
#include "hash_secret.h"
#include "objects.h"
#include "ranges_type.h"
#include "values.h"

namespace vllm::tagma::bindings {

inline PyObject* index_new(PyTypeObject* type, PyObject* args,
                           PyObject* kwargs) {
  static const char* keywords[] = {"allocator", "record_evicted", nullptr};
  PyObject* pool = nullptr;
  int record_evicted = 0;
  auto* state = static_cast<ModuleState*>(PyType_GetModuleState(type));
  if (state == nullptr ||
      !PyArg_ParseTupleAndKeywords(
          args, kwargs, "O!|p:PrefixIndex", const_cast<char**>(keywords),
          state->allocator_type, &pool, &record_evicted)) {
    return nullptr;
  }
  AllocatorObject* allocator = as_allocator(pool);
  if (allocator->index != nullptr) {
    PyErr_SetString(PyExc_ValueError,
                    "allocator has a PrefixIndex already; share that one");
    return nullptr;
  }
  HashSecret secret;
  if (!make_secret(&secret)) {
    return nullptr;
  }
  PyObject* self = allocate_object(reinterpret_cast<PyObject*>(type));
  if (self == nullptr) {
    return nullptr;
  }
  as_index(self)->allocator = allocator;
  Py_INCREF(pool);
  PyObject* ready = guarded([&]() -> PyObject* {
    as_index(self)->keys = new std::vector<BlockKey>;
    auto index =
        std::make_unique<PrefixIndex>(allocator->engine->num_blocks(), secret);
    index->record_evicted(record_evicted != 0);
    if (const Result attached = allocator->engine->attach(index.get());
        !attached.ok()) {
      return raise(allocator, attached);
    }
    allocator->index = index.release();
    return self;
  });
  if (ready == nullptr) {
    Py_DECREF(self);
  }
  return ready;
}

inline void index_dealloc(PyObject* self) {
  PyObject* pool = pool_of(self);
  delete as_index(self)->keys;
  free_object(self);
  Py_DECREF(pool);
}

inline Py_ssize_t index_length(PyObject* self) { return index_of(self).size(); }

inline PyObject* index_match(PyObject* self, PyObject* args, PyObject* kwargs) {
  static const char* keywords[] = {"hashes", "limit", nullptr};
  PyObject* hashes_arg = nullptr;
  PyObject* limit_arg = nullptr;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O:match",
                                   const_cast<char**>(keywords), &hashes_arg,
                                   &limit_arg)) {
    return nullptr;
  }
  int64_t limit = INT64_MAX;
  if (limit_arg != nullptr && limit_arg != Py_None &&
      !parse_int(limit_arg, &limit)) {
    return nullptr;
  }
  if (limit < 0) {
    return PyErr_Format(PyExc_ValueError,
                        "limit must be at least 0 blocks, got %lld",
                        static_cast<long long>(limit));
  }
  PyObject* hashes = as_array(hashes_arg);
  if (hashes == nullptr) {
    return nullptr;
  }
  PyObject* view = new_ranges_object(as_index(self)->allocator,
                                     /*is_view=*/true);
  PyObject* done = view == nullptr ? nullptr : guarded([&]() -> PyObject* {
    const int64_t count = std::min<int64_t>(PySequence_Size(hashes), limit);
    bool ok = true;
    index_of(self).match(
        count,
        [&](size_t i) {
          BlockKey key;
          ok = ok && parse_key(array_item(hashes, i), &key);
          return key;
        },
        &as_ranges(view)->blocks);
    if (!ok) {
      return nullptr;
    }
    return view;
  });
  if (done == nullptr) {
    Py_XDECREF(view);
  }
  Py_DECREF(hashes);
  return done;
}

inline PyObject* index_insert(PyObject* self, PyObject* const* args,
                              Py_ssize_t nargs) {
  if (!check_nargs("insert", nargs, 4)) {
    return nullptr;
  }
  AllocatorObject* allocator = as_index(self)->allocator;
  int64_t start = 0;
  int64_t stop = 0;
  if (!parse_int(args[2], &start) || !parse_int(args[3], &stop)) {
    return nullptr;
  }
  if (!is_instance(args[0], allocator->state->ranges_type) ||
      as_ranges(args[0])->allocator != allocator) {
    PyErr_SetString(PyExc_TypeError,
                    "ranges must be a KVRanges of the index's KVAllocator");
    return nullptr;
  }
  PyObject* hashes = as_array(args[1]);
  if (hashes == nullptr) {
    return nullptr;
  }
  PyObject* done = guarded([&]() -> PyObject* {
    const RangeList& blocks = as_ranges(args[0])->blocks;
    const int64_t count = PySequence_Size(hashes);
    if (start < 0 || start > stop || stop > blocks.num_blocks() ||
        stop > count) {
      return PyErr_Format(
          PyExc_ValueError,
          "start and stop must satisfy 0 <= start <= stop <= "
          "%lld, the number of blocks and of hashes, got %lld "
          "and %lld",
          static_cast<long long>(std::min(count, blocks.num_blocks())),
          static_cast<long long>(start), static_cast<long long>(stop));
    }
    std::vector<BlockKey>& keys = *as_index(self)->keys;
    keys.resize(stop - start);
    for (int64_t i = start; i < stop; ++i) {
      if (!parse_key(array_item(hashes, i), &keys[i - start])) {
        return nullptr;
      }
    }
    int64_t cached = 0;
    const Result result = allocator->engine->cache_prefix(blocks, start, stop,
                                                          keys.data(), &cached);
    return result.ok() ? PyLong_FromLongLong(cached) : raise(allocator, result);
  });
  Py_DECREF(hashes);
  return done;
}

inline PyObject* index_erase(PyObject* self, PyObject* block_id) {
  return allocator_uncache(pool_of(self), block_id);
}

inline PyObject* index_evict(PyObject* self, PyObject* block_ids) {
  PyObject* pool = pool_of(self);
  return with_blocks(pool, block_ids, [pool](const RangeList& blocks) {
    return none_or_raise(pool, engine_of(pool).uncache(blocks));
  });
}

inline PyObject* index_clear(PyObject* self, PyObject*) {
  engine_of(pool_of(self)).uncache_all();
  Py_RETURN_NONE;
}

inline PyObject* index_find(PyObject* self, PyObject* hash) {
  BlockKey key;
  if (!parse_key(hash, &key)) {
    return nullptr;
  }
  const int32_t block = index_of(self).find(key);
  if (block == kNoBlock) {
    Py_RETURN_NONE;
  }
  return PyLong_FromLong(block);
}

inline PyObject* index_count_probes(PyObject* self, PyObject* hash) {
  BlockKey key;
  return parse_key(hash, &key)
             ? PyLong_FromLong(index_of(self).count_probes(key))
             : nullptr;
}

inline PyObject* index_hash_of(PyObject* self, PyObject* block_id) {
  const PrefixIndex& index = index_of(self);
  return with_block(pool_of(self), block_id, [&](int32_t block) -> PyObject* {
    if (!index.contains(block)) {
      Py_RETURN_NONE;
    }
    return bytes_of(index.key_of(block));
  });
}

inline PyObject* index_position_of(PyObject* self, PyObject* block_id) {
  const PrefixIndex& index = index_of(self);
  return with_block(pool_of(self), block_id, [&](int32_t block) -> PyObject* {
    if (!index.contains(block)) {
      Py_RETURN_NONE;
    }
    return PyLong_FromLong(index.position_of(block));
  });
}

inline PyObject* index_num_hashes(PyObject* self, void*) {
  return PyLong_FromLong(index_of(self).num_keys());
}

inline PyObject* index_take_evicted_hashes(PyObject* self, PyObject*) {
  PrefixIndex& index = index_of(self);
  if (!index.records_evicted()) {
    PyErr_SetString(PyExc_RuntimeError,
                    "evicted hashes are not recorded; make the index with "
                    "PrefixIndex(allocator, record_evicted=True)");
    return nullptr;
  }
  PyObject* list = list_of(index.num_evicted(), [&](auto add) {
    return index.for_each_evicted(
        [&](BlockKey key) { return add(bytes_of(key)); });
  });
  if (list != nullptr) {
    index.clear_evicted();
  }
  return list;
}

inline PyMethodDef index_methods[] = {
    {"match", as_method(index_match), METH_VARARGS | METH_KEYWORDS,
     doc::kIndexMatch},
    {"insert", as_method(index_insert), METH_FASTCALL, doc::kIndexInsert},
    {"erase", index_erase, METH_O, doc::kIndexErase},
    {"evict", index_evict, METH_O, doc::kIndexEvict},
    {"clear", index_clear, METH_NOARGS, doc::kIndexClear},
    {"find", index_find, METH_O, doc::kIndexFind},
    {"count_probes", index_count_probes, METH_O, doc::kIndexCountProbes},
    {"hash_of", index_hash_of, METH_O, doc::kIndexHashOf},
    {"position_of", index_position_of, METH_O, doc::kIndexPositionOf},
    {"take_evicted_hashes", index_take_evicted_hashes, METH_NOARGS,
     doc::kIndexTakeEvictedHashes},
    {nullptr, nullptr, 0, nullptr},
};

inline PyGetSetDef index_getset[] = {
    {"num_hashes", index_num_hashes, nullptr, doc::kIndexNumHashes, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

inline PyType_Slot index_slots[] = {
    {Py_tp_doc, const_cast<char*>(doc::kIndex)},
    {Py_tp_new, reinterpret_cast<void*>(index_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(index_dealloc)},
    {Py_tp_methods, index_methods},
    {Py_tp_getset, index_getset},
    {Py_sq_length, reinterpret_cast<void*>(index_length)},
    {0, nullptr},
};

inline PyType_Spec index_spec = {
    "vllm.tagma.PrefixIndex", sizeof(IndexObject), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, index_slots};

}  // namespace vllm::tagma::bindings
