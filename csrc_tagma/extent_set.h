// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

// Disjoint stretches of blocks, found by their ends and by their length.

#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kv_ranges.h"

namespace vllm::tagma {

// A fixed number of zeros, one for each block. A page of them takes memory when
// it is first written to.
template <typename T>
class BlockArray {
 public:
  explicit BlockArray(size_t size)
      : data_(static_cast<T*>(std::calloc(size, sizeof(T)))) {
    static_assert(std::is_trivial_v<T>);
    if (data_ == nullptr) {
      throw std::bad_alloc();
    }
  }

  T& operator[](size_t i) { return data_.get()[i]; }
  const T& operator[](size_t i) const { return data_.get()[i]; }

 private:
  struct Free {
    void operator()(T* data) const { std::free(data); }
  };
  std::unique_ptr<T, Free> data_;
};

// An element of a list: the blocks that stand for its neighbours, or kNoBlock.
struct Links {
  int32_t prev;
  int32_t next;
};

// Loops over a counter for each block, eight at a time: they are the price of a
// long range, and compilers do not vectorise them at every level.
class Counters {
 public:
  static void fill(int32_t* data, int32_t count, int32_t value) {
    if (count < 4) {
      for_rest(data, count, [value](int32_t& counter) { counter = value; });
      return;
    }
    const Four four = splat(value);
    store(data + count - 4, four);  // Those at the end are set twice.
    for (; count >= 8; count -= 8, data += 8) {
      store(data, four);
      store(data + 4, four);
    }
    if (count >= 4) {
      store(data, four);
    }
  }

  static void add(int32_t* data, int32_t count, int32_t value) {
    const Four four = splat(value);
    for (; count >= 8; count -= 8, data += 8) {
      store(data, load(data) + four);
      store(data + 4, load(data + 4) + four);
    }
    if (count >= 4) {
      store(data, load(data) + four);
      data += 4;
    }
    for_rest(data, count, [value](int32_t& counter) { counter += value; });
  }

  static bool all_equal(const int32_t* data, int32_t count, int32_t value) {
    return none(data, count, [value](auto x) { return x ^ value; });
  }
  // For counters that are not negative.
  static bool all_at_least(const int32_t* data, int32_t count, int32_t low) {
    return none(data, count, [low](auto x) { return (x - low) & INT32_MIN; });
  }
  // Whether all are in [1, kSmall].
  static constexpr int32_t kSmall = 1 << 30;
  static bool all_positive_and_small(const int32_t* data, int32_t count) {
    return none(data, count, [](auto x) { return (x - 1) & -kSmall; });
  }

 private:
  using Four = int32_t __attribute__((vector_size(16)));

  static Four splat(int32_t value) { return Four{value, value, value, value}; }
  static Four load(const int32_t* data) {
    Four four;
    std::memcpy(&four, data, sizeof(four));
    return four;
  }
  static void store(int32_t* data, Four four) {
    std::memcpy(data, &four, sizeof(four));
  }

  // Calls `visit(counter)` for the last `count` % 4 counters, from `data` on.
  template <typename Visit>
  static void for_rest(int32_t* data, int32_t count, Visit visit) {
    if (count & 2) {
      visit(data[0]);
      visit(data[1]);
      data += 2;
    }
    if (count & 1) {
      visit(*data);
    }
  }

  // Whether `bits(counter)` has none set, for all counters.
  template <typename Bits>
  static bool none(const int32_t* data, int32_t count, Bits bits) {
    if (count < 4) {
      int32_t any = 0;
      for (; count > 0; --count, ++data) {
        any |= bits(*data);
      }
      return any == 0;
    }
    Four any = bits(load(data + count - 4));  // Those are looked at twice.
    Four other = splat(0);
    for (; count >= 8; count -= 8, data += 8) {
      any |= bits(load(data));
      other |= bits(load(data + 4));
    }
    if (count >= 4) {
      other |= bits(load(data));
    }
    any |= other;
    std::array<uint64_t, 2> halves;
    std::memcpy(halves.data(), &any, sizeof(any));
    return (halves[0] | halves[1]) == 0;
  }
};

// A set of blocks that finds the member at or before a block, in O(log64).
class BlockSet {
 public:
  explicit BlockSet(int32_t num_blocks) {
    int32_t size = num_blocks;
    do {
      size = (size + 63) / 64;
      levels_.emplace_back(size);
    } while (size > 1);
  }

  bool contains(int32_t block) const {
    return levels_[0][block / 64] >> (block % 64) & 1;
  }

  void insert(int32_t block) {
    for (BlockArray<uint64_t>& level : levels_) {
      uint64_t& word = level[block / 64];
      const bool was_empty = word == 0;
      word |= uint64_t{1} << (block % 64);
      if (!was_empty) {
        return;
      }
      block /= 64;
    }
  }

