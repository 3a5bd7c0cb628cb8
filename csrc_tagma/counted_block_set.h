// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

// A set of blocks that knows how many of a range are members.

#pragma once

#include <algorithm>
#include <cstdint>

#include "block_array.h"
#include "block_set.h"
#include "kv_ranges.h"

namespace vllm::tagma {

// Counts by words of 64 blocks, and by groups of 8 and of 64 words where a
// range is long: at most 30 words and groups, and one for every 4096 blocks.
class CountedBlockSet : private BlockSet {
 public:
  using BlockSet::at_or_after;
  using BlockSet::at_or_before;
  using BlockSet::contains;
  using BlockSet::first_missing;

  explicit CountedBlockSet(int32_t num_blocks)
      : BlockSet(num_blocks),
        groups_(static_cast<size_t>(num_blocks) / kGroup + 1),
        supers_(static_cast<size_t>(num_blocks) / kSuper + 1) {}

  int32_t size() const { return size_; }

  // Inserts blocks that are no members, or erases members.
  void insert(Range range) {
    BlockSet::insert(range);
    add(range, 1);
  }
  void erase(Range range) {
    BlockSet::erase(range);
    add(range, -1);
  }

  // How many blocks of `range` are members.
  int32_t count(Range range) const {
    int32_t count = 0;
    int32_t at = range.start;
    const int32_t end = range.end();
    while (at < end) {
      if (at % kGroup != 0 || end - at < kGroup) {
        const int32_t stop = std::min(at - at % kGroup + kGroup, end);
        count += count_words({at, stop - at});
        at = stop;
      } else if (at % kSuper != 0 || end - at < kSuper) {
        count += groups_[at / kGroup];
        at += kGroup;
      } else {
        count += supers_[at / kSuper];
        at += kSuper;
      }
    }
    return count;
  }

 private:
  static constexpr int32_t kGroup = 8 * 64;
  static constexpr int32_t kSuper = 8 * kGroup;

  void add(Range range, int32_t sign) {
    size_ += sign * range.count;
    int32_t at = range.start;
    while (at < range.end()) {
      const int32_t stop = std::min(at - at % kGroup + kGroup, range.end());
      groups_[at / kGroup] += sign * (stop - at);
      supers_[at / kSuper] += sign * (stop - at);
      at = stop;
    }
  }

  int32_t count_words(Range range) const {
    int32_t count = 0;
    for_each_word(range, [&](int32_t at, uint64_t mask) {
      count += count_bits(word(at) & mask);
    });
    return count;
  }

  // The compiler's own is a call where the processor is not known to have it.
  static int32_t count_bits(uint64_t bits) {
    bits -= bits >> 1 & 0x5555555555555555;
    bits = (bits & 0x3333333333333333) + (bits >> 2 & 0x3333333333333333);
    bits = (bits + (bits >> 4)) & 0x0f0f0f0f0f0f0f0f;
    return static_cast<int32_t>(bits * 0x0101010101010101 >> 56);
  }

  BlockArray<int32_t> groups_;
  BlockArray<int32_t> supers_;
  int32_t size_ = 0;
};

}  // namespace vllm::tagma
