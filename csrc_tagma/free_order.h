// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

// The order of eviction by block ids, for who walks it.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "extent_set.h"
#include "kv_ranges.h"
#include "residency.h"

namespace vllm::tagma {

// The order holds places for empty blocks, which are alike. Here each place has
// one of them, in the order of the holes, so that no id comes twice.
class FreeOrder {
 public:
  FreeOrder(const Residency& residency, const ExtentSet& holes)
      : residency_(residency), holes_(holes) {}

  // Appends the blocks behind `block`, `limit` at most; all with kNoBlock. With
  // `is_cached`, it is known to be a cached one of the order. O(limit), unless
  // empty blocks lie between cached ones: then O(blocks in front).
  void list_behind(int32_t block, bool is_cached, size_t limit,
                   std::vector<int32_t>* out) const {
    const bool may_begin_there = is_cached && residency_.num_stripped() == 0;
    bool is_behind = block == kNoBlock || may_begin_there;
    Names names(holes_);
    const auto visit = [&](int32_t next) {
      next = next == kNoBlock ? names.take() : next;
      if (is_behind && out->size() < limit) {
        out->push_back(next);
      }
      is_behind = is_behind || next == block;
      return out->size() < limit;
    };
    if (may_begin_there) {
      residency_.walk_behind(block, visit);
    } else {
      residency_.walk(visit);
    }
  }

 private:
  // The blocks of holes, one by one.
  class Names {
   public:
    explicit Names(const ExtentSet& holes) : holes_(holes), at_(holes.top()) {}

    int32_t take() {
      if (rest_.count == 0) {
        rest_ = holes_.at(at_);
        at_ = holes_.after(at_);
      }
      rest_ = {rest_.start + 1, rest_.count - 1};
      return rest_.start - 1;
    }

   private:
    const ExtentSet& holes_;
    ExtentSet::Cursor at_;
    Range rest_{0, 0};
  };

  const Residency& residency_;
  const ExtentSet& holes_;
};

}  // namespace vllm::tagma
