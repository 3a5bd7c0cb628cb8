// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

// A set of blocks in bitmaps, with its nearest members and counts.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "block_array.h"
#include "kv_ranges.h"

namespace vllm::tagma {

// Finds the member next to a block in O(log64). Counts the members of a range
// by words, and by superblocks of 64 words where it is long.
class BlockSet {
 public:
  explicit BlockSet(int32_t num_blocks)
      : num_blocks_(num_blocks),
        counts_(static_cast<size_t>(num_blocks) / kSuper + 1) {
    int32_t size = num_blocks;
    do {
      size = (size + 63) / 64;
      levels_.emplace_back(size);
    } while (size > 1);
  }

  bool contains(int32_t block) const {
    return levels_[0][block / 64] >> (block % 64) & 1;
  }
  int32_t size() const { return size_; }

  // Inserts a block that is no member, or a range of such.
  void insert(int32_t block) { insert(Range{block, 1}); }
  void insert(Range range) {
    for_each_word(range, [this](int32_t word, uint64_t mask) {
      add_count(word, __builtin_popcountll(mask));
      uint64_t& bits = levels_[0][word];
      const bool was_empty = bits == 0;
      bits |= mask;
      for (size_t i = 1; was_empty && i < levels_.size(); ++i) {
        uint64_t& upper = levels_[i][word / 64];
        const bool was_set = upper != 0;
        upper |= uint64_t{1} << (word % 64);
        if (was_set) {
          break;
        }
        word /= 64;
      }
    });
  }

  // Erases a member, or a range of such.
  void erase(int32_t block) { erase(Range{block, 1}); }
  void erase(Range range) {
    for_each_word(range, [this](int32_t word, uint64_t mask) {
      add_count(word, -__builtin_popcountll(mask));
      uint64_t& bits = levels_[0][word];
      bits &= ~mask;
      bool is_empty = bits == 0;
      for (size_t i = 1; is_empty && i < levels_.size(); ++i) {
        uint64_t& upper = levels_[i][word / 64];
        upper &= ~(uint64_t{1} << (word % 64));
        is_empty = upper == 0;
        word /= 64;
      }
    });
  }

  // The greatest member that is not greater than `block`, or kNoBlock.
  int32_t at_or_before(int32_t block) const {
    block = std::min(block, num_blocks_ - 1);
    for (size_t i = 0; i < levels_.size() && block >= 0; ++i) {
      const uint64_t up_to = ~uint64_t{0} >> (63 - block % 64);
      if (const uint64_t word = levels_[i][block / 64] & up_to; word != 0) {
        int32_t found = block / 64 * 64 + last_bit(word);
        while (i-- > 0) {
          found = found * 64 + last_bit(levels_[i][found]);
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
    for (size_t i = 0; i < levels_.size() && block < size; ++i) {
      const uint64_t from = ~uint64_t{0} << (block % 64);
      if (const uint64_t word = levels_[i][block / 64] & from; word != 0) {
        int32_t found = block / 64 * 64 + first_bit(word);
        while (i-- > 0) {
          found = found * 64 + first_bit(levels_[i][found]);
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
          ~levels_[0][block / 64] & (~uint64_t{0} << (block % 64));
      if (missing != 0) {
        return std::min(block / 64 * 64 + first_bit(missing), end);
      }
      block = (block / 64 + 1) * 64;
    }
    return end;
  }

  // How many blocks of `range` are members.
  int32_t count(Range range) const {
    int32_t count = 0;
    while (range.count >= 2 * kSuper) {
      const int32_t ahead = -range.start & (kSuper - 1);
      if (ahead > 0) {
        count += count_words({range.start, ahead});
      } else {
        count += counts_[range.start / kSuper];
      }
      const int32_t done = ahead > 0 ? ahead : kSuper;
      range = {range.start + done, range.count - done};
    }
    return count + count_words(range);
  }

 private:
  static constexpr int32_t kSuper = 64 * 64;

  static int last_bit(uint64_t word) { return 63 - __builtin_clzll(word); }
  static int first_bit(uint64_t word) { return __builtin_ctzll(word); }

  // Calls `visit(word, mask)` for the words that have a part of `range`.
  template <typename Visit>
  static void for_each_word(Range range, Visit visit) {
    int32_t block = range.start;
    while (block < range.end()) {
      const int32_t word = block / 64;
      const int32_t n = std::min(range.end(), (word + 1) * 64) - block;
      visit(word, ~uint64_t{0} >> (64 - n) << (block % 64));
      block += n;
    }
  }

  int32_t count_words(Range range) const {
    int32_t count = 0;
    for_each_word(range, [&](int32_t word, uint64_t mask) {
      count += __builtin_popcountll(levels_[0][word] & mask);
    });
    return count;
  }

  void add_count(int32_t word, int32_t change) {
    counts_[word / 64] += change;
    size_ += change;
  }

  const int32_t num_blocks_;
  std::vector<BlockArray<uint64_t>> levels_;
  BlockArray<int32_t> counts_;  // By superblock.
  int32_t size_ = 0;
};

}  // namespace vllm::tagma
