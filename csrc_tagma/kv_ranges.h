// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

// Ranges of KV blocks, and what an operation on them came to.

#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace vllm::tagma {

inline constexpr int32_t kNoBlock = -1;
inline constexpr int32_t kMaxBlocks = 1 << 26;

struct Range {
  int32_t start;
  int32_t count;

  int32_t end() const { return start + count; }
};

inline bool operator==(const Range& a, const Range& b) {
  return a.start == b.start && a.count == b.count;
}

enum class Status {
  kOk,
  kBadCount,       // A count below one.
  kBadBlock,       // A block id outside the pool.
  kBlockFree,      // A reference was asked for on a block that is free.
  kBlockNotHeld,   // The block has no (or too few) request references.
  kAlreadyCached,  // The block has its cache reference already.
  kNotCached,      // The block has no cache reference.
  kIndexed,        // The prefix index sets the cache references of this pool.
  kTooManyRefs,    // The block's request references would overflow.
  kOutOfBlocks,    // Too few blocks are free or cache-only.
  kNoExtent,       // Enough blocks, but not one contiguous stretch of them.
  kRangeCap,       // The request would need more than `max_ranges` ranges.
};

// What an operation came to. Unless `status` is kOk nothing has changed, and
// `value` names the cause: a block id, a number of blocks or of ranges.
struct [[nodiscard]] Result {
  Status status = Status::kOk;
  int64_t value = 0;

  bool ok() const { return status == Status::kOk; }
};

// Grows `v`'s capacity geometrically for `extra` more elements.
template <typename T>
[[gnu::noinline]] void reserve_more(std::vector<T>& v, size_t extra) {
  const size_t needed = v.size() + extra;
  if (needed > v.capacity()) {
    v.reserve(std::max(needed, 2 * v.capacity()));
  }
}

// A vector of ranges that keeps its first ones in itself: most requests have no
// more, and then allocate no memory.
class RangeVector {
 public:
  RangeVector() = default;
  ~RangeVector() { free_heap(); }
  RangeVector(const RangeVector& other) { *this = other; }
  RangeVector(RangeVector&& other) noexcept { *this = std::move(other); }
  RangeVector& operator=(const RangeVector& other) {
    if (this != &other) {
      reserve(other.size_);
      std::copy_n(other.data_, other.size_, data_);
      size_ = other.size_;
    }
    return *this;
  }
  RangeVector& operator=(RangeVector&& other) noexcept {
    if (this == &other) {
      return *this;
    }
    free_heap();
    data_ = other.is_inline() ? inline_.data() : other.data_;
    inline_ = other.inline_;
    size_ = other.size_;
    capacity_ = other.capacity_;
    other.data_ = other.inline_.data();
    other.size_ = 0;
    other.capacity_ = kInline;
    return *this;
  }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  size_t capacity() const { return capacity_; }
  const Range* data() const { return data_; }
  const Range* begin() const { return data_; }
  const Range* end() const { return data_ + size_; }
  const Range& operator[](size_t i) const { return data_[i]; }
  const Range& front() const { return data_[0]; }
  Range& front() { return data_[0]; }
  const Range& back() const { return data_[size_ - 1]; }
  Range& back() { return data_[size_ - 1]; }

  // Appends a range; may fail to allocate memory unless there is capacity.
  void push_back(Range range) {
    if (size_ == capacity_) {
      reserve(2 * size_t{capacity_});
    }
    // Member by member: copying a whole Range that was just put together waits
    // for both of its stores.
    data_[size_].start = range.start;
    data_[size_].count = range.count;
    ++size_;
  }
  void clear() { size_ = 0; }

  [[gnu::noinline]] void reserve(size_t capacity) {
    if (capacity <= capacity_) {
      return;
    }
    auto* data = new Range[capacity];
    std::copy_n(data_, size_, data);
    free_heap();
    data_ = data;
    capacity_ = static_cast<uint32_t>(capacity);
  }

 private:
  static constexpr uint32_t kInline = 2;

  bool is_inline() const { return data_ == inline_.data(); }
  void free_heap() {
    if (!is_inline()) {
      delete[] data_;
    }
  }

  std::array<Range, kInline> inline_;  // Not initialised.
  Range* data_ = inline_.data();
  uint32_t size_ = 0;
  uint32_t capacity_ = kInline;
};

