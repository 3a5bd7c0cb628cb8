// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

// The type `CoordMap`: where a token's KV data lies.

#pragma once

#include <Python.h>

#include <cstdint>
#include <new>

#include "../kv_coord_map.h"
#include "arguments.h"
#include "docstrings.h"
#include "objects.h"

namespace vllm::tagma::bindings {

struct CoordMapObject {
  PyObject_HEAD KVCoordMap map;
};

inline const KVCoordMap& map_of(PyObject* self) {
  return reinterpret_cast<CoordMapObject*>(self)->map;
}

inline PyObject* coord_map_new(PyTypeObject* type, PyObject* args,
                               PyObject* kwargs) {
  static const char* keywords[] = {"num_layers", "num_blocks", "block_size",
                                   "bytes_per_token", nullptr};
  long long layers = 0;
  long long blocks = 0;
  long long tokens = 0;
  long long bytes = 0;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "LLLL:CoordMap",
                                   const_cast<char**>(keywords), &layers,
                                   &blocks, &tokens, &bytes)) {
    return nullptr;
  }
  if (!KVCoordMap::valid(layers, blocks, tokens, bytes)) {
    return PyErr_Format(PyExc_ValueError,
                        "num_layers, num_blocks, block_size and "
                        "bytes_per_token must each be at least 1 and their "
                        "product below 2**63, got %lld, %lld, %lld and %lld",
                        layers, blocks, tokens, bytes);
  }
  PyObject* self = allocate_object(reinterpret_cast<PyObject*>(type));
  if (self != nullptr) {
    new (&reinterpret_cast<CoordMapObject*>(self)->map)
        KVCoordMap(layers, blocks, tokens, bytes);
  }
  return self;
}

inline bool parse_coord(PyObject* arg, const char* name, int64_t size,
                        int64_t* out) {
  if (!parse_int(arg, out)) {
    return false;
  }
  if (*out < 0 || *out >= size) {
    PyErr_Format(PyExc_IndexError, "%s must be in [0, %lld), got %lld", name,
                 static_cast<long long>(size), static_cast<long long>(*out));
    return false;
  }
  return true;
}

inline bool parse_coords(const char* name, PyObject* self,
                         PyObject* const* args, Py_ssize_t nargs,
                         KVCoords* at) {
  const KVCoordMap& map = map_of(self);
  return check_nargs(name, nargs, 3) &&
         parse_coord(args[0], "layer", map.num_layers(), &at->layer) &&
         parse_coord(args[1], "block", map.num_blocks(), &at->block) &&
         parse_coord(args[2], "token", map.block_size(), &at->token);
}

inline PyObject* coord_map_index(PyObject* self, PyObject* const* args,
                                 Py_ssize_t nargs) {
  KVCoords at{};
  return parse_coords("index", self, args, nargs, &at)
             ? PyLong_FromLongLong(map_of(self).index(at))
             : nullptr;
}

inline PyObject* coord_map_offset(PyObject* self, PyObject* const* args,
                                  Py_ssize_t nargs) {
  KVCoords at{};
  return parse_coords("offset", self, args, nargs, &at)
             ? PyLong_FromLongLong(map_of(self).offset(at))
             : nullptr;
}

inline PyObject* coord_map_coords(PyObject* self, PyObject* arg) {
  int64_t index = 0;
  if (!parse_coord(arg, "index", map_of(self).size(), &index)) {
    return nullptr;
  }
  const KVCoords at = map_of(self).coords(index);
  return Py_BuildValue("(LLL)", static_cast<long long>(at.layer),
                       static_cast<long long>(at.block),
                       static_cast<long long>(at.token));
}

inline PyMethodDef coord_map_methods[] = {
    {"index", as_method(coord_map_index), METH_FASTCALL, doc::kCoordMapIndex},
    {"offset", as_method(coord_map_offset), METH_FASTCALL,
     doc::kCoordMapOffset},
    {"coords", coord_map_coords, METH_O, doc::kCoordMapCoords},
    {nullptr, nullptr, 0, nullptr},
};

inline PyType_Slot coord_map_slots[] = {
    {Py_tp_doc, const_cast<char*>(doc::kCoordMap)},
    {Py_tp_new, reinterpret_cast<void*>(coord_map_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(free_object)},
    {Py_tp_methods, coord_map_methods},
    {0, nullptr},
};

inline PyType_Spec coord_map_spec = {
    "vllm.tagma.CoordMap", sizeof(CoordMapObject), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, coord_map_slots};

}  // namespace vllm::tagma::bindings
