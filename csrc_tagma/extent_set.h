// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

// Extents of blocks, found by their ends and by their length.

#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "kv_ranges.h"
#include "stretch_table.h"

namespace vllm::tagma {

// Extents are in lists by size class, with a bitmap over the classes, so that
// the longest ones are found in O(1).
class ExtentSet {
 public:
  // A position in the walk over the extents from the top size class down.
  struct Cursor {
    int size_class;
    int32_t id;

    bool at_end() const { return id == kNone; }
  };

  explicit ExtentSet(int32_t num_blocks) : extents_(num_blocks) {}

  int32_t num_extents() const { return num_extents_; }
  int32_t num_blocks() const { return num_blocks_; }

  // Length of the extent that starts at `block`, or 0.
  int32_t length_from(int32_t block) const {
    return extents_[extents_.from(block)].count;
  }
  // Length of the extent that ends before `block`, or 0.
  int32_t length_to(int32_t block) const {
    return extents_[extents_.to(block)].count;
  }

  void insert(Range extent) {
    const int32_t id = extents_.insert(extent);
    link(size_class_of(extent.count), id);
    ++num_extents_;
    num_blocks_ += extent.count;
  }

  void remove(Range extent) { erase(extents_.from(extent.start)); }

  // Inserts `range` as one with the extents beside it.
  void merge(Range range) {
    const int32_t before = extents_.to(range.start);
    const int32_t behind = extents_.from(range.end());
    if (before == kNone && behind == kNone) {
      insert(range);
      return;
    }
    Range merged = range;
    merged.count += extents_[behind].count;
    if (before == kNone) {
      reshape(behind, merged);
      return;
    }
    if (behind != kNone) {
      erase(behind);
    }
    merged.start = extents_[before].start;
    merged.count += extents_[before].count;
    reshape(before, merged);
  }

  // Removes the first `count` blocks of `extent`: growth into its front is the
  // most frequent operation, and mostly leaves the lists alone.
  [[gnu::always_inline]] inline void cut_front(Range extent, int32_t count) {
    const int32_t id = extents_.from(extent.start);
    if (count == extent.count) {
      erase(id);
      return;
    }
    extents_.cut_front(id, extent, count);
    num_blocks_ -= count;
    if (!have_same_class(extent.count, extent.count - count)) {
      relink(extent.count, id);
    }
  }

  // Removes `part` of `extent`.
  void cut(Range extent, Range part) {
    if (part.start == extent.start) {
      cut_front(extent, part.count);
      return;
    }
    reshape(extents_.from(extent.start),
            {extent.start, part.start - extent.start});
    if (part.end() < extent.end()) {
      insert({part.end(), extent.end() - part.end()});
    }
  }

  Cursor top() const { return first_at_or_below(kLevels * kSteps - 1); }
  Cursor after(Cursor at) const {
    const int32_t next = extents_[at.id].next;
    return next != kNone ? Cursor{at.size_class, next}
                         : first_at_or_below(at.size_class - 1);
  }
  // The walk the other way, from the size class of `length` up: what is in that
  // one may be shorter.
  Cursor bottom(int32_t length) const {
    return first_at_or_above(size_class_of(length));
  }
  Cursor above(Cursor at) const {
    const int32_t next = extents_[at.id].next;
    return next != kNone ? Cursor{at.size_class, next}
                         : first_at_or_above(at.size_class + 1);
  }
  // The first one of a higher size class.
  Cursor above_class(Cursor at) const {
    return first_at_or_above(at.size_class + 1);
  }
  Range at(Cursor at) const { return extents_.range(at.id); }

  // A longest extent, of length 0 if there is none. One look below
  // kExactLengths; above, a scan of the top size class, whose lengths differ by
  // less than 1/32.
  Range longest() const {
    const Cursor top = this->top();
    Range longest{0, 0};
    for (int32_t id = top.id; id != kNone; id = extents_[id].next) {
      if (extents_[id].count > longest.count) {
        longest = extents_.range(id);
      }
      if (longest.count == max_length(top.size_class)) {
        break;
      }
    }
    return longest;
  }

  // The greatest length in a size class.
  static int32_t max_length(int size_class) {
    const int shift = std::max(size_class / kSteps - 1, 0);
    return ((size_class - shift * kSteps + 1) << shift) - 1;
  }

  // The first broken invariant of the tags, lists and bitmaps, or nothing.
  std::string check(int32_t num_blocks) const;

  // Calls `visit(extent)` for each, in the order of search.
  template <typename Visit>
  void for_each(Visit visit) const {
    for (Cursor at = top(); !at.at_end(); at = after(at)) {
      visit(this->at(at));
    }
  }

 private:
  // Size classes as in TLSF: 32 linear steps per power of two. Lengths below
  // 64 have a class of their own.
  static constexpr int kStepBits = 5;
  static constexpr int kSteps = 1 << kStepBits;
  static constexpr int kLevels = 27 - kStepBits + 1;

  struct Extent {
    int32_t start;
    int32_t count;
    int32_t prev;  // In the list of its size class, or kNone.
    int32_t next;
  };
  static constexpr int32_t kNone = StretchTable<Extent>::kNone;

  static int log2_floor(uint32_t v) { return 31 - __builtin_clz(v); }

