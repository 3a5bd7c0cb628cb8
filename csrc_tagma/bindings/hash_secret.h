// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

// The secret that prefix indexes of this process hash with. Nothing gives it
// back to Python.

#pragma once

#include <Python.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "../siphash.h"

namespace vllm::tagma::bindings {

// Whether Python's own hashes follow from `secret`. It may have been told to
// leave PYTHONHASHSEED aside (-E, -I, -R), or the variable be set since.
inline bool is_pythons(const HashSecret& secret) {
  constexpr std::string_view kText = "vllm.tagma";
  PyObject* text = PyBytes_FromStringAndSize(kText.data(), kText.size());
  if (text == nullptr) {
    PyErr_Clear();
    return false;
  }
  const auto hash = static_cast<uint64_t>(PyObject_Hash(text));
  Py_DECREF(text);
  return hash == sip_hash_13(kText, secret);
}

// Reads the secret that PYTHONHASHSEED gives. Returns false if it gives none:
// Python then has a random one.
inline bool secret_of_environment(HashSecret* secret) {
  const char* text = std::getenv("PYTHONHASHSEED");
  if (text == nullptr || *text == '\0') {
    return false;
  }
  char* end = nullptr;
  errno = 0;
  const unsigned long seed = std::strtoul(text, &end, 10);
  if (errno != 0 || *end != '\0' || seed > UINT32_MAX) {
    return false;  // "random", or what Python would not have started with.
  }
  *secret = secret_of_seed(static_cast<uint32_t>(seed));
  return is_pythons(*secret);
}

// Draws a secret from the system. Returns false with an exception set.
inline bool random_secret(HashSecret* secret) {
  PyObject* os = PyImport_ImportModule("os");
  PyObject* bytes =
      os == nullptr ? nullptr
                    : PyObject_CallMethod(os, "urandom", "i",
                                          static_cast<int>(sizeof(*secret)));
  char* data = nullptr;
  Py_ssize_t size = 0;
  bool ok =
      bytes != nullptr && PyBytes_AsStringAndSize(bytes, &data, &size) == 0;
  if (ok && size != sizeof(*secret)) {
    PyErr_SetString(PyExc_SystemError, "os.urandom() gave too few bytes");
    ok = false;
  }
  if (ok) {
    std::memcpy(secret, data, sizeof(*secret));
  }
  Py_XDECREF(bytes);
  Py_XDECREF(os);
  return ok;
}

// From PYTHONHASHSEED if Python has its secret from there, else random, as
// Python does. Returns false with an exception set.
inline bool make_secret(HashSecret* secret) {
  return secret_of_environment(secret) || random_secret(secret);
}

}  // namespace vllm::tagma::bindings
