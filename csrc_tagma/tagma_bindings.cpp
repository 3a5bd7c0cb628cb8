// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

// Python module `vllm.tagma`: the range allocator, the prefix index and the
// coordinate map of the tagma KV cache backend. Limited API, so that one binary
// serves Python 3.11 and later.

#include <Python.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "kv_allocator.h"
#include "kv_coord_map.h"
#include "prefix_index.h"

namespace {

using vllm::tagma::BlockKey;
using vllm::tagma::kMaxBlocks;
using vllm::tagma::kNoBlock;
using vllm::tagma::KVAllocator;
using vllm::tagma::KVCoordMap;
using vllm::tagma::KVCoords;
using vllm::tagma::KVStats;
using vllm::tagma::PrefixIndex;
using vllm::tagma::Range;
using vllm::tagma::RangeList;
using vllm::tagma::RangeVector;
using vllm::tagma::Result;
using vllm::tagma::Status;

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

struct CoordMapObject {
  PyObject_HEAD KVCoordMap map;
};

struct RangesObject {
  PyObject_HEAD AllocatorObject* allocator;  // Strong reference.
  RangeList blocks;
  bool is_view;  // Made by extend(), match() or part(): holds no references.
};

AllocatorObject* as_allocator(PyObject* self) {
  return reinterpret_cast<AllocatorObject*>(self);
}

RangesObject* as_ranges(PyObject* self) {
  return reinterpret_cast<RangesObject*>(self);
}

KVAllocator& engine_of(PyObject* self) { return *as_allocator(self)->engine; }

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
PyObject* raise(AllocatorObject* self, const Result& result,
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
                          "%lld blocks (alignment %d) are needed, %lld of %d "
                          "are free or cache-only; release a request and retry",
                          asked, 1, value, engine.num_blocks());
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

// ---- Arguments. ----

bool check_nargs(const char* name, Py_ssize_t got, Py_ssize_t expected) {
  if (got == expected) {
    return true;
  }
  PyErr_Format(PyExc_TypeError, "%s() takes %zd positional arguments, got %zd",
               name, expected, got);
  return false;
}

// Values beyond int64 become its limits, which every bound check rejects.
bool parse_int(PyObject* arg, int64_t* out) {
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(arg, &overflow);
  if (value == -1 && PyErr_Occurred()) {
    return false;
  }
  *out = overflow > 0 ? INT64_MAX : overflow < 0 ? INT64_MIN : value;
  return true;
}

bool parse_block(PyObject* self, PyObject* arg, int32_t* block) {
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

bool is_instance(PyObject* arg, PyObject* type) {
  return reinterpret_cast<PyObject*>(Py_TYPE(arg)) == type;
}

// Whether `arg` has a buffer of C ints in one piece. Leaves no exception.
bool get_int_buffer(PyObject* arg, int flags, Py_buffer* buffer) {
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

bool append_block(PyObject* self, int64_t id, RangeList* blocks) {
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
bool parse_blocks(PyObject* self, PyObject* arg, RangeList* blocks) {
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

RangeList reversed(const RangeList& blocks) {
  RangeList result;
  for (int64_t i = blocks.num_blocks(); i-- > 0;) {
    result.append({blocks.at(i), 1});
  }
  return result;
}

// A request's blocks of this allocator, or null with an exception set.
RangesObject* parse_request(PyObject* self, PyObject* arg) {
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

PyObject* list_of_blocks(const std::vector<int32_t>& blocks) {
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(blocks.size()));
  for (size_t i = 0; list != nullptr && i < blocks.size(); ++i) {
    PyObject* id = PyLong_FromLong(blocks[i]);
    if (id == nullptr) {
      Py_CLEAR(list);
    } else {
      PyList_SetItem(list, static_cast<Py_ssize_t>(i), id);
    }
  }
  return list;
}

PyObject* tuple_of(const Range& range) {
  return Py_BuildValue("(ii)", range.start, range.count);
}

PyObject* allocate_object(PyObject* type) {
  auto* tp = reinterpret_cast<PyTypeObject*>(type);
  const auto alloc =
      reinterpret_cast<allocfunc>(PyType_GetSlot(tp, Py_tp_alloc));
  return alloc(tp, 0);
}

void free_object(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

// ---- KVRanges. ----

PyObject* new_ranges_object(AllocatorObject* allocator, bool is_view) {
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

void ranges_dealloc(PyObject* self) {
  RangesObject* ranges = as_ranges(self);
  PyObject* allocator = reinterpret_cast<PyObject*>(ranges->allocator);
  ranges->blocks.~RangeList();
  free_object(self);
  Py_DECREF(allocator);
}

Py_ssize_t ranges_length(PyObject* self) {
  return static_cast<Py_ssize_t>(as_ranges(self)->blocks.num_blocks());
}

// A negative index arrives with the length added.
PyObject* ranges_item(PyObject* self, Py_ssize_t index) {
  const RangeList& blocks = as_ranges(self)->blocks;
  if (index < 0 || index >= blocks.num_blocks()) {
    return PyErr_Format(PyExc_IndexError,
                        "index is out of range: the request has %lld blocks",
                        static_cast<long long>(blocks.num_blocks()));
  }
  return PyLong_FromLong(blocks.at(index));
}

PyObject* ranges_num_ranges(PyObject* self, void*) {
  return PyLong_FromSize_t(as_ranges(self)->blocks.num_ranges());
}

PyObject* ranges_ranges(PyObject* self, PyObject*) {
  const RangeVector& ranges = as_ranges(self)->blocks.ranges();
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(ranges.size()));
  for (size_t i = 0; list != nullptr && i < ranges.size(); ++i) {
    PyObject* pair = tuple_of(ranges[i]);
    if (pair == nullptr) {
      Py_CLEAR(list);
    } else {
      PyList_SetItem(list, static_cast<Py_ssize_t>(i), pair);
    }
  }
  return list;
}

// Resolves a slice bound as Python's slices do.
bool parse_bound(PyObject* arg, int64_t length, int64_t fallback,
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

// Resolves the bounds of a part of a request's blocks.
bool parse_part(PyObject* self, PyObject* start_arg, PyObject* stop_arg,
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

PyObject* ranges_block_ids(PyObject* self, PyObject* args, PyObject* kwargs) {
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
  PyObject* list = PyList_New(stop - start);
  if (list == nullptr) {
    return nullptr;
  }
  Py_ssize_t i = 0;
  const bool ok =
      as_ranges(self)->blocks.for_each(start, stop, [&](int32_t block) {
        PyObject* id = PyLong_FromLong(block);
        return id != nullptr && PyList_SetItem(list, i++, id) == 0;
      });
  if (!ok) {
    Py_CLEAR(list);
  }
  return list;
}

PyObject* ranges_part(PyObject* self, PyObject* const* args, Py_ssize_t nargs) {
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

PyObject* ranges_block_ids_into(PyObject* self, PyObject* args,
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

// ---- KVAllocator. ----

PyObject* allocator_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* keywords[] = {"num_blocks", "alignment", "max_ranges",
                                   nullptr};
  Py_ssize_t num_blocks = 0;
  Py_ssize_t alignment = 1;
  Py_ssize_t max_ranges = 256;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "n|nn:KVAllocator",
                                   const_cast<char**>(keywords), &num_blocks,
                                   &alignment, &max_ranges)) {
    return nullptr;
  }
  if (num_blocks < 1 || num_blocks > kMaxBlocks) {
    return PyErr_Format(PyExc_ValueError,
                        "num_blocks must be in [1, %d], got %zd", kMaxBlocks,
                        num_blocks);
  }
  if (alignment != 1) {
    return PyErr_Format(PyExc_ValueError, "alignment must be 1, got %zd",
                        alignment);
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

void allocator_dealloc(PyObject* self) {
  delete as_allocator(self)->engine;
  delete as_allocator(self)->index;
  free_object(self);
}

PyObject* allocator_allocate(PyObject* self, PyObject* const* args,
                             Py_ssize_t nargs) {
  int64_t count = 0;
  if (!check_nargs("allocate", nargs, 1) || !parse_int(args[0], &count)) {
    return nullptr;
  }
  return guarded([&]() -> PyObject* {
    Range range;
    const Result result = engine_of(self).allocate(count, &range);
    return result.ok() ? tuple_of(range)
                       : raise(as_allocator(self), result, count);
  });
}

PyObject* allocator_new_ranges(PyObject* self, PyObject*) {
  return new_ranges_object(as_allocator(self), /*is_view=*/false);
}

PyObject* allocator_extend(PyObject* self, PyObject* const* args,
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

PyObject* allocator_grow(PyObject* self, PyObject* const* args,
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

PyObject* none_or_raise(PyObject* self, const Result& result) {
  if (!result.ok()) {
    return raise(as_allocator(self), result);
  }
  Py_RETURN_NONE;
}

PyObject* allocator_acquire(PyObject* self, PyObject* const* args,
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

PyObject* allocator_release(PyObject* self, PyObject* const* args,
                            Py_ssize_t nargs) {
  if (!check_nargs("release", nargs, 1)) {
    return nullptr;
  }
  RangesObject* request = parse_request(self, args[0]);
  if (request == nullptr) {
    return nullptr;
  }
  return guarded([&]() -> PyObject* {
    return none_or_raise(self, engine_of(self).release(&request->blocks));
  });
}

// Calls `use(blocks)` with the blocks that the only argument names.
template <typename Use>
PyObject* with_blocks(const char* name, PyObject* self, PyObject* const* args,
                      Py_ssize_t nargs, Use use) {
  if (!check_nargs(name, nargs, 1)) {
    return nullptr;
  }
  return guarded([&]() -> PyObject* {
    RangeList blocks;
    return parse_blocks(self, args[0], &blocks) ? use(blocks) : nullptr;
  });
}

PyObject* allocator_retain_blocks(PyObject* self, PyObject* const* args,
                                  Py_ssize_t nargs) {
  return with_blocks(
      "retain_blocks", self, args, nargs, [self](const RangeList& blocks) {
        return none_or_raise(self, engine_of(self).retain(blocks));
      });
}

PyObject* allocator_release_blocks(PyObject* self, PyObject* const* args,
                                   Py_ssize_t nargs) {
  return with_blocks(
      "release_blocks", self, args, nargs, [self](const RangeList& blocks) {
        // The engine releases a list from its end.
        RangeList last_first = reversed(blocks);
        return none_or_raise(self, engine_of(self).release(&last_first));
      });
}

PyObject* allocator_cache_blocks(PyObject* self, PyObject* const* args,
                                 Py_ssize_t nargs) {
  return with_blocks(
      "cache_blocks", self, args, nargs, [self](const RangeList& blocks) {
        return none_or_raise(self, engine_of(self).cache(blocks));
      });
}

PyObject* allocator_count_unreferenced(PyObject* self, PyObject* const* args,
                                       Py_ssize_t nargs) {
  return with_blocks(
      "count_unreferenced", self, args, nargs, [self](const RangeList& blocks) {
        return PyLong_FromLongLong(engine_of(self).count_unreferenced(blocks));
      });
}

PyObject* allocator_cache(PyObject* self, PyObject* const* args,
                          Py_ssize_t nargs) {
  int32_t block = 0;
  if (!check_nargs("cache", nargs, 1) || !parse_block(self, args[0], &block)) {
    return nullptr;
  }
  return none_or_raise(self, engine_of(self).cache(block));
}

PyObject* allocator_uncache(PyObject* self, PyObject* const* args,
                            Py_ssize_t nargs) {
  int32_t block = 0;
  if (!check_nargs("uncache", nargs, 1) ||
      !parse_block(self, args[0], &block)) {
    return nullptr;
  }
  return none_or_raise(self, engine_of(self).uncache(block));
}

PyObject* allocator_is_cached(PyObject* self, PyObject* const* args,
                              Py_ssize_t nargs) {
  int32_t block = 0;
  if (!check_nargs("is_cached", nargs, 1) ||
      !parse_block(self, args[0], &block)) {
    return nullptr;
  }
  return PyBool_FromLong(engine_of(self).is_cached(block));
}

PyObject* allocator_ref_count(PyObject* self, PyObject* const* args,
                              Py_ssize_t nargs) {
  int32_t block = 0;
  if (!check_nargs("ref_count", nargs, 1) ||
      !parse_block(self, args[0], &block)) {
    return nullptr;
  }
  return PyLong_FromLong(engine_of(self).ref_count(block));
}

PyObject* allocator_take_evicted(PyObject* self, PyObject*) {
  PyObject* list = list_of_blocks(engine_of(self).evicted());
  if (list != nullptr) {
    engine_of(self).clear_evicted();
  }
  return list;
}

PyObject* allocator_clear_evicted(PyObject* self, PyObject*) {
  engine_of(self).clear_evicted();
  Py_RETURN_NONE;
}

// Puts `value`, a new reference or null, into the dict. PyDict_SetItemString()
// would intern the key: a dead entry in Python's table of interned strings for
// each dict that is dropped, which makes that table double in the end.
bool set_item(PyObject* dict, const char* key, PyObject* value) {
  PyObject* name = value != nullptr ? PyUnicode_FromString(key) : nullptr;
  const bool ok = name != nullptr && PyDict_SetItem(dict, name, value) == 0;
  Py_XDECREF(name);
  Py_XDECREF(value);
  return ok;
}

PyObject* allocator_stats(PyObject* self, PyObject*) {
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
      {"block_copies", stats.block_copies},
      {"evicted_blocks", stats.evicted_blocks},
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

PyObject* allocator_check_invariants(PyObject* self, PyObject*) {
  return guarded([&]() -> PyObject* {
    const std::string broken = engine_of(self).check_invariants();
    if (!broken.empty()) {
      PyErr_SetString(PyExc_RuntimeError, broken.c_str());
      return nullptr;
    }
    Py_RETURN_NONE;
  });
}

PyObject* allocator_dump(PyObject* self, PyObject*) {
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

// ---- Types and module. ----

template <typename Function>
PyCFunction as_method(Function function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef ranges_methods[] = {
    {"ranges", ranges_ranges, METH_NOARGS,
     "ranges($self, /)\n--\n\n"
     "Return the ranges as a list of (start, count), both in blocks."},
    {"part", as_method(ranges_part), METH_FASTCALL,
     "part($self, start, stop, /)\n--\n\n"
     "Return the blocks at [start, stop) as a view that holds no "
     "references.\n\n"
     "The bounds are block indices and behave as in a slice."},
    {"block_ids", as_method(ranges_block_ids), METH_VARARGS | METH_KEYWORDS,
     "block_ids($self, /, start=0, stop=None)\n--\n\n"
     "Return the ids of the blocks at [start, stop) as a list.\n\n"
     "The bounds are block indices and behave as in a slice."},
    {"block_ids_into", as_method(ranges_block_ids_into),
     METH_VARARGS | METH_KEYWORDS,
     "block_ids_into($self, /, buffer, start=0, stop=None)\n--\n\n"
     "Write the ids of the blocks at [start, stop) into an int32 buffer.\n\n"
     "Fills it from its begin and returns how many ids were written. The\n"
     "bounds are block indices and behave as in a slice.\n"
     "Raises ValueError if the buffer is too short, and then writes nothing."},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef ranges_getset[] = {
    {"num_ranges", ranges_num_ranges, nullptr, "Number of ranges.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyType_Slot ranges_slots[] = {
    {Py_tp_doc,
     const_cast<char*>("The blocks of one request, in order, as ranges.\n\n"
                       "Made by KVAllocator.new_ranges(). Only release() drops "
                       "its references; deleting the object does not. A view, "
                       "which extend(), match() and part() return, has none.")},
    {Py_tp_dealloc, reinterpret_cast<void*>(ranges_dealloc)},
    {Py_tp_methods, ranges_methods},
    {Py_tp_getset, ranges_getset},
    {Py_tp_iter, reinterpret_cast<void*>(PySeqIter_New)},
    {Py_sq_length, reinterpret_cast<void*>(ranges_length)},
    {Py_sq_item, reinterpret_cast<void*>(ranges_item)},
    {0, nullptr},
};

PyType_Spec ranges_spec = {"vllm.tagma.KVRanges", sizeof(RangesObject), 0,
                           Py_TPFLAGS_DEFAULT |
                               Py_TPFLAGS_DISALLOW_INSTANTIATION |
                               Py_TPFLAGS_IMMUTABLETYPE,
                           ranges_slots};

PyMethodDef allocator_methods[] = {
    {"allocate", as_method(allocator_allocate), METH_FASTCALL,
     "allocate($self, count, /)\n--\n\n"
     "Take `count` contiguous blocks and return (start, count), in blocks.\n\n"
     "Each block gets one request reference; drop it with release_blocks().\n"
     "`count` is rounded up to the alignment. What is cached there is "
     "evicted.\n"
     "Raises OutOfBlocksError, and then nothing has changed."},
    {"new_ranges", allocator_new_ranges, METH_NOARGS,
     "new_ranges($self, /)\n--\n\n"
     "Return an empty KVRanges for a new request."},
    {"extend", as_method(allocator_extend), METH_FASTCALL,
     "extend($self, ranges, count, expected=0, /)\n--\n\n"
     "Append `count` blocks to the request and return a view of just those.\n\n"
     "`expected` more are sure to follow, as for a prompt's later chunks: "
     "room\n"
     "for them is wanted behind these.\n"
     "`count` is rounded up to the alignment. The last range grows in place\n"
     "where the blocks behind it are free, or cached but long unused; else "
     "the\n"
     "blocks come from where least is lost: room first, then cached blocks by\n"
     "how recently they were used. What is cached there is evicted.\n"
     "The view is for reading: it holds no references.\n"
     "Raises OutOfBlocksError or RangeCapError, and then nothing has changed."},
    {"grow", as_method(allocator_grow), METH_FASTCALL,
     "grow($self, ranges, count, /)\n--\n\n"
     "Do as extend() does, but return just the number of ranges added.\n\n"
     "For the hot path: makes no view. 0 means that it grew in place."},
    {"stats", allocator_stats, METH_NOARGS,
     "stats($self, /)\n--\n\n"
     "Return a dict of what operators watch, in blocks unless said otherwise.\n"
     "\n"
     "Now: free_blocks, held_blocks and cache_only_blocks, extents (number of\n"
     "free ones), largest_extent, requests (number with ranges) and\n"
     "ranges_per_request (number of requests by their number of ranges).\n"
     "Since the pool was made: spills (growths that needed a further range),\n"
     "block_copies (that the workers were told to make),\n"
     "evicted_blocks, cap_events (calls that failed for max_ranges).\n"
     "O(1)."},
    {"acquire", as_method(allocator_acquire), METH_FASTCALL,
     "acquire($self, ranges, block_ids, /)\n--\n\n"
     "Add a request reference to each block and append it to the request.\n\n"
     "`block_ids` is a KVRanges, such as match() returns, an int32 buffer or\n"
     "a sequence of ids, here and wherever block ids are passed.\n"
     "Raises ValueError for a free block, OverflowError for one with 32,767\n"
     "references and RangeCapError beyond the cap, and then nothing has\n"
     "changed."},
    {"release", as_method(allocator_release), METH_FASTCALL,
     "release($self, ranges, /)\n--\n\n"
     "Drop the request's reference on each block, last block first.\n\n"
     "Blocks without any reference become free; cached ones become the most\n"
     "recently used cache-only blocks. `ranges` is empty afterwards."},
    {"retain_blocks", as_method(allocator_retain_blocks), METH_FASTCALL,
     "retain_blocks($self, block_ids, /)\n--\n\n"
     "Add a request reference to each block.\n\n"
     "Raises ValueError for a free block and OverflowError for one with\n"
     "32,767 references, and then nothing has changed."},
    {"release_blocks", as_method(allocator_release_blocks), METH_FASTCALL,
     "release_blocks($self, block_ids, /)\n--\n\n"
     "Drop a request reference of each block, in the order given.\n\n"
     "Raises ValueError for a block without one, and then nothing has\n"
     "changed."},
    {"cache", as_method(allocator_cache), METH_FASTCALL,
     "cache($self, block_id, /)\n--\n\n"
     "Set the block's cache reference. A request must hold the block.\n\n"
     "Raises ValueError if none does or if the block is cached already."},
    {"cache_blocks", as_method(allocator_cache_blocks), METH_FASTCALL,
     "cache_blocks($self, block_ids, /)\n--\n\n"
     "Set the cache reference of each block, as cache() does.\n\n"
     "Raises ValueError for a block that is not held or is cached, and then\n"
     "nothing has changed."},
    {"count_unreferenced", as_method(allocator_count_unreferenced),
     METH_FASTCALL,
     "count_unreferenced($self, block_ids, /)\n--\n\n"
     "Return how many of the blocks no request holds.\n\n"
     "Acquiring them takes as many from num_free_blocks."},
    {"uncache", as_method(allocator_uncache), METH_FASTCALL,
     "uncache($self, block_id, /)\n--\n\n"
     "Drop the block's cache reference. A cache-only block becomes free.\n\n"
     "Raises ValueError if the block is not cached."},
    {"is_cached", as_method(allocator_is_cached), METH_FASTCALL,
     "is_cached($self, block_id, /)\n--\n\n"
     "Return whether the block has its cache reference."},
    {"ref_count", as_method(allocator_ref_count), METH_FASTCALL,
     "ref_count($self, block_id, /)\n--\n\n"
     "Return the block's number of request references."},
    {"take_evicted", allocator_take_evicted, METH_NOARGS,
     "take_evicted($self, /)\n--\n\n"
     "Return the blocks evicted since the last call, in eviction order.\n\n"
     "The list grows until it is taken."},
    {"clear_evicted", allocator_clear_evicted, METH_NOARGS,
     "clear_evicted($self, /)\n--\n\n"
     "Do as take_evicted() does, without making the list."},
    {"check_invariants", allocator_check_invariants, METH_NOARGS,
     "check_invariants($self, /)\n--\n\n"
     "Raise RuntimeError for the first broken invariant. Scans the pool."},
    {"dump", allocator_dump, METH_NOARGS,
     "dump($self, /)\n--\n\n"
     "Return all state that later calls depend on, as opaque bytes.\n\n"
     "For tests: equal bytes mean equal state. The order in which extents\n"
     "are searched is part of it."},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef allocator_getset[] = {
    {"num_blocks", allocator_get<&KVAllocator::num_blocks>, nullptr,
     "Number of blocks in the pool.", nullptr},
    {"num_free_blocks", allocator_get<&KVAllocator::num_free_blocks>, nullptr,
     "Number of blocks that an allocation can get: free or cache-only. With\n"
     "an alignment, only blocks of aligned groups that no request holds.",
     nullptr},
    {"num_cache_only_blocks",
     allocator_get<&KVAllocator::num_cache_only_blocks>, nullptr,
     "Number of blocks that only the cache holds.", nullptr},
    {"num_extents", allocator_get<&KVAllocator::num_extents>, nullptr,
     "Number of free extents.", nullptr},
    {"largest_extent", allocator_get<&KVAllocator::largest_extent>, nullptr,
     "Length of the largest free extent, in blocks. If more than 64 are\n"
     "about as long, it may be one that is up to 1/32 shorter.",
     nullptr},
    {"max_ranges", allocator_get<&KVAllocator::max_ranges>, nullptr,
     "Most ranges that a request may have; 0 means no cap.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyType_Slot allocator_slots[] = {
    {Py_tp_doc,
     const_cast<char*>(
         "KVAllocator(num_blocks, alignment=1, max_ranges=256)\n--\n\n"
         "A pool of KV blocks, given out as contiguous ranges.\n\n"
         "Block ids are in [0, num_blocks). `alignment`, in blocks, must\n"
         "divide num_blocks; allocated starts and counts are multiples of it.\n"
         "`max_ranges` caps the ranges of one request; 0 means no cap.")},
    {Py_tp_new, reinterpret_cast<void*>(allocator_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(allocator_dealloc)},
    {Py_tp_methods, allocator_methods},
    {Py_tp_getset, allocator_getset},
    {0, nullptr},
};

PyType_Spec allocator_spec = {"vllm.tagma.KVAllocator", sizeof(AllocatorObject),
                              0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
                              allocator_slots};

// ---- PrefixIndex. ----

IndexObject* as_index(PyObject* self) {
  return reinterpret_cast<IndexObject*>(self);
}

PrefixIndex& index_of(PyObject* self) {
  return *as_index(self)->allocator->index;
}

PyObject* pool_of(PyObject* self) {
  return reinterpret_cast<PyObject*>(as_index(self)->allocator);
}

PyObject* index_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
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
  PyObject* self = allocate_object(reinterpret_cast<PyObject*>(type));
  if (self == nullptr) {
    return nullptr;
  }
  as_index(self)->allocator = allocator;
  Py_INCREF(pool);
  PyObject* ready = guarded([&]() -> PyObject* {
    as_index(self)->keys = new std::vector<BlockKey>;
    auto index = std::make_unique<PrefixIndex>(allocator->engine->num_blocks());
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

void index_dealloc(PyObject* self) {
  PyObject* pool = pool_of(self);
  delete as_index(self)->keys;
  free_object(self);
  Py_DECREF(pool);
}

Py_ssize_t index_length(PyObject* self) { return index_of(self).size(); }

bool parse_key(PyObject* arg, BlockKey* key) {
  char* data = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(arg, &data, &size) != 0) {
    return false;
  }
  *key = {data, static_cast<size_t>(size)};
  return true;
}

// A list or tuple with the items of `arg`, as a new reference: reading one runs
// no Python code, so that the engine cannot change meanwhile.
PyObject* as_array(PyObject* arg) {
  if (PyList_Check(arg) || PyTuple_Check(arg)) {
    Py_INCREF(arg);
    return arg;
  }
  return PySequence_List(arg);
}

PyObject* array_item(PyObject* array, Py_ssize_t i) {
  return PyList_Check(array) ? PyList_GetItem(array, i)
                             : PyTuple_GetItem(array, i);
}

PyObject* index_match(PyObject* self, PyObject* args, PyObject* kwargs) {
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

PyObject* index_insert(PyObject* self, PyObject* const* args,
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

PyObject* index_erase(PyObject* self, PyObject* block) {
  return allocator_uncache(pool_of(self), &block, 1);
}

PyObject* index_evict(PyObject* self, PyObject* block_ids) {
  PyObject* pool = pool_of(self);
  return with_blocks(
      "evict", pool, &block_ids, 1, [pool](const RangeList& blocks) {
        return none_or_raise(pool, engine_of(pool).uncache(blocks));
      });
}

PyObject* index_clear(PyObject* self, PyObject*) {
  engine_of(pool_of(self)).uncache_all();
  Py_RETURN_NONE;
}

PyObject* index_find(PyObject* self, PyObject* hash) {
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

PyObject* bytes_of(BlockKey key) {
  return PyBytes_FromStringAndSize(key.data(),
                                   static_cast<Py_ssize_t>(key.size()));
}

PyObject* index_hash_of(PyObject* self, PyObject* arg) {
  int32_t block = 0;
  if (!parse_block(pool_of(self), arg, &block)) {
    return nullptr;
  }
  if (!index_of(self).contains(block)) {
    Py_RETURN_NONE;
  }
  return bytes_of(index_of(self).key_of(block));
}

PyObject* index_position_of(PyObject* self, PyObject* arg) {
  int32_t block = 0;
  if (!parse_block(pool_of(self), arg, &block)) {
    return nullptr;
  }
  if (!index_of(self).contains(block)) {
    Py_RETURN_NONE;
  }
  return PyLong_FromLong(index_of(self).position_of(block));
}

PyObject* index_num_hashes(PyObject* self, void*) {
  return PyLong_FromLong(index_of(self).num_keys());
}

PyObject* index_take_evicted_hashes(PyObject* self, PyObject*) {
  PrefixIndex& index = index_of(self);
  if (!index.records_evicted()) {
    PyErr_SetString(PyExc_RuntimeError,
                    "evicted hashes are not recorded; make the index with "
                    "PrefixIndex(allocator, record_evicted=True)");
    return nullptr;
  }
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(index.num_evicted()));
  if (list == nullptr) {
    return nullptr;
  }
  Py_ssize_t i = 0;
  const bool ok = index.for_each_evicted([&](BlockKey key) {
    PyObject* hash = bytes_of(key);
    return hash != nullptr && PyList_SetItem(list, i++, hash) == 0;
  });
  if (ok) {
    index.clear_evicted();
  } else {
    Py_CLEAR(list);
  }
  return list;
}

PyMethodDef index_methods[] = {
    {"match", as_method(index_match), METH_VARARGS | METH_KEYWORDS,
     "match($self, /, hashes, limit=None)\n--\n\n"
     "Return the blocks of the longest prefix of which every hash is "
     "cached.\n\n"
     "Looks at `limit` hashes at most. Of several blocks with one hash, the\n"
     "first inserted is taken. The result is a view that holds no reference:\n"
     "pass it to KVAllocator.acquire() before anything else is allocated."},
    {"insert", as_method(index_insert), METH_FASTCALL,
     "insert($self, ranges, hashes, start, stop, /)\n--\n\n"
     "Cache the request's blocks at [start, stop) under hashes[start:stop].\n\n"
     "Each gets its cache reference and its entry. A block that is cached\n"
     "under the same hash is skipped; one under another hash moves to the new\n"
     "one. Returns how many were not cached before.\n"
     "Raises ValueError for bad bounds or a block that no request holds, and\n"
     "then nothing has changed."},
    {"erase", index_erase, METH_O,
     "erase($self, block_id, /)\n--\n\n"
     "Drop the block's entry and cache reference.\n\n"
     "Raises ValueError if the block is not cached."},
    {"evict", index_evict, METH_O,
     "evict($self, block_ids, /)\n--\n\n"
     "Drop the entry and cache reference of each block that has them."},
    {"clear", index_clear, METH_NOARGS,
     "clear($self, /)\n--\n\n"
     "Drop every entry and cache reference. Scans the pool."},
    {"find", index_find, METH_O,
     "find($self, hash, /)\n--\n\n"
     "Return the block inserted first under the hash, or None."},
    {"hash_of", index_hash_of, METH_O,
     "hash_of($self, block_id, /)\n--\n\n"
     "Return the hash that the block is cached under, or None."},
    {"position_of", index_position_of, METH_O,
     "position_of($self, block_id, /)\n--\n\n"
     "Return the index in `ranges` that the block was inserted at, or None."},
    {"take_evicted_hashes", index_take_evicted_hashes, METH_NOARGS,
     "take_evicted_hashes($self, /)\n--\n\n"
     "Return the hashes of the blocks evicted since the last call, in "
     "order.\n\n"
     "One for each block of KVAllocator.take_evicted(). The list grows until\n"
     "it is taken. Raises RuntimeError without record_evicted."},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef index_getset[] = {
    {"num_hashes", index_num_hashes, nullptr,
     "Number of different hashes that blocks are cached under.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyType_Slot index_slots[] = {
    {Py_tp_doc,
     const_cast<char*>(
         "PrefixIndex(allocator, record_evicted=False)\n--\n\n"
         "The cached blocks of a KVAllocator, by block hash.\n\n"
         "A hash is any bytes; up to 40 bytes cost no memory of their own.\n"
         "A block has its cache reference exactly while it has an entry here:\n"
         "the allocator's evictions remove both at once. One for an "
         "allocator,\n"
         "made while no block is cached.\n"
         "`record_evicted` keeps evicted hashes for take_evicted_hashes().")},
    {Py_tp_new, reinterpret_cast<void*>(index_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(index_dealloc)},
    {Py_tp_methods, index_methods},
    {Py_tp_getset, index_getset},
    {Py_sq_length, reinterpret_cast<void*>(index_length)},
    {0, nullptr},
};

PyType_Spec index_spec = {"vllm.tagma.PrefixIndex", sizeof(IndexObject), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
                          index_slots};

// ---- CoordMap. ----

const KVCoordMap& map_of(PyObject* self) {
  return reinterpret_cast<CoordMapObject*>(self)->map;
}

PyObject* coord_map_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
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

bool parse_coord(PyObject* arg, const char* name, int64_t size, int64_t* out) {
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

bool parse_coords(const char* name, PyObject* self, PyObject* const* args,
                  Py_ssize_t nargs, KVCoords* at) {
  const KVCoordMap& map = map_of(self);
  return check_nargs(name, nargs, 3) &&
         parse_coord(args[0], "layer", map.num_layers(), &at->layer) &&
         parse_coord(args[1], "block", map.num_blocks(), &at->block) &&
         parse_coord(args[2], "token", map.block_size(), &at->token);
}

PyObject* coord_map_index(PyObject* self, PyObject* const* args,
                          Py_ssize_t nargs) {
  KVCoords at{};
  return parse_coords("index", self, args, nargs, &at)
             ? PyLong_FromLongLong(map_of(self).index(at))
             : nullptr;
}

PyObject* coord_map_offset(PyObject* self, PyObject* const* args,
                           Py_ssize_t nargs) {
  KVCoords at{};
  return parse_coords("offset", self, args, nargs, &at)
             ? PyLong_FromLongLong(map_of(self).offset(at))
             : nullptr;
}

PyObject* coord_map_coords(PyObject* self, PyObject* arg) {
  int64_t index = 0;
  if (!parse_coord(arg, "index", map_of(self).size(), &index)) {
    return nullptr;
  }
  const KVCoords at = map_of(self).coords(index);
  return Py_BuildValue("(LLL)", static_cast<long long>(at.layer),
                       static_cast<long long>(at.block),
                       static_cast<long long>(at.token));
}

PyMethodDef coord_map_methods[] = {
    {"index", as_method(coord_map_index), METH_FASTCALL,
     "index($self, layer, block, token, /)\n--\n\n"
     "Return (layer * num_blocks + block) * block_size + token, in tokens.\n\n"
     "Raises IndexError for a coordinate outside its bound."},
    {"offset", as_method(coord_map_offset), METH_FASTCALL,
     "offset($self, layer, block, token, /)\n--\n\n"
     "Return the token's offset in the buffer: its index in bytes.\n\n"
     "Raises IndexError for a coordinate outside its bound."},
    {"coords", coord_map_coords, METH_O,
     "coords($self, index, /)\n--\n\n"
     "Return the (layer, block, token) whose index() is `index`.\n\n"
     "Raises IndexError for an index outside the map."},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot coord_map_slots[] = {
    {Py_tp_doc,
     const_cast<char*>(
         "CoordMap(num_layers, num_blocks, block_size, bytes_per_token)\n"
         "--\n\n"
         "Where a token's KV data lies in one buffer that holds all layers.\n\n"
         "`num_blocks` is in blocks of a layer, `block_size` in tokens. The\n"
         "product of all four, the size in bytes, must be below 2**63.")},
    {Py_tp_new, reinterpret_cast<void*>(coord_map_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(free_object)},
    {Py_tp_methods, coord_map_methods},
    {0, nullptr},
};

PyType_Spec coord_map_spec = {"vllm.tagma.CoordMap", sizeof(CoordMapObject), 0,
                              Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
                              coord_map_slots};

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
                                    "Too few blocks are free or cache-only.",
                                    PyExc_RuntimeError, nullptr),
          &state->out_of_blocks_error) &&
      add(module, "RangeCapError",
          PyErr_NewExceptionWithDoc(
              "vllm.tagma.RangeCapError",
              "The request would need more than max_ranges ranges.",
              PyExc_RuntimeError, nullptr),
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
    PyModuleDef_HEAD_INIT,
    "tagma",
    "Range allocator and prefix index of the tagma KV cache backend.\n\n"
    "Sizes and indices are in KV blocks. The GIL guards every object: each\n"
    "call holds it from start to end. On a build without the GIL, guard an\n"
    "allocator, its KVRanges and its PrefixIndex with one lock of your own.",
    sizeof(ModuleState),
    nullptr,
    module_slots,
    module_traverse,
    module_clear,
    module_free,
};

}  // namespace

PyMODINIT_FUNC PyInit_tagma(void) { return PyModuleDef_Init(&module_def); }
