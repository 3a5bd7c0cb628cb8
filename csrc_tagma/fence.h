// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

// What the workers have not done yet, and which moves have to wait for it.

#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "block_array.h"
#include "kv_ranges.h"

namespace vllm::tagma {

// Steps are counted as they are scheduled, and are processed in that order.
//
// A block whose hash was set by a step that has not been processed may have no
// data yet, or may still be reported as loaded badly by its id: it is not
// copied. With a connector that reads the blocks of a request after that has
// given them back, a block is not copied to until a step that was scheduled
// later has been processed.
class Fence {
 public:
  explicit Fence(int32_t num_blocks)
      : hashed_(num_blocks), freed_(num_blocks) {}

  int32_t scheduled() const { return scheduled_; }
  int32_t processed() const { return processed_; }
  void begin_step() { ++scheduled_; }
  void process(int32_t step) { processed_ = step; }

  void note_hashed(int32_t block) {
    hashed_[block] = scheduled_;
    has_hashed_ = true;
  }
  // Whether any block ever had a hash: without a prefix cache, none has.
  bool has_hashed() const { return has_hashed_; }
  // Whether to keep copies out of blocks that were given back just now.
  void watch_freed(bool watches) { watches_freed_ = watches; }
  bool watches_freed() const { return watches_freed_; }
  void note_freed(Range range) {
    for (int32_t b = range.start; b < range.end(); ++b) {
      freed_[b] = scheduled_ + 1;
    }
    last_freed_[num_freed_++ % kRemembered] = range;
  }
  // Calls `visit(range)` for the ranges that were given back last.
  template <typename Visit>
  void for_each_freed(Visit visit) const {
    const uint32_t count = std::min(num_freed_, kRemembered);
    for (uint32_t i = 1; i <= count; ++i) {
      visit(last_freed_[(num_freed_ - i) % kRemembered]);
    }
  }
  // The content of `from` is now that of `to`.
  void move(int32_t from, int32_t to) { hashed_[to] = hashed_[from]; }

  bool may_be_copied(int32_t block) const {
    return hashed_[block] <= processed_;
  }
  bool may_be_copied_to(int32_t block) const {
    return !watches_freed_ || freed_[block] <= processed_;
  }

 private:
  static constexpr uint32_t kRemembered = 64;

  BlockArray<int32_t> hashed_;  // The step that set the block's hash.
  BlockArray<int32_t> freed_;   // The first step after it was given back.
  std::array<Range, kRemembered> last_freed_{};  // A ring.
  uint32_t num_freed_ = 0;
  bool has_hashed_ = false;
  bool watches_freed_ = false;
  int32_t scheduled_ = 0;
  int32_t processed_ = 0;
};

}  // namespace vllm::tagma
