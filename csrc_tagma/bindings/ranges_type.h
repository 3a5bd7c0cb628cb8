// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

// The type `KVRanges`: the blocks of a request, or a view of some.

#pragma once

#include <Python.h>

#include <algorithm>
#include <cstdint>
#include <new>

#include "arguments.h"
#include "docstrings.h"
#include "errors.h"
#include "objects.h"
#include "values.h"

namespace vllm::tagma::bindings {

inline PyObject* new_ranges_object(AllocatorObject* allocator, bool is_view) {
  PyObject* self = allocate_object(allocator->state->ranges_type);
  if (self != nullptr) {
    RangesObject* ranges = as_ranges(self);
    new (&ranges->blocks) RangeList;
    ranges->is_view = is_view;
    ranges->allocator = allocator;
    Py_INCREF(reinterpret_cast<PyObject*>(allocator));
  }
  return self;
}

inline void ranges_dealloc(PyObject* self) {
  RangesObject* ranges = as_ranges(self);
  PyObject* allocator = reinterpret_cast<PyObject*>(ranges->allocator);
  ranges->blocks.~RangeList();
  free_object(self);
  Py_DECREF(allocator);
}

inline Py_ssize_t ranges_length(PyObject* self) {
  return static_cast<Py_ssize_t>(as_ranges(self)->blocks.num_blocks());
}

// A negative index arrives with the length added.
inline PyObject* ranges_item(PyObject* self, Py_ssize_t index) {
  const RangeList& blocks = as_ranges(self)->blocks;
  if (index < 0 || index >= blocks.num_blocks()) {
    return PyErr_Format(PyExc_IndexError,
                        "index is out of range: the request has %lld blocks",
                        static_cast<long long>(blocks.num_blocks()));
  }
  return PyLong_FromLong(blocks.at(index));
}

inline PyObject* ranges_num_ranges(PyObject* self, void*) {
  return PyLong_FromSize_t(as_ranges(self)->blocks.num_ranges());
}

inline PyObject* ranges_ranges(PyObject* self, PyObject*) {
  const RangeVector& ranges = as_ranges(self)->blocks.ranges();
  return list_of(ranges.size(), [&](auto add) {
    return std::all_of(ranges.begin(), ranges.end(), [&](const Range& range) {
      return add(tuple_of(range));
    });
  });
}

// Resolves the bounds of a part of a request's blocks.
inline bool parse_part(PyObject* self, PyObject* start_arg, PyObject* stop_arg,
                       int64_t* start, int64_t* stop) {
  const int64_t length = as_ranges(self)->blocks.num_blocks();
  if (!parse_bound(start_arg, length, 0, start) ||
      !parse_bound(stop_arg, length, length, stop)) {
    return false;
  }
  // A bound's __index__ may have run code that changed the request.
  *stop = std::min(*stop, as_ranges(self)->blocks.num_blocks());
  *start = std::min(*start, *stop);
  return true;
}

inline PyObject* ranges_block_ids(PyObject* self, PyObject* args,
                                  PyObject* kwargs) {
  static const char* keywords[] = {"start", "stop", nullptr};
  PyObject* start_arg = nullptr;
  PyObject* stop_arg = nullptr;
  int64_t start = 0;
  int64_t stop = 0;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|OO:block_ids",
                                   const_cast<char**>(keywords), &start_arg,
                                   &stop_arg) ||
      !parse_part(self, start_arg, stop_arg, &start, &stop)) {
    return nullptr;
  }
  const RangeList& blocks = as_ranges(self)->blocks;
  return list_of(stop - start, [&](auto add) {
    return blocks.for_each(start, stop, [&](int32_t block) {
      return add(PyLong_FromLong(block));
    });
  });
}