  static int size_class_of(int32_t length) {
    if (length < kSteps) {
      return length;
    }
    const int shift = log2_floor(length) - kStepBits;
    return (shift + 1) * kSteps + ((length >> shift) & (kSteps - 1));
  }

  // The lengths of a size class are equal in their leading bits.
  static bool have_same_class(int32_t a, int32_t b) {
    const int shift = log2_floor(std::max(a, b) | kSteps) - kStepBits;
    return a >> shift == b >> shift;
  }

  Cursor first_at_or_below(int size_class) const {
    if (size_class < 0) {
      return {0, kNone};
    }
    const int level = size_class / kSteps;
    const uint32_t step_mask = UINT32_MAX >> (31 - size_class % kSteps);
    if (const uint32_t steps = bitmap_[level] & step_mask; steps != 0) {
      const int found = level * kSteps + log2_floor(steps);
      return {found, heads_[found]};
    }
    const uint32_t levels = summary_ & ((uint32_t{1} << level) - 1);
    if (levels == 0) {
      return {0, kNone};
    }
    const int lower = log2_floor(levels);
    const int found = lower * kSteps + log2_floor(bitmap_[lower]);
    return {found, heads_[found]};
  }

  Cursor first_at_or_above(int size_class) const {
    if (size_class >= kLevels * kSteps) {
      return {0, kNone};
    }
    const int level = size_class / kSteps;
    const uint32_t step_mask = UINT32_MAX << (size_class % kSteps);
    if (const uint32_t steps = bitmap_[level] & step_mask; steps != 0) {
      const int found = level * kSteps + __builtin_ctz(steps);
      return {found, heads_[found]};
    }
    const uint32_t levels = summary_ & (UINT32_MAX << (level + 1));
    if (levels == 0) {
      return {0, kNone};
    }
    const int higher = __builtin_ctz(levels);
    const int found = higher * kSteps + __builtin_ctz(bitmap_[higher]);
    return {found, heads_[found]};
  }

  void erase(int32_t id) {
    const int32_t count = extents_[id].count;
    unlink(size_class_of(count), id);
    extents_.erase(id);
    --num_extents_;
    num_blocks_ -= count;
  }

  void reshape(int32_t id, Range extent) {
    const int32_t count = extents_[id].count;
    extents_.reshape(id, extent);
    num_blocks_ += extent.count - count;
    if (!have_same_class(count, extent.count)) {
      relink(count, id);
    }
  }

  // For an extent whose length was `count`.
  [[gnu::noinline]] void relink(int32_t count, int32_t id) {
    unlink(size_class_of(count), id);
    link(size_class_of(extents_[id].count), id);
  }

  void link(int c, int32_t id) {
    const int32_t head = heads_[c];
    extents_[id].prev = kNone;
    extents_[id].next = head;
    heads_[c] = id;
    if (head != kNone) {
      extents_[head].prev = id;
      return;
    }
    bitmap_[c / kSteps] |= uint32_t{1} << (c % kSteps);
    summary_ |= uint32_t{1} << (c / kSteps);
  }

  void unlink(int c, int32_t id) {
    const int32_t prev = extents_[id].prev;
    const int32_t next = extents_[id].next;
    if (next != kNone) {
      extents_[next].prev = prev;
    }
    if (prev != kNone) {
      extents_[prev].next = next;
      return;
    }
    heads_[c] = next;
    if (next == kNone) {
      bitmap_[c / kSteps] &= ~(uint32_t{1} << (c % kSteps));
      if (bitmap_[c / kSteps] == 0) {
        summary_ &= ~(uint32_t{1} << (c / kSteps));
      }
    }
  }

  StretchTable<Extent> extents_;
  std::array<int32_t, kLevels * kSteps> heads_{};  // By size class.
  std::array<uint32_t, kLevels> bitmap_{};         // Non-empty size classes.
  uint32_t summary_ = 0;                           // Non-zero words of bitmap_.
  int32_t num_extents_ = 0;
  int32_t num_blocks_ = 0;
};

inline std::string ExtentSet::check(int32_t num_blocks) const {
  int32_t listed = 0;
  int32_t blocks = 0;
  int32_t tags = 0;
  for (int c = 0; c < kLevels * kSteps; ++c) {
    const bool set = bitmap_[c / kSteps] >> (c % kSteps) & 1;
    if (set != (heads_[c] != kNone)) {
      return "bitmap is wrong for size class " + std::to_string(c);
    }
    int32_t prev = kNone;
    for (int32_t id = heads_[c]; id != kNone;
         prev = id, id = extents_[id].next) {
      const Range extent = extents_.range(id);
      if (extent.count <= 0 || extents_.from(extent.start) != id ||
          extents_.to(extent.end()) != id || size_class_of(extent.count) != c ||
          extents_[id].prev != prev || ++listed > num_extents_) {
        return "list of size class " + std::to_string(c) +
               " is broken at block " + std::to_string(extent.start);
      }
      blocks += extent.count;
      tags += extent.count == 1 ? 1 : 2;
    }
  }
  for (int level = 0; level < kLevels; ++level) {
    if ((summary_ >> level & 1) != (bitmap_[level] != 0)) {
      return "bitmap summary is wrong for level " + std::to_string(level);
    }
  }
  if (listed != num_extents_ || blocks != num_blocks_) {
    return "an extent is in no size class";
  }
  return extents_.check(num_blocks, num_extents_, tags);
}

}  // namespace vllm::tagma
