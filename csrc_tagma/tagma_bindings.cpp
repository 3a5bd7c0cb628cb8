// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

// Python module `vllm.tagma`: the range allocator, the prefix index and the
// coordinate map of the tagma KV cache backend. Limited API, so that one binary
// serves Python 3.11 and later. This is the one file that is compiled.

#include <Python.h>

#include "bindings/allocator_type.h"
#include "bindings/coord_map_type.h"
#include "bindings/docstrings.h"
#include "bindings/objects.h"
#include "bindings/prefix_index_type.h"
#include "bindings/ranges_type.h"

namespace vllm::tagma::bindings {
namespace {

ModuleState* state_of(PyObject* module) {
  return static_cast<ModuleState*>(PyModule_GetState(module));
}

// Adds `object`, which may be null, to the module and keeps the reference.
bool add(PyObject* module, const char* name, PyObject* object,
         PyObject** slot) {
  *slot = object;
  return object != nullptr && PyModule_AddObjectRef(module, name, object) == 0;
}

int module_exec(PyObject* module) {
  ModuleState* state = state_of(module);
  const bool ok =
      add(module, "OutOfBlocksError",
          PyErr_NewExceptionWithDoc("vllm.tagma.OutOfBlocksError",
                                    doc::kOutOfBlocksError, PyExc_RuntimeError,
                                    nullptr),
          &state->out_of_blocks_error) &&
      add(module, "RangeCapError",
          PyErr_NewExceptionWithDoc("vllm.tagma.RangeCapError",
                                    doc::kRangeCapError, PyExc_RuntimeError,
                                    nullptr),
          &state->range_cap_error) &&
      add(module, "KVAllocator",
          PyType_FromModuleAndSpec(module, &allocator_spec, nullptr),
          &state->allocator_type) &&
      add(module, "KVRanges",
          PyType_FromModuleAndSpec(module, &ranges_spec, nullptr),
          &state->ranges_type) &&
      add(module, "PrefixIndex",
          PyType_FromModuleAndSpec(module, &index_spec, nullptr),
          &state->index_type) &&
      add(module, "CoordMap",
          PyType_FromModuleAndSpec(module, &coord_map_spec, nullptr),
          &state->coord_map_type);
  return ok ? 0 : -1;
}

int module_traverse(PyObject* module, visitproc visit, void* arg) {
  ModuleState* state = state_of(module);
  Py_VISIT(state->out_of_blocks_error);
  Py_VISIT(state->range_cap_error);
  Py_VISIT(state->allocator_type);
  Py_VISIT(state->ranges_type);
  Py_VISIT(state->index_type);
  Py_VISIT(state->coord_map_type);
  return 0;
}

int module_clear(PyObject* module) {
  ModuleState* state = state_of(module);
  Py_CLEAR(state->out_of_blocks_error);
  Py_CLEAR(state->range_cap_error);
  Py_CLEAR(state->allocator_type);
  Py_CLEAR(state->ranges_type);
  Py_CLEAR(state->index_type);
  Py_CLEAR(state->coord_map_type);
  return 0;
}

void module_free(void* module) { module_clear(static_cast<PyObject*>(module)); }

PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, reinterpret_cast<void*>(module_exec)},
    {0, nullptr},
};

PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT, "tagma",      doc::kModule,
    sizeof(ModuleState),   nullptr,      module_slots,
    module_traverse,       module_clear, module_free,
};

}  // namespace
}  // namespace vllm::tagma::bindings

PyMODINIT_FUNC PyInit_tagma(void) {
  return PyModuleDef_Init(&vllm::tagma::bindings::module_def);
}