inline PyObject* ranges_part(PyObject* self, PyObject* const* args,
                             Py_ssize_t nargs) {
  int64_t start = 0;
  int64_t stop = 0;
  if (!check_nargs("part", nargs, 2) ||
      !parse_part(self, args[0], args[1], &start, &stop)) {
    return nullptr;
  }
  PyObject* view = new_ranges_object(as_ranges(self)->allocator,
                                     /*is_view=*/true);
  if (view == nullptr) {
    return nullptr;
  }
  PyObject* done = guarded([&]() -> PyObject* {
    as_ranges(view)->blocks = as_ranges(self)->blocks.part(start, stop);
    return view;
  });
  if (done == nullptr) {
    Py_DECREF(view);
  }
  return done;
}

inline PyObject* ranges_block_ids_into(PyObject* self, PyObject* args,
                                       PyObject* kwargs) {
  static const char* keywords[] = {"buffer", "start", "stop", nullptr};
  PyObject* target = nullptr;
  PyObject* start_arg = nullptr;
  PyObject* stop_arg = nullptr;
  int64_t start = 0;
  int64_t stop = 0;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|OO:block_ids_into",
                                   const_cast<char**>(keywords), &target,
                                   &start_arg, &stop_arg)) {
    return nullptr;
  }
  Py_buffer buffer;
  if (!get_int_buffer(target, PyBUF_WRITABLE, &buffer)) {
    PyErr_SetString(PyExc_TypeError,
                    "buffer must be a writable, contiguous, one-dimensional "
                    "buffer of int32, such as array.array('i', ...)");
    return nullptr;
  }
  // After the buffer, since getting it may run code that changes the request.
  if (!parse_part(self, start_arg, stop_arg, &start, &stop)) {
    PyBuffer_Release(&buffer);
    return nullptr;
  }
  const Py_ssize_t room = buffer.len / buffer.itemsize;
  if (stop - start > room) {
    PyErr_Format(PyExc_ValueError,
                 "buffer has room for %zd block ids, %lld are asked for; pass "
                 "a longer buffer, or start and stop",
                 room, static_cast<long long>(stop - start));
    PyBuffer_Release(&buffer);
    return nullptr;
  }
  auto* id = static_cast<int32_t*>(buffer.buf);
  as_ranges(self)->blocks.for_each(start, stop, [&](int32_t block) {
    *id++ = block;
    return true;
  });
  PyBuffer_Release(&buffer);
  return PyLong_FromLongLong(stop - start);
}

inline PyMethodDef ranges_methods[] = {
    {"ranges", ranges_ranges, METH_NOARGS, doc::kRangesRanges},
    {"part", as_method(ranges_part), METH_FASTCALL, doc::kRangesPart},
    {"block_ids", as_method(ranges_block_ids), METH_VARARGS | METH_KEYWORDS,
     doc::kRangesBlockIds},
    {"block_ids_into", as_method(ranges_block_ids_into),
     METH_VARARGS | METH_KEYWORDS, doc::kRangesBlockIdsInto},
    {nullptr, nullptr, 0, nullptr},
};

inline PyGetSetDef ranges_getset[] = {
    {"num_ranges", ranges_num_ranges, nullptr, doc::kRangesNumRanges, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

inline PyType_Slot ranges_slots[] = {
    {Py_tp_doc, const_cast<char*>(doc::kRanges)},
    {Py_tp_dealloc, reinterpret_cast<void*>(ranges_dealloc)},
    {Py_tp_methods, ranges_methods},
    {Py_tp_getset, ranges_getset},
    {Py_tp_iter, reinterpret_cast<void*>(PySeqIter_New)},
    {Py_sq_length, reinterpret_cast<void*>(ranges_length)},
    {Py_sq_item, reinterpret_cast<void*>(ranges_item)},
    {0, nullptr},
};

inline PyType_Spec ranges_spec = {
    "vllm.tagma.KVRanges", sizeof(RangesObject), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION |
        Py_TPFLAGS_IMMUTABLETYPE,
    ranges_slots};

}  // namespace vllm::tagma::bindings
