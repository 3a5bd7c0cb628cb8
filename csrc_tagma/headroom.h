// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

// The room that requests want behind their last blocks.

#pragma once

#include <algorithm>
#include <cstdint>

#include "block_array.h"
#include "placement.h"

namespace vllm::tagma {

class Headroom {
 public:
  // What is noted at a block. All zero: no request ends there.
  struct Demand {
    int32_t grown_plus_one;
    int32_t expected;
  };

  explicit Headroom(int32_t num_blocks)
      : placement_(num_blocks), demands_(num_blocks) {}

  // How many blocks no request holds, and how many requests share them.
  void set_load(int32_t idle, int32_t requests) {
    idle_ = idle;
    requests_ = requests;
  }

  // Notes the request whose last block is `block`, that has grown by `grown`
  // blocks and will get `expected` more. What it wants comes of the load at the
  // time when that is asked for.
  void place(int32_t block, int32_t grown, int32_t expected) {
    demands_[block] = {grown + 1, expected};
  }
  // Takes back what was noted, and perhaps notes it again.
  Demand withdraw(int32_t block) {
    const Demand demand = demands_[block];
    demands_[block] = {};
    return demand;
  }
  void restore(int32_t block, Demand demand) { demands_[block] = demand; }

  // Blocks that such a request wants.
  int32_t wanted(int32_t grown, int32_t expected) const {
    return std::min(expected, idle_) +
           placement_.headroom(grown, idle_, requests_);
  }

  // Blocks that the request wants which ends in front of `block`, if one does.
  int32_t reserved_before(int32_t block) const {
    const Demand demand = block > 0 ? demands_[block - 1] : Demand{};
    return demand.grown_plus_one == 0
               ? 0
               : wanted(demand.grown_plus_one - 1, demand.expected);
  }

  // A request ended that has grown by `grown` blocks.
  void observe(int32_t grown) { placement_.observe(grown); }

  // Calls `put(data, count)` with all that later placements depend on.
  template <typename Put>
  void dump(int32_t num_blocks, Put put) const {
    put(&demands_[0], num_blocks);
    const float expected = placement_.expected();
    put(&expected, 1);
  }

 private:
  Placement placement_;
  BlockArray<Demand> demands_;
  int32_t idle_ = 0;
  int32_t requests_ = 0;
};

}  // namespace vllm::tagma
