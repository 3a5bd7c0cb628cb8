// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

// How a failed call of the engine becomes a Python exception.

#pragma once

#include <Python.h>

#include <cstdint>
#include <exception>
#include <new>

#include "objects.h"

namespace vllm::tagma::bindings {

// Runs `body` and turns C++ exceptions into Python's; none may cross into C.
template <typename Body>
PyObject* guarded(Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
    return nullptr;
  }
}

// `count` is what the caller asked for. Returns null.
inline PyObject* raise(AllocatorObject* self, const Result& result,
                       int64_t count = 0) {
  const KVAllocator& engine = *self->engine;
  const auto value = static_cast<long long>(result.value);
  const auto asked = static_cast<long long>(count);
  switch (result.status) {
    case Status::kOk:
      break;
    case Status::kBadCount:
      return PyErr_Format(PyExc_ValueError,
                          "count must be at least 1, got %lld", value);
    case Status::kBadBlock:
      return PyErr_Format(PyExc_ValueError,
                          "block id %lld is outside the pool: ids are in "
                          "[0, %d)",
                          value, engine.num_blocks());
    case Status::kBlockFree:
      return PyErr_Format(PyExc_ValueError,
                          "block %lld is free: neither a request nor the "
                          "cache holds it; allocate it with extend()",
                          value);
    case Status::kBlockNotHeld:
      return PyErr_Format(PyExc_ValueError,
                          "block %lld has no request reference left; release "
                          "only what was acquired, cache only held blocks",
                          value);
    case Status::kAlreadyCached:
      return PyErr_Format(PyExc_ValueError,
                          "block %lld is cached already; uncache() it first",
                          value);
    case Status::kNotCached:
      return PyErr_Format(PyExc_ValueError,
                          "block %lld is not cached; check is_cached() first",
                          value);
    case Status::kIndexed:
      return PyErr_Format(PyExc_ValueError,
                          "block %lld cannot be cached without a hash: the "
                          "pool has a PrefixIndex; use its insert()",
                          value);
    case Status::kTooManyRefs:
      return PyErr_Format(PyExc_OverflowError,
                          "block %lld has %d request references, the count "
                          "would overflow; release some",
                          value, engine.ref_count(static_cast<int>(value)));
    case Status::kOutOfBlocks:
      return PyErr_Format(self->state->out_of_blocks_error,
                          "%lld blocks are needed, %lld of %d are free or "
                          "cache-only; release a request and retry",
                          asked, value, engine.num_blocks());
    case Status::kNoExtent:
      return PyErr_Format(self->state->out_of_blocks_error,
                          "no %lld contiguous blocks: the longest stretch that "
                          "no request holds has %lld; release a request, or "
                          "use extend(), which may use several ranges",
                          asked, value);
    case Status::kRangeCap:
      return PyErr_Format(self->state->range_cap_error,
                          "the request would have %lld ranges or more, "
                          "max_ranges is %d; ask for fewer blocks, or release "
                          "the request and allocate it anew",
                          value, engine.max_ranges());
  }
  PyErr_SetString(PyExc_SystemError, "tagma: an error without a cause");
  return nullptr;
}

inline PyObject* none_or_raise(PyObject* self, const Result& result) {
  if (!result.ok()) {
    return raise(as_allocator(self), result);
  }
  Py_RETURN_NONE;
}

}  // namespace vllm::tagma::bindings