  void erase(int32_t block) {
    for (BlockArray<uint64_t>& level : levels_) {
      uint64_t& word = level[block / 64];
      word &= ~(uint64_t{1} << (block % 64));
      if (word != 0) {
        return;
      }
      block /= 64;
    }
  }

  // The greatest member that is not greater than `block`, or kNoBlock.
  int32_t at_or_before(int32_t block) const {
    for (size_t i = 0; i < levels_.size(); ++i) {
      const uint64_t up_to = ~uint64_t{0} >> (63 - block % 64);
      if (const uint64_t word = levels_[i][block / 64] & up_to; word != 0) {
        int32_t found = block / 64 * 64 + last_bit(word);
        while (i-- > 0) {
          found = found * 64 + last_bit(levels_[i][found]);
        }
        return found;
      }
      block = block / 64 - 1;
      if (block < 0) {
        return kNoBlock;
      }
    }
    return kNoBlock;
  }

 private:
  static int last_bit(uint64_t word) { return 63 - __builtin_clzll(word); }

  std::vector<BlockArray<uint64_t>> levels_;
};

// Boundary tags: the length of a stretch at both of its ends, so that a
// neighbour is found in O(1). Positive at the first block, negative at the last
// one; a stretch of one block has just the positive one.
class BoundaryTags {
 public:
  explicit BoundaryTags(int32_t num_blocks)
      : num_blocks_(num_blocks), tags_(num_blocks) {}

  // Length of the stretch that starts at `block`, or 0.
  int32_t length_from(int32_t block) const {
    return block < num_blocks_ ? std::max(tags_[block], 0) : 0;
  }
  // Length of the stretch that ends before `block`, or 0.
  int32_t length_to(int32_t block) const {
    const int32_t tag = block > 0 ? tags_[block - 1] : 0;
    return tag == 1 ? 1 : std::max(-tag, 0);
  }

  void set(Range range) {
    tags_[range.end() - 1] = -range.count;
    tags_[range.start] = range.count;
  }
  void clear(Range range) { tags_[range.end() - 1] = tags_[range.start] = 0; }

 private:
  int32_t num_blocks_;
  BlockArray<int32_t> tags_;
};

// Extents are in lists by size class, with a bitmap over the classes, so that
// the longest ones are found in O(1). What is known of an extent is in one
// record; records are used again, so that those of a search lie close together.
class ExtentSet {
 public:
  // A position in the walk over the extents from the top size class down.
  struct Cursor {
    int size_class;
    int32_t record;

    bool at_end() const { return record == kNone; }
  };

  explicit ExtentSet(int32_t num_blocks)
      // The tag behind the last block is never set.
      : tags_(num_blocks + 1), records_(num_blocks + 1) {}

  int32_t num_extents() const { return num_extents_; }
  int32_t num_blocks() const { return num_blocks_; }

  // Length of the extent that starts at `block`, or 0.
  int32_t length_from(int32_t block) const {
    return records_[std::max(tags_[block], kNone)].count;
  }
  // Length of the extent that ends before `block`, or 0.
  int32_t length_to(int32_t block) const {
    const int32_t tag = block > 0 ? tags_[block - 1] : kNone;
    if (tag > 0) {
      return records_[tag].count == 1 ? 1 : 0;
    }
    return records_[-tag].count;
  }

  void insert(Range extent) {
    const int32_t record = take_record();
    records_[record].start = extent.start;
    records_[record].count = extent.count;
    tags_[extent.end() - 1] = -record;
    tags_[extent.start] = record;
    link(size_class_of(extent.count), record);
    ++num_extents_;
    num_blocks_ += extent.count;
  }

  void remove(Range extent) {
    const int32_t record = tags_[extent.start];
    tags_[extent.end() - 1] = tags_[extent.start] = kNone;
    unlink(size_class_of(extent.count), record);
    records_[record].next = spare_;
    spare_ = record;
    --num_extents_;
    num_blocks_ -= extent.count;
  }

  // Inserts `range` as one with the extents beside it. Returns the extent.
  Range merge(Range range) {
    if (const int32_t before = length_to(range.start); before > 0) {
      range = {range.start - before, range.count + before};
      remove({range.start, before});
    }
    if (const int32_t behind = length_from(range.end()); behind > 0) {
      remove({range.end(), behind});
      range.count += behind;
    }
    insert(range);
    return range;
  }

  // Removes the first `count` blocks of `extent`: growth into its front is the
  // most frequent operation, and mostly leaves the lists alone.
  [[gnu::always_inline]] inline void cut_front(Range extent, int32_t count) {
    if (count == extent.count) {
      remove(extent);
      return;
    }
    const int32_t record = tags_[extent.start];
    const Range rest{extent.start + count, extent.count - count};
    records_[record].start = rest.start;
    records_[record].count = rest.count;
    tags_[extent.start] = kNone;
    tags_[rest.start] = record;
    num_blocks_ -= count;
    // The lengths of a size class are equal in their leading bits.
    const int shift = log2_floor(extent.count | kSteps) - kStepBits;
    if (extent.count >> shift != rest.count >> shift) {
      relink(extent.count, record);
    }
  }

