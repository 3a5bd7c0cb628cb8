// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

// The Python objects of module `vllm.tagma` and what they hold.

#pragma once

#include <Python.h>

#include <vector>

#include "../kv_allocator.h"
#include "../prefix_index.h"

namespace vllm::tagma::bindings {

struct ModuleState {
  PyObject* out_of_blocks_error;
  PyObject* range_cap_error;
  PyObject* allocator_type;
  PyObject* ranges_type;
  PyObject* index_type;
  PyObject* coord_map_type;
};

struct AllocatorObject {
  PyObject_HEAD
      // Owned by the module, which the type keeps alive.
      ModuleState* state;
  KVAllocator* engine;
  PrefixIndex* index;  // Made by the first PrefixIndex(); else null.
};

// A handle: the index itself lives and dies with its allocator.
struct IndexObject {
  PyObject_HEAD AllocatorObject* allocator;  // Strong reference.
  std::vector<BlockKey>* keys;               // Scratch of insert().
};

struct RangesObject {
  PyObject_HEAD AllocatorObject* allocator;  // Strong reference.
  RangeList blocks;
  bool is_view;  // Made by extend(), match() or part(): holds no references.
};

inline AllocatorObject* as_allocator(PyObject* self) {
  return reinterpret_cast<AllocatorObject*>(self);
}

inline RangesObject* as_ranges(PyObject* self) {
  return reinterpret_cast<RangesObject*>(self);
}

inline KVAllocator& engine_of(PyObject* self) {
  return *as_allocator(self)->engine;
}

inline IndexObject* as_index(PyObject* self) {
  return reinterpret_cast<IndexObject*>(self);
}

inline PrefixIndex& index_of(PyObject* self) {
  return *as_index(self)->allocator->index;
}

inline PyObject* pool_of(PyObject* self) {
  return reinterpret_cast<PyObject*>(as_index(self)->allocator);
}

inline bool is_instance(PyObject* arg, PyObject* type) {
  return reinterpret_cast<PyObject*>(Py_TYPE(arg)) == type;
}

inline PyObject* allocate_object(PyObject* type) {
  auto* tp = reinterpret_cast<PyTypeObject*>(type);
  const auto alloc =
      reinterpret_cast<allocfunc>(PyType_GetSlot(tp, Py_tp_alloc));
  return alloc(tp, 0);
}

inline void free_object(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

template <typename Function>
PyCFunction as_method(Function function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

}  // namespace vllm::tagma::bindings
