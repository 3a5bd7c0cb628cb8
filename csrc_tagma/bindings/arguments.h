// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

// How arguments of Python calls become the engine's.

#pragma once

#include <Python.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>

#include "errors.h"
#include "objects.h"

namespace vllm::tagma::bindings {

inline bool check_nargs(const char* name, Py_ssize_t got, Py_ssize_t expected) {
  if (got == expected) {
    return true;
  }
  PyErr_Format(PyExc_TypeError, "%s() takes %zd positional arguments, got %zd",
               name, expected, got);
  return false;
}

// Values beyond int64 become its limits, which every bound check rejects.
inline bool parse_int(PyObject* arg, int64_t* out) {
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(arg, &overflow);
  if (value == -1 && PyErr_Occurred()) {
    return false;
  }
  *out = overflow > 0 ? INT64_MAX : overflow < 0 ? INT64_MIN : value;
  return true;
}

inline bool parse_block(PyObject* self, PyObject* arg, int32_t* block) {
  int64_t value = 0;
  if (!parse_int(arg, &value)) {
    return false;
  }
  if (!engine_of(self).contains(value)) {
    raise(as_allocator(self), {Status::kBadBlock, value});
    return false;
  }
  *block = static_cast<int32_t>(value);
  return true;
}

// Whether `arg` has a buffer of C ints in one piece. Leaves no exception.
inline bool get_int_buffer(PyObject* arg, int flags, Py_buffer* buffer) {
  if (PyObject_GetBuffer(arg, buffer, flags | PyBUF_FORMAT | PyBUF_ND) != 0) {
    PyErr_Clear();
    return false;
  }
  const char* format = buffer->format == nullptr ? "B" : buffer->format;
  format += *format == '@' || *format == '=' || *format == '<';
  const bool is_int =
      buffer->ndim == 1 && buffer->itemsize == sizeof(int32_t) &&
      (std::strcmp(format, "i") == 0 || std::strcmp(format, "l") == 0);
  if (!is_int) {
    PyBuffer_Release(buffer);
  }
  return is_int;
}

// For memory that runs out between an object's or a buffer's first use and
// last.
struct DropReference {
  void operator()(PyObject* object) const { Py_DECREF(object); }
};
struct ReleaseBuffer {
  void operator()(Py_buffer* buffer) const { PyBuffer_Release(buffer); }
};

inline bool append_block(PyObject* self, int64_t id, RangeList* blocks) {
  if (!engine_of(self).contains(id)) {
    raise(as_allocator(self), {Status::kBadBlock, id});
    return false;
  }
  blocks->append({static_cast<int32_t>(id), 1});
  return true;
}

// Reads block ids from a KVRanges of this allocator, an int32 buffer or a
// sequence. An item's __index__ may run Python code, so nothing is borrowed and
// no engine state is touched here.
inline bool parse_blocks(PyObject* self, PyObject* arg, RangeList* blocks) {
  AllocatorObject* allocator = as_allocator(self);
  if (is_instance(arg, allocator->state->ranges_type)) {
    if (as_ranges(arg)->allocator != allocator) {
      PyErr_SetString(PyExc_ValueError,
                      "block_ids is a KVRanges of another KVAllocator; ids "
                      "mean nothing outside their own pool");
      return false;
    }
    *blocks = as_ranges(arg)->blocks;
    return true;
  }
  Py_buffer buffer;
  if (get_int_buffer(arg, PyBUF_SIMPLE, &buffer)) {
    const std::unique_ptr<Py_buffer, ReleaseBuffer> release(&buffer);
    const auto* ids = static_cast<const int32_t*>(buffer.buf);
    const Py_ssize_t count = buffer.len / buffer.itemsize;
    bool ok = true;
    for (Py_ssize_t i = 0; ok && i < count; ++i) {
      ok = append_block(self, ids[i], blocks);
    }
    return ok;
  }
  const std::unique_ptr<PyObject, DropReference> list(PySequence_List(arg));
  if (list == nullptr) {
    return false;
  }
  bool ok = true;
  for (Py_ssize_t i = 0; ok && i < PyList_Size(list.get()); ++i) {
    int64_t id = 0;
    ok = parse_int(PyList_GetItem(list.get(), i), &id) &&
         append_block(self, id, blocks);
  }
  return ok;
}

// A request's blocks of this allocator, or null with an exception set.
inline RangesObject* parse_request(PyObject* self, PyObject* arg) {
  AllocatorObject* allocator = as_allocator(self);
  if (!is_instance(arg, allocator->state->ranges_type)) {
    PyErr_SetString(PyExc_TypeError,
                    "ranges must be a KVRanges made by new_ranges()");
    return nullptr;
  }
  RangesObject* ranges = as_ranges(arg);
  if (ranges->allocator != allocator) {
    PyErr_SetString(PyExc_ValueError,
                    "ranges belongs to another KVAllocator; pass it to the one "
                    "whose new_ranges() made it");
    return nullptr;
  }
  if (ranges->is_view) {
    PyErr_SetString(PyExc_ValueError,
                    "ranges is what extend() or match() returned, a view that "
                    "holds no references; pass the request's own KVRanges");
    return nullptr;
  }
  return ranges;
}

// Resolves a slice bound as Python's slices do.
inline bool parse_bound(PyObject* arg, int64_t length, int64_t fallback,
                        int64_t* bound) {
  *bound = fallback;
  if (arg == nullptr || arg == Py_None) {
    return true;
  }
  if (!parse_int(arg, bound)) {
    return false;
  }
  if (*bound < 0) {
    *bound = *bound < -length ? 0 : *bound + length;
  }
  *bound = std::min(*bound, length);
  return true;
}

inline bool parse_key(PyObject* arg, BlockKey* key) {
  char* data = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(arg, &data, &size) != 0) {
    return false;
  }
  const BlockKey whole{data, static_cast<size_t>(size)};
  if (whole.size() > PrefixIndex::kLongestKey) {
    PyErr_Format(PyExc_ValueError,
                 "a hash must be shorter than 4 GiB, got one of %zd bytes",
                 size);
    return false;
  }
  *key = whole;
  return true;
}

// A list or tuple with the items of `arg`, as a new reference: reading one runs
// no Python code, so that the engine cannot change meanwhile.
inline PyObject* as_array(PyObject* arg) {
  if (PyList_Check(arg) || PyTuple_Check(arg)) {
    Py_INCREF(arg);
    return arg;
  }
  return PySequence_List(arg);
}

inline PyObject* array_item(PyObject* array, Py_ssize_t i) {
  return PyList_Check(array) ? PyList_GetItem(array, i)
                             : PyTuple_GetItem(array, i);
}

}  // namespace vllm::tagma::bindings