  // Removes `part` of `extent`.
  void cut(Range extent, Range part) {
    if (part.start == extent.start) {
      cut_front(extent, part.count);
      return;
    }
    remove(extent);
    if (part.end() < extent.end()) {
      insert({part.end(), extent.end() - part.end()});
    }
    if (part.start > extent.start) {
      insert({extent.start, part.start - extent.start});
    }
  }

  Cursor top() const { return first_at_or_below(kLevels * kSteps - 1); }
  Cursor after(Cursor at) const {
    const int32_t next = records_[at.record].next;
    return next != kNone ? Cursor{at.size_class, next}
                         : first_at_or_below(at.size_class - 1);
  }
  // The walk the other way, from the size class of `length` up: what is in that
  // one may be shorter.
  Cursor bottom(int32_t length) const {
    return first_at_or_above(size_class_of(length));
  }
  Cursor above(Cursor at) const {
    const int32_t next = records_[at.record].next;
    return next != kNone ? Cursor{at.size_class, next}
                         : first_at_or_above(at.size_class + 1);
  }
  Range at(Cursor at) const { return range_of(at.record); }

  // A longest extent, of length 0 if there is none. One look below
  // kExactLengths; above, a scan of the top size class, whose lengths differ by
  // less than 1/32.
  Range longest() const {
    const Cursor top = this->top();
    Range longest{0, 0};
    for (int32_t record = top.record; record != kNone;
         record = records_[record].next) {
      if (records_[record].count > longest.count) {
        longest = range_of(record);
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

  // Not a record: its length is 0.
  static constexpr int32_t kNone = 0;

  struct Record {
    int32_t start;
    int32_t count;
    int32_t prev;  // In the list of its size class, or kNone.
    int32_t next;
  };

  static int log2_floor(uint32_t v) { return 31 - __builtin_clz(v); }

  static int size_class_of(int32_t length) {
    if (length < kSteps) {
      return length;
    }
    const int shift = log2_floor(length) - kStepBits;
    return (shift + 1) * kSteps + ((length >> shift) & (kSteps - 1));
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

  Range range_of(int32_t record) const {
    return {records_[record].start, records_[record].count};
  }

  int32_t take_record() {
    if (spare_ == kNone) {
      return ++num_records_;
    }
    const int32_t record = spare_;
    spare_ = records_[record].next;
    return record;
  }

  // For a record whose length was `count`.
  [[gnu::noinline]] void relink(int32_t count, int32_t record) {
    unlink(size_class_of(count), record);
    link(size_class_of(records_[record].count), record);
  }

  void link(int c, int32_t record) {
    const int32_t head = heads_[c];
    records_[record].prev = kNone;
    records_[record].next = head;
    heads_[c] = record;
    if (head != kNone) {
      records_[head].prev = record;
      return;
    }
    bitmap_[c / kSteps] |= uint32_t{1} << (c % kSteps);
    summary_ |= uint32_t{1} << (c / kSteps);
  }

  void unlink(int c, int32_t record) {
    const int32_t prev = records_[record].prev;
    const int32_t next = records_[record].next;
    if (next != kNone) {
      records_[next].prev = prev;
    }
    if (prev != kNone) {
      records_[prev].next = next;
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

  // An extent's record at its first block, and negated at its last one if that
  // is another: so a neighbour is found in O(1).
  BlockArray<int32_t> tags_;
  BlockArray<Record> records_;
  int32_t num_records_ = 0;  // That were ever used.
  int32_t spare_ = kNone;    // The first unused one of these, linked by `next`.
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
    for (int32_t r = heads_[c]; r != kNone; prev = r, r = records_[r].next) {
      const Range extent = range_of(r);
      const int32_t last_tag = extent.count == 1 ? r : -r;
      if (extent.count <= 0 || tags_[extent.start] != r ||
          tags_[extent.end() - 1] != last_tag ||
          size_class_of(extent.count) != c || records_[r].prev != prev ||
          ++listed > num_extents_) {
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
  for (int32_t r = spare_; r != kNone && listed <= num_records_;
       r = records_[r].next) {
    ++listed;
  }
  if (listed != num_records_ || records_[kNone].count != 0) {
    return "a record is lost";
  }
  for (int32_t b = 0; b <= num_blocks; ++b) {
    tags -= tags_[b] != kNone;
  }
  return tags == 0 ? "" : "there is a boundary tag inside an extent";
}

}  // namespace vllm::tagma
