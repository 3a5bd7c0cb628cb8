// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

// What must hold of a pool at any time.

#pragma once

#include <cstdint>
#include <string>

#include "kv_allocator.h"

namespace vllm::tagma {

// Each check returns the first broken invariant in words, or nothing.
class Checker {
 public:
  explicit Checker(const KVAllocator& pool)
      : pool_(pool), states_(pool.states_), runs_(pool.runs_) {}

  std::string check() const {
    for (const std::string& broken :
         {check_statistics(), runs_.check(pool_.num_blocks()),
          states_.residency.check(), check_runs(), check_residency(),
          check_index()}) {
      if (!broken.empty()) {
        return broken;
      }
    }
    return {};
  }

  std::string dump() const {
    std::string bytes;
    const auto put = [&bytes](const auto* data, size_t count) {
      bytes.append(reinterpret_cast<const char*>(data), count * sizeof(*data));
    };
    states_.refs.dump(pool_.num_blocks(), put);
    states_.copies.dump(pool_.num_blocks(), put);
    states_.residency.for_each([&put](int32_t block) { put(&block, 1); });
    pool_.headroom_.dump(pool_.num_blocks(), put);
    put(pool_.evicted_.data(), pool_.evicted_.size());
    put(&pool_.copies_left_, 1);
    if (states_.index != nullptr) {
      bytes += states_.index->dump();
    }
    return bytes;
  }

 private:
  std::string check_statistics() const {
    int32_t requests = 0;
    for (const int32_t count : pool_.stats_.ranges_per_request) {
      requests += count;
      if (count < 0) {
        return "the histogram of ranges has a negative count";
      }
    }
    return requests == pool_.stats_.requests
               ? ""
               : "the number of requests is wrong";
  }

  // A block that no request holds is in a run, as what it is, unless it may not
  // be moved yet.
  std::string check_runs() const {
    for (int32_t b = 0; b < pool_.num_blocks(); ++b) {
      const bool is_in_run = runs_.run_of(b).count > 0;
      const bool is_cached = pool_.is_cached(b);
      const bool may_be_in_run =
          !pool_.is_held(b) && (!is_cached || states_.fence.may_be_copied(b));
      if (is_in_run != may_be_in_run ||
          (is_in_run && runs_.is_cached(b) != is_cached)) {
        return "block " + std::to_string(b) + " is in the wrong run or in none";
      }
    }
    return {};
  }

  std::string check_residency() const {
    int32_t held = 0;
    int32_t cached = 0;
    for (int32_t b = 0; b < pool_.num_blocks(); ++b) {
      held += pool_.is_held(b);
      cached += !pool_.is_held(b) && pool_.is_cached(b);
    }
    std::string broken;
    states_.residency.for_each([&](int32_t block) {
      if (block != kNoBlock &&
          (pool_.is_held(block) || !pool_.is_cached(block))) {
        broken = "block " + std::to_string(block) +
                 " is to be evicted but not cache-only";
      }
    });
    if (broken.empty() &&
        (held + pool_.num_free_blocks() != pool_.num_blocks() ||
         cached != states_.residency.num_cached())) {
      return "the order of eviction does not have every block";
    }
    return broken;
  }

  std::string check_index() const {
    if (states_.index == nullptr) {
      return {};
    }
    for (int32_t b = 0; b < pool_.num_blocks(); ++b) {
      if (pool_.is_cached(b) != states_.index->contains(b)) {
        return "block " + std::to_string(b) + " is " +
               (pool_.is_cached(b) ? "cached without an index entry"
                                   : "in the index without being cached");
      }
    }
    return states_.index->check_invariants();
  }

  const KVAllocator& pool_;
  const BlockStates& states_;
  const Runs& runs_;
};

inline std::string KVAllocator::check_invariants() const {
  return Checker(*this).check();
}

inline std::string KVAllocator::dump() const { return Checker(*this).dump(); }

}  // namespace vllm::tagma
