// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

// How the engine's results become Python values.

#pragma once

#include <Python.h>

#include <cstdint>

#include "../kv_ranges.h"
#include "../prefix_index.h"

namespace vllm::tagma::bindings {

inline PyObject* tuple_of(const Range& range) {
  return Py_BuildValue("(ii)", range.start, range.count);
}

inline PyObject* bytes_of(BlockKey key) {
  return PyBytes_FromStringAndSize(key.data(),
                                   static_cast<Py_ssize_t>(key.size()));
}

// A list of `size` items, which `fill(add)` gives to `add(item)` in order: a
// new reference or null, after which add() returns false and fill() must, too.
template <typename Fill>
PyObject* list_of(int64_t size, Fill fill) {
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(size));
  Py_ssize_t i = 0;
  const auto add = [&](PyObject* item) {
    return item != nullptr && PyList_SetItem(list, i++, item) == 0;
  };
  if (list != nullptr && !fill(add)) {
    Py_CLEAR(list);
  }
  return list;
}

// Puts `value`, a new reference or null, into the dict. PyDict_SetItemString()
// would intern the key: a dead entry in Python's table of interned strings for
// each dict that is dropped, which makes that table double in the end.
inline bool set_item(PyObject* dict, const char* key, PyObject* value) {
  PyObject* name = value != nullptr ? PyUnicode_FromString(key) : nullptr;
  const bool ok = name != nullptr && PyDict_SetItem(dict, name, value) == 0;
  Py_XDECREF(name);
  Py_XDECREF(value);
  return ok;
}

}  // namespace vllm::tagma::bindings