template <typename Ranges>
bool operator==(const RangeVector& a, const Ranges& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

// Blocks in order, as ranges. Adjacent ranges merge when appended.
class RangeList {
 public:
  RangeList() = default;
  // What is moved away is an empty list.
  RangeList(RangeList&& other) noexcept { *this = std::move(other); }
  RangeList& operator=(RangeList&& other) noexcept {
    if (this != &other) {
      ranges_ = std::move(other.ranges_);
      num_blocks_ = other.num_blocks_;
      grown_ = other.grown_;
      expected_ = other.expected_;
      bucket_ = other.bucket_;
      ends_ = std::move(other.ends_);
      other.clear();
    }
    return *this;
  }
  // A copy has the same blocks but is no request of any allocator.
  RangeList(const RangeList& other)
      : ranges_(other.ranges_),
        num_blocks_(other.num_blocks_),
        ends_(other.ends_) {}
  RangeList& operator=(const RangeList& other) {
    return *this = RangeList(other);
  }

  int64_t num_blocks() const { return num_blocks_; }
  size_t num_ranges() const { return ranges_.size(); }
  bool empty() const { return ranges_.empty(); }
  const RangeVector& ranges() const { return ranges_; }

  // The block at `index`, which must be in [0, num_blocks()). O(log ranges),
  // and O(1) in the last range, where a request decodes.
  int32_t at(int64_t index) const {
    const Range& last = ranges_.back();
    const int64_t from_end = num_blocks_ - index;
    if (from_end <= last.count) {
      return last.end() - static_cast<int32_t>(from_end);
    }
    const size_t r = range_of(index);
    return ranges_[r].start + static_cast<int32_t>(index - first_of(r));
  }

  // Calls `visit(block)` for the blocks at [start, stop), which must be in
  // bounds, until one call returns false. Returns whether all returned true.
  template <typename Visit>
  bool for_each(int64_t start, int64_t stop, Visit visit) const {
    if (start >= stop) {
      return true;
    }
    int64_t left = stop - start;
    size_t r = range_of(start);
    int64_t offset = start - first_of(r);
    for (; left > 0; ++r, offset = 0) {
      const Range& range = ranges_[r];
      const int64_t n = std::min(left, range.count - offset);
      const int32_t begin = range.start + static_cast<int32_t>(offset);
      for (int32_t i = 0; i < n; ++i) {
        if (!visit(begin + i)) {
          return false;
        }
      }
      left -= n;
    }
    return true;
  }

  // The blocks at [start, stop), which must be in bounds. O(their ranges).
  RangeList part(int64_t start, int64_t stop) const {
    RangeList result;
    if (start >= stop) {
      return result;
    }
    int64_t left = stop - start;
    size_t r = range_of(start);
    int64_t offset = start - first_of(r);
    for (; left > 0; ++r, offset = 0) {
      const auto n = static_cast<int32_t>(
          std::min<int64_t>(left, ranges_[r].count - offset));
      result.append({ranges_[r].start + static_cast<int32_t>(offset), n});
      left -= n;
    }
    return result;
  }

  void reserve(size_t extra_ranges) {
    const size_t ranges = ranges_.size() + extra_ranges;
    if (ranges > ranges_.capacity()) {
      ranges_.reserve(std::max(ranges, 2 * ranges_.capacity()));
    }
    if (ranges > ends_.capacity() + 1) {
      reserve_more(ends_, ranges - 1 - ends_.size());
    }
  }

  // Whether append() would lengthen the last range instead of adding one.
  bool merges(int32_t start) const {
    return !ranges_.empty() && ranges_.back().end() == start;
  }

  [[gnu::always_inline]] inline void append(Range range) {
    if (merges(range.start)) {
      lengthen(range.count);
      return;
    }
    if (!ranges_.empty()) {
      append_end();
    }
    ranges_.push_back(range);
    num_blocks_ += range.count;
  }

  // Replaces what is in the list by `range`.
  [[gnu::always_inline]] inline void assign(Range range) {
    if (ranges_.size() != 1) {
      clear();
      ranges_.push_back(range);
    }
    ranges_.front().start = range.start;
    ranges_.front().count = range.count;
    num_blocks_ = range.count;
    forget_request();
  }

  // Appends the `count` blocks behind the last range, of which there is one.
  void lengthen(int32_t count) {
    ranges_.back().count += count;
    num_blocks_ += count;
  }

  void clear() {
    ranges_.clear();
    ends_.clear();
    num_blocks_ = 0;
    forget_request();
  }

 private:
  friend class KVAllocator;

  void forget_request() {
    grown_ = kNotExtended;
    bucket_ = kNoBucket;
    expected_ = 0;
  }

  [[gnu::noinline]] void append_end() {
    reserve(1);  // So that either both are appended or none is.
    ends_.push_back(num_blocks_);
  }

  size_t range_of(int64_t index) const {
    return std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin();
  }

  // Index of the range's first block.
  int64_t first_of(size_t range) const {
    return range == 0 ? 0 : ends_[range - 1];
  }

  RangeVector ranges_;
  int64_t num_blocks_ = 0;

  // Kept for the allocator whose request this is.
  static constexpr int8_t kNoBucket = -1;
  static constexpr int32_t kNotExtended = -1;
  int32_t grown_ = kNotExtended;  // Blocks added since its first ones.
  int32_t expected_ = 0;          // Blocks that are sure to follow.
  int8_t bucket_ = kNoBucket;     // Of the histogram that it is counted in.

  // Index of the block behind each range but the last one: most lists have a
  // single range, and need none.
  std::vector<int64_t> ends_;
};

}  // namespace vllm::tagma
