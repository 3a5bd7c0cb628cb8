// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

// A set of blocks in bitmaps, with its nearest members.

#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "block_array.h"
#include "kv_ranges.h"

namespace vllm::tagma {

// Finds the member next to a block in O(log64).
class BlockSet {
 public:
  explicit BlockSet(int32_t num_blocks)
      : num_blocks_(num_blocks), words_(layout(num_blocks)) {}

  bool contains(int32_t block) const {
    return words_[block / 64] >> (block % 64) & 1;
  }

  // Inserts a block that is no member, or a range of such.
  void insert(int32_t block) { set(block / 64, uint64_t{1} << (block % 64)); }
  void insert(Range range) {
    for_each_word(range,
                  [this](int32_t word, uint64_t mask) { set(word, mask); });
  }

  // Erases a member, or a range of such.
  void erase(int32_t block) { reset(block / 64, uint64_t{1} << (block % 64)); }
  void erase(Range range) {
    for_each_word(range,
                  [this](int32_t word, uint64_t mask) { reset(word, mask); });
  }

  // Puts `to` in the place of the member `from`. Both mostly are in one word.
  void replace(int32_t from, int32_t to) {
    if (from / 64 == to / 64) {
      words_[from / 64] ^= uint64_t{1} << (from % 64) | uint64_t{1}
                                                            << (to % 64);
      return;
    }
    insert(to);
    erase(from);
  }

  // The greatest member that is not greater than `block`, or kNoBlock.
  int32_t at_or_before(int32_t block) const {
    block = std::min(block, num_blocks_ - 1);
    for (int i = 0; i < num_levels_ && block >= 0; ++i) {
      const uint64_t up_to = ~uint64_t{0} >> (63 - block % 64);
      if (const uint64_t word = at(i, block / 64) & up_to; word != 0) {
        int32_t found = block / 64 * 64 + last_bit(word);
        while (i-- > 0) {
          found = found * 64 + last_bit(at(i, found));
        }
        return found;
      }
      block = block / 64 - 1;
    }
    return kNoBlock;
  }

  // The least member that is not less than `block`, or the number of blocks.
  int32_t at_or_after(int32_t block) const {
    int32_t size = num_blocks_;
    for (int i = 0; i < num_levels_ && block < size; ++i) {
      const uint64_t from = ~uint64_t{0} << (block % 64);
      if (const uint64_t word = at(i, block / 64) & from; word != 0) {
        int32_t found = block / 64 * 64 + first_bit(word);
        while (i-- > 0) {
          found = found * 64 + first_bit(at(i, found));
        }
        return found;
      }
      block = block / 64 + 1;
      size = (size + 63) / 64;
    }
    return num_blocks_;
  }

  // The first block in [block, end) that is no member, or `end`.
  int32_t first_missing(int32_t block, int32_t end) const {
    while (block < end) {
      const uint64_t missing =
          ~words_[block / 64] & (~uint64_t{0} << (block % 64));
      if (missing != 0) {
        return std::min(block / 64 * 64 + first_bit(missing), end);
      }
      block = (block / 64 + 1) * 64;
    }
    return end;
  }

  // The members among the 64 blocks from 64 * `word` on.
  uint64_t word(int32_t word) const { return words_[word]; }

  // Calls `visit(word, mask)` for the words that have a part of `range`.
  template <typename Visit>
  [[gnu::always_inline]] static inline void for_each_word(Range range,
                                                          Visit visit) {
    int32_t block = range.start;
    while (block < range.end()) {
      const int32_t word = block / 64;
      const int32_t n = std::min(range.end(), (word + 1) * 64) - block;
      visit(word, ~uint64_t{0} >> (64 - n) << (block % 64));
      block += n;
    }
  }

 private:
  static constexpr int kMostLevels = 5;
  static_assert(int64_t{1} << (6 * kMostLevels) >= kMaxBlocks);

  static int last_bit(uint64_t word) { return 63 - __builtin_clzll(word); }
  static int first_bit(uint64_t word) { return __builtin_ctzll(word); }

  // Sets where levels begin. Returns how many words all have together.
  size_t layout(int32_t num_blocks) {
    size_t words = 0;
    int32_t size = num_blocks;
    do {
      size = (size + 63) / 64;
      firsts_[num_levels_++] = words;
      words += size;
    } while (size > 1);
    return words;
  }

  uint64_t& at(int level, int32_t word) {
    return words_[firsts_[level] + word];
  }
  uint64_t at(int level, int32_t word) const {
    return words_[firsts_[level] + word];
  }

  void set(int32_t word, uint64_t mask) {
    uint64_t& bits = words_[word];
    if (bits == 0) {
      fill_upper(word);
    }
    bits |= mask;
  }
  void reset(int32_t word, uint64_t mask) {
    uint64_t& bits = words_[word];
    bits &= ~mask;
    if (bits == 0) {
      clear_upper(word);
    }
  }

  // Notes that a word has members now, or none.
  void fill_upper(int32_t word) {
    for (int i = 1; i < num_levels_; ++i, word /= 64) {
      uint64_t& upper = at(i, word / 64);
      const bool was_set = upper != 0;
      upper |= uint64_t{1} << (word % 64);
      if (was_set) {
        break;
      }
    }
  }
  void clear_upper(int32_t word) {
    for (int i = 1; i < num_levels_; ++i, word /= 64) {
      uint64_t& upper = at(i, word / 64);
      upper &= ~(uint64_t{1} << (word % 64));
      if (upper != 0) {
        break;
      }
    }
  }

  const int32_t num_blocks_;
  // A bit of a level says whether the word of the level below is zero.
  std::array<size_t, kMostLevels> firsts_{};  // Words of the levels.
  int num_levels_ = 0;
  BlockArray<uint64_t> words_;
};

}  // namespace vllm::tagma
