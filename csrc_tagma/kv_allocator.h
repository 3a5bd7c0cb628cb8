// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

// The range allocator of the tagma KV cache backend.
//
// A pool of `num_blocks` KV blocks; a request holds its blocks as few
// contiguous ranges. Two kinds of reference are counted apart: any number of
// request references and at most one cache reference (the block is in the
// prefix cache). With neither, a block is free; with the cache reference only,
// it is cache-only and may be evicted, least recently used first.
//
// Free blocks form extents. An extent's length is stored at both of its ends
// (boundary tags), so merging is O(1). Extents are kept in lists by size class,
// with a bitmap over the classes, so finding a largest one is O(1). Everything
// per block lives in arrays that are allocated once.
//
// Not thread-safe: one caller at a time.

#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kv_ranges.h"
#include "prefix_index.h"

namespace vllm::tagma {

// Placement policy: the largest extent, leaving headroom for the request that
// may grow into it, and a headroom that doubles each time a request spills.
// Simulated with 512 growing chat requests at 90 % occupancy, a request has
// about four ranges; with first fit it has about twenty.
struct GrowthHeadroom {
  // Blocks a request is expected to grow by. Too little makes it spill early,
  // too much only moves the next request, since slack is shared in proportion.
  static constexpr int32_t kInitial = 16;
  // Headroom is at most this part of the pool: a small pool is not cut up.
  static constexpr int32_t kPoolShare = 64;
  // Most extents looked at, from the largest size class down. The largest ones
  // are often those that a request is about to grow into.
  static constexpr int kCandidates = 256;

  static int32_t next(int32_t headroom, bool spilled, int32_t num_blocks) {
    const int32_t limit = num_blocks / kPoolShare;
    if (headroom == 0) {
      return std::min(kInitial, limit);
    }
    return spilled ? std::min(2 * headroom, limit) : headroom;
  }

  // How good it is to take `count` of an extent of `length` blocks of which
  // the request in front of it wants `reserved`.
  static int32_t score(int32_t length, int32_t count, int32_t reserved) {
    return length - count - reserved;
  }

  // Where in that extent: behind `reserved`, or, when there is not enough for
  // both, slack shared in proportion with the own headroom behind `count`.
  static int32_t offset(int32_t length, int32_t count, int32_t reserved,
                        int32_t own) {
    const int64_t slack = length - count;
    const int64_t wanted = int64_t{reserved} + std::max(own, 1);
    return static_cast<int32_t>(slack >= wanted ? reserved
                                                : slack * reserved / wanted);
  }
};

class KVAllocator {
 public:
  using Placement = GrowthHeadroom;

  // `num_blocks` in [1, kMaxBlocks] and a multiple of `alignment` >= 1. Starts
  // and counts of what is allocated are multiples of `alignment`; counts are
  // rounded up. `max_ranges` caps a request's ranges, 0 means no cap.
  KVAllocator(int32_t num_blocks, int32_t alignment, int32_t max_ranges)
      : num_blocks_(num_blocks),
        alignment_(alignment),
        max_ranges_(max_ranges),
        refs_(num_blocks, 0),
        cached_(num_blocks, kUncached),
        extent_(num_blocks, 0),
        headroom_(num_blocks, 0),
        prev_(num_blocks, kNoBlock),
        next_(num_blocks, kNoBlock) {
    heads_.fill(kNoBlock);
    evicted_.reserve(num_blocks);
    plan_.reserve(std::min(num_blocks, max_ranges));
    available_ = num_blocks;
    insert_extent({0, num_blocks});
  }

  KVAllocator(const KVAllocator&) = delete;
  KVAllocator& operator=(const KVAllocator&) = delete;

  int32_t num_blocks() const { return num_blocks_; }
  int32_t alignment() const { return alignment_; }
  int32_t max_ranges() const { return max_ranges_; }
  int32_t num_extents() const { return num_extents_; }
  int32_t num_cache_only_blocks() const { return num_cache_only_; }

  // Blocks that an allocation can get: free or cache-only, in an aligned group
  // of which no request holds a block.
  int32_t num_free_blocks() const { return available_; }

  // Length of the largest free extent. O(1) below 64 blocks; above, one scan of
  // the top size class, whose lengths differ by less than 1/32.
  int32_t largest_extent() const {
    int32_t largest = 0;
    for (int32_t e = top().block; e != kNoBlock; e = next_[e]) {
      largest = std::max(largest, extent_[e]);
      if (largest < kExactLengths) {
        break;
      }
    }
    return largest;
  }

  bool contains(int64_t block) const {
    return block >= 0 && block < num_blocks_;
  }
  bool is_cached(int32_t block) const { return cached_[block] == kCached; }
  bool is_held(int32_t block) const { return refs_[block] > 0; }
  int32_t ref_count(int32_t block) const { return refs_[block]; }

  // Blocks evicted by extend() and allocate() since clear_evicted(), in order.
  const std::vector<int32_t>& evicted() const { return evicted_; }
  void clear_evicted() { evicted_.clear(); }

  // Takes one contiguous range. Evicts, least recently used first, until an
  // extent is long enough; whether that can succeed is found out before, by a
  // scan of the pool. O(num_blocks), not for the hot path.
  Result allocate(int64_t count, Range* range) {
    if (count < 1) {
      return {Status::kBadCount, count};
    }
    const int64_t rounded = align_up(count);
    if (rounded > available_) {
      return {Status::kOutOfBlocks, available_};
    }
    const auto n = static_cast<int32_t>(rounded);
    Piece piece;
    if (!place(top(), n, 0, num_extents_, &piece)) {
      const int32_t longest = longest_run_not_held();
      if (longest < n) {
        return {Status::kNoExtent, longest};
      }
      reserve_more(evicted_, num_cache_only_);
      if (index_ != nullptr) {
        index_->reserve_evicted(num_cache_only_);
      }
      Range extent;
      do {
        extent = evict_oldest();
      } while (extent.count < n);
      piece = {extent.start, {extent.start, n}};
    }
    take(piece);
    *range = piece.range;
    return {};
  }

  // Appends `count` blocks to `request`: in place behind its last range where
  // the blocks are free, else in the largest extents. Evicts what is missing,
  // least recently used first. `appended` then holds just the new blocks.
  //
  // O(1) per range added and per block taken or evicted. An extent counts as
  // largest if it is in the top size class, so one that is up to 1/32 longer
  // may be passed over: near the cap, that can cost a range.
  Result extend(RangeList* request, int64_t count, RangeList* appended) {
    if (count < 1) {
      return {Status::kBadCount, count};
    }
    const int64_t rounded = align_up(count);
    if (rounded > available_) {
      return {Status::kOutOfBlocks, available_};
    }
    const auto n = static_cast<int32_t>(rounded);
    appended->clear();
    if (n > free_) {
      if (index_ != nullptr) {
        index_->reserve_evicted(num_cache_only_);
      }
      const Result planned = plan_eviction(request, n, appended);
      if (!planned.ok()) {
        return planned;
      }
      while (free_ < n) {
        evict_oldest();
      }
    }
    const int32_t behind = extent_behind(*request);
    const int32_t in_place =
        behind == kNoBlock ? 0 : std::min(n, extent_[behind]);
    const bool spilled = in_place < n;
    const int32_t headroom =
        Placement::next(request->headroom_, spilled, num_blocks_);
    plan(n - in_place, headroom, behind);
    const size_t ranges = request->num_ranges() + plan_.size();
    if (exceeds_cap(ranges)) {
      return {Status::kRangeCap, static_cast<int64_t>(ranges)};
    }
    request->reserve(plan_.size());
    appended->reserve(plan_.size() + 1);

    // Nothing below can fail.
    if (!request->empty()) {
      headroom_[request->ranges_.back().end() - 1] = 0;
    }
    if (in_place > 0) {
      append_taken({behind, {behind, in_place}}, request, appended);
    }
    for (const Piece& piece : plan_) {
      append_taken(piece, request, appended);
    }
    request->headroom_ = headroom;
    headroom_[request->ranges_.back().end() - 1] = headroom;
    return {};
  }

  // Adds a request reference to each of `blocks`, none of which may be free,
  // and appends them to `request`.
  Result acquire(RangeList* request, const RangeList& blocks) {
    if (blocks.empty()) {
      return {};
    }
    const bool merges = request->merges(blocks.ranges_.front().start);
    const size_t ranges =
        request->num_ranges() + blocks.num_ranges() - (merges ? 1 : 0);
    if (exceeds_cap(ranges)) {
      return {Status::kRangeCap, static_cast<int64_t>(ranges)};
    }
    request->reserve(blocks.num_ranges());
    const Result retained = retain(blocks);
    if (retained.ok()) {
      for (const Range& range : blocks.ranges_) {
        request->append(range);
      }
    }
    return retained;
  }

  // Adds a request reference to each of `blocks`, none of which may be free.
  Result retain(const RangeList& blocks) {
    if (const Result checked = check_blocks(blocks); !checked.ok()) {
      return checked;
    }
    const int64_t most =
        INT32_MAX - std::min<int64_t>(blocks.num_blocks(), INT32_MAX);
    for (const Range& range : blocks.ranges_) {
      for (int32_t b = range.start; b < range.end(); ++b) {
        if (refs_[b] == 0 && !is_cached(b)) {
          return {Status::kBlockFree, b};
        }
        if (refs_[b] > most) {
          return {Status::kTooManyRefs, b};
        }
      }
    }
    for (const Range& range : blocks.ranges_) {
      for (int32_t b = range.start; b < range.end(); ++b) {
        add_ref(b);
      }
    }
    return {};
  }

  // Drops a request reference of each block, last block first, and clears the
  // list. Blocks that only the cache holds then are the most recently used.
  Result release(RangeList* blocks) {
    if (const Result checked = check_releasable(*blocks); !checked.ok()) {
      return checked;
    }
    for (auto r = blocks->ranges_.rbegin(); r != blocks->ranges_.rend(); ++r) {
      release_range(*r);
    }
    blocks->clear();
    return {};
  }

  // Lets `index` name the cached blocks; null takes it away. From then on a
  // block is cached exactly while it has an entry there: cache_prefix() sets
  // both, and whatever drops the cache reference erases the entry. No block may
  // be cached now. The index must outlive this, or be taken away.
  Result attach(PrefixIndex* index) {
    for (int32_t b = 0; b < num_blocks_; ++b) {
      if (is_cached(b)) {
        return {Status::kAlreadyCached, b};
      }
    }
    index_ = index;
    return {};
  }

  // Gives each of `blocks` at [start, stop), which must be in bounds and held,
  // its cache reference and an index entry under its key; keys[0] is for the
  // block at `start`. A block that is cached under the same key is skipped; one
  // that is cached under another key, as a partial block is that filled up,
  // moves to the new one. `cached` counts the blocks that were not cached.
  Result cache_prefix(const RangeList& blocks, int64_t start, int64_t stop,
                      const BlockKey* keys, int64_t* cached) {
    if (const Result checked = check_blocks(blocks); !checked.ok()) {
      return checked;
    }
    int32_t not_held = kNoBlock;
    const bool held = blocks.for_each(start, stop, [&](int32_t b) {
      not_held = b;
      return is_held(b);
    });
    if (!held) {
      return {Status::kBlockNotHeld, not_held};
    }
    index_->reserve(keys, stop - start);
    *cached = 0;
    blocks.for_each(start, stop, [&](int32_t b) {
      const BlockKey& key = *keys++;
      if (!is_cached(b)) {
        cached_[b] = kCached;
        ++*cached;
      } else if (index_->key_of(b) == key) {
        return true;
      } else {
        index_->erase(b);
      }
      index_->insert(b, key);
      return true;
    });
    return {};
  }

  // Drops the cache reference of each of `blocks` that has one.
  Result uncache(const RangeList& blocks) {
    if (const Result checked = check_blocks(blocks); !checked.ok()) {
      return checked;
    }
    blocks.for_each(0, blocks.num_blocks(), [&](int32_t b) {
      (void)uncache(b);
      return true;
    });
    return {};
  }

  // Drops every cache reference. Scans the pool.
  void uncache_all() {
    for (int32_t b = 0; b < num_blocks_; ++b) {
      (void)uncache(b);
    }
  }

  // Sets the cache reference of each of `blocks`, which must be held and must
  // not be cached.
  Result cache(const RangeList& blocks) {
    if (const Result checked = check_blocks(blocks); !checked.ok()) {
      return checked;
    }
    int64_t done = 0;
    Result result;
    blocks.for_each(0, blocks.num_blocks(), [&](int32_t b) {
      result = cache(b);
      done += result.ok();
      return result.ok();
    });
    if (!result.ok()) {
      blocks.for_each(0, done, [&](int32_t b) {
        cached_[b] = kUncached;
        return true;
      });
    }
    return result;
  }

  // How many of `blocks` no request holds. An acquire of them takes as many
  // from num_free_blocks().
  int64_t count_unreferenced(const RangeList& blocks) const {
    int64_t count = 0;
    for (const Range& range : blocks.ranges_) {
      count += std::count(refs_.begin() + range.start,
                          refs_.begin() + range.end(), 0);
    }
    return count;
  }

  // Sets the block's cache reference; a request must hold the block. Not for a
  // pool with an index.
  Result cache(int32_t block) {
    if (index_ != nullptr) {
      return {Status::kIndexed, block};
    }
    if (refs_[block] == 0) {
      return {Status::kBlockNotHeld, block};
    }
    if (is_cached(block)) {
      return {Status::kAlreadyCached, block};
    }
    cached_[block] = kCached;
    return {};
  }

  // Drops the block's cache reference; a cache-only block becomes free.
  Result uncache(int32_t block) {
    if (!is_cached(block)) {
      return {Status::kNotCached, block};
    }
    drop_cache_ref(block);
    if (refs_[block] == 0) {
      lru_remove(block);
      free_run({block, 1});
    }
    return {};
  }

  // The first broken invariant in words, or an empty string. Scans the pool.
  std::string check_invariants() const;

  // Everything that later operations depend on, as bytes to compare.
  std::string dump() const;

 private:
  // Size classes as in TLSF: 32 linear steps per power of two. Lengths below
  // kExactLengths have a class of their own.
  static constexpr int kStepBits = 5;
  static constexpr int kSteps = 1 << kStepBits;
  static constexpr int32_t kExactLengths = 2 * kSteps;
  static constexpr int kLevels = 27 - kStepBits + 1;

  enum CacheState : uint8_t {
    kUncached,
    kCached,
    kEvictionPlanned,  // Only inside plan_eviction().
  };

  // `range` is to be taken out of the extent that starts at `extent`.
  struct Piece {
    int32_t extent;
    Range range;
  };

  // A position in the walk over the extents from the top size class down.
  struct Cursor {
    int size_class;
    int32_t block;
  };

  static int log2_floor(uint32_t v) { return 31 - __builtin_clz(v); }

  static int size_class_of(int32_t length) {
    if (length < kSteps) {
      return length;
    }
    const int shift = log2_floor(length) - kStepBits;
    return (shift + 1) * kSteps + ((length >> shift) & (kSteps - 1));
  }

  // The greatest length in a size class.
  static int32_t max_length(int size_class) {
    const int shift = std::max(size_class / kSteps - 1, 0);
    return ((size_class - shift * kSteps + 1) << shift) - 1;
  }

  int64_t align_up(int64_t count) const {
    // The bound keeps the sum from overflowing; any larger count fails alike.
    const int64_t n = std::min<int64_t>(count, int64_t{num_blocks_} + 1);
    return (n + alignment_ - 1) / alignment_ * alignment_;
  }

  int32_t align_down(int32_t block) const { return block - block % alignment_; }

  bool exceeds_cap(size_t ranges) const {
    return max_ranges_ > 0 && ranges > static_cast<size_t>(max_ranges_);
  }

  // ---- Extents: boundary tags and size-class lists. ----

  Cursor top() const {
    return summary_ == 0 ? Cursor{0, kNoBlock}
                         : first_at_or_below(kLevels * kSteps - 1);
  }

  Cursor first_at_or_below(int size_class) const {
    if (size_class < 0) {
      return {0, kNoBlock};
    }
    const int level = size_class / kSteps;
    const uint32_t step_mask = UINT32_MAX >> (31 - size_class % kSteps);
    if (const uint32_t steps = bitmap_[level] & step_mask; steps != 0) {
      const int found = level * kSteps + log2_floor(steps);
      return {found, heads_[found]};
    }
    const uint32_t levels = summary_ & ((uint32_t{1} << level) - 1);
    if (levels == 0) {
      return {0, kNoBlock};
    }
    const int lower = log2_floor(levels);
    const int found = lower * kSteps + log2_floor(bitmap_[lower]);
    return {found, heads_[found]};
  }

  Cursor after(Cursor at) const {
    const int32_t next = next_[at.block];
    return next != kNoBlock ? Cursor{at.size_class, next}
                            : first_at_or_below(at.size_class - 1);
  }

  void insert_extent(Range extent) {
    extent_[extent.start] = extent.count;
    extent_[extent.end() - 1] = extent.count;
    const int c = size_class_of(extent.count);
    const int32_t head = heads_[c];
    prev_[extent.start] = kNoBlock;
    next_[extent.start] = head;
    if (head != kNoBlock) {
      prev_[head] = extent.start;
    }
    heads_[c] = extent.start;
    bitmap_[c / kSteps] |= uint32_t{1} << (c % kSteps);
    summary_ |= uint32_t{1} << (c / kSteps);
    ++num_extents_;
    free_ += extent.count;
  }

  void remove_extent(Range extent) {
    extent_[extent.start] = 0;
    extent_[extent.end() - 1] = 0;
    const int c = size_class_of(extent.count);
    const int32_t prev = prev_[extent.start];
    const int32_t next = next_[extent.start];
    if (next != kNoBlock) {
      prev_[next] = prev;
    }
    if (prev != kNoBlock) {
      next_[prev] = next;
    } else {
      heads_[c] = next;
      if (next == kNoBlock) {
        bitmap_[c / kSteps] &= ~(uint32_t{1} << (c % kSteps));
        if (bitmap_[c / kSteps] == 0) {
          summary_ &= ~(uint32_t{1} << (c / kSteps));
        }
      }
    }
    --num_extents_;
    free_ -= extent.count;
  }

  // Makes the aligned groups that `run` completed free and merges them with
  // the extents beside them. Returns the extent, of length 0 if there is none.
  Range free_run(Range run) {
    int32_t start = align_down(run.start);
    int32_t end = align_down(run.end() - 1) + alignment_;
    if (!is_group_idle(start)) {
      start += alignment_;
    }
    if (start < end && !is_group_idle(end - alignment_)) {
      end -= alignment_;
    }
    if (start >= end) {
      return {start, 0};
    }
    if (start > 0 && extent_[start - 1] > 0) {
      const int32_t count = extent_[start - 1];
      start -= count;
      remove_extent({start, count});
    }
    if (end < num_blocks_ && extent_[end] > 0) {
      const int32_t count = extent_[end];
      remove_extent({end, count});
      end += count;
    }
    insert_extent({start, end - start});
    return {start, end - start};
  }

  // Gives the blocks of `piece` one request reference each.
  void take(const Piece& piece) {
    const Range extent{piece.extent, extent_[piece.extent]};
    const Range& range = piece.range;
    remove_extent(extent);
    if (range.end() < extent.end()) {
      insert_extent({range.end(), extent.end() - range.end()});
    }
    if (range.start > extent.start) {
      insert_extent({extent.start, range.start - extent.start});
    }
    std::fill_n(refs_.begin() + range.start, range.count, 1);
    available_ -= range.count;
  }

  void append_taken(const Piece& piece, RangeList* request,
                    RangeList* appended) {
    take(piece);
    request->append(piece.range);
    appended->append(piece.range);
  }

  // ---- Placement. ----

  // Start of the extent directly behind the request's last range, or kNoBlock.
  int32_t extent_behind(const RangeList& request) const {
    if (request.empty()) {
      return kNoBlock;
    }
    const int32_t end = request.ranges_.back().end();
    return end < num_blocks_ && extent_[end] > 0 ? end : kNoBlock;
  }

  // The best place for `count` blocks in one of the `window` extents from `at`
  // on. Returns false if none of them is long enough.
  bool place(Cursor at, int32_t count, int32_t headroom, int window,
             Piece* piece, int32_t skip = kNoBlock) const {
    int32_t best = INT32_MIN;
    for (int i = 0; i < window && at.block != kNoBlock; ++i, at = after(at)) {
      const int32_t longest = max_length(at.size_class);
      if (longest < count || Placement::score(longest, count, 0) <= best) {
        break;
      }
      const int32_t start = at.block;
      const int32_t length = extent_[start];
      if (start == skip || length < count) {
        continue;
      }
      const int32_t reserved = start > 0 ? headroom_[start - 1] : 0;
      const int32_t score = Placement::score(length, count, reserved);
      if (score > best) {
        const int32_t offset =
            Placement::offset(length, count, reserved, headroom);
        best = score;
        *piece = {start, {start + align_down(offset), count}};
      }
    }
    return best != INT32_MIN;
  }

  // Plans `count` blocks of the free ones, without `skip`, into `plan_`: whole
  // extents from the top size class down until one can hold the rest. Stops
  // early once the plan is beyond the cap.
  void plan(int32_t count, int32_t headroom, int32_t skip) {
    plan_.clear();
    for (Cursor at = top(); count > 0; at = after(at)) {
      if (exceeds_cap(plan_.size())) {
        return;
      }
      Piece piece;
      if (place(at, count, headroom, Placement::kCandidates, &piece, skip)) {
        plan_.push_back(piece);
        return;
      }
      if (at.block != skip) {
        plan_.push_back({at.block, {at.block, extent_[at.block]}});
        count -= extent_[at.block];
      }
    }
  }

  // ---- References. ----

  bool is_idle(int32_t block) const {
    return refs_[block] == 0 && cached_[block] != kCached;
  }

  // An aligned group is the smallest unit of an extent. With alignment 1 it is
  // the block itself.
  bool is_group_idle(int32_t start) const {
    for (int32_t b = start; b < start + alignment_; ++b) {
      if (!is_idle(b)) {
        return false;
      }
    }
    return true;
  }

  bool is_group_held(int32_t block) const {
    const int32_t start = align_down(block);
    for (int32_t b = start; b < start + alignment_; ++b) {
      if (refs_[b] > 0) {
        return true;
      }
    }
    return false;
  }

  // The only way out of the cache, so that no index entry can be left behind.
  void drop_cache_ref(int32_t block) {
    cached_[block] = kUncached;
    if (index_ != nullptr) {
      index_->erase(block);
    }
  }

  void add_ref(int32_t block) {
    if (refs_[block] == 0) {
      lru_remove(block);
      if (!is_group_held(block)) {
        available_ -= alignment_;
      }
    }
    ++refs_[block];
  }

  // Returns whether the block has no reference of either kind any more.
  bool drop_ref(int32_t block) {
    if (--refs_[block] > 0) {
      return false;
    }
    headroom_[block] = 0;
    if (!is_group_held(block)) {
      available_ += alignment_;
    }
    if (is_cached(block)) {
      lru_append(block);
      return false;
    }
    return true;
  }

  // Blocks that become free next to each other are merged as one run.
  void release_range(Range range) {
    int32_t run_end = range.end();
    for (int32_t b = range.end() - 1; b >= range.start; --b) {
      if (!drop_ref(b)) {
        if (b + 1 < run_end) {
          free_run({b + 1, run_end - (b + 1)});
        }
        run_end = b;
      }
    }
    if (range.start < run_end) {
      free_run({range.start, run_end - range.start});
    }
  }

  Result check_blocks(const RangeList& blocks) const {
    for (const Range& range : blocks.ranges_) {
      if (!contains(range.start)) {
        return {Status::kBadBlock, range.start};
      }
      if (range.count > num_blocks_ - range.start) {
        return {Status::kBadBlock, num_blocks_};
      }
    }
    return {};
  }

  // A block may be listed more than once, so this drops the references on
  // trial and puts them back.
  Result check_releasable(const RangeList& blocks) {
    if (const Result checked = check_blocks(blocks); !checked.ok()) {
      return checked;
    }
    int64_t dropped = 0;
    int32_t lacking = kNoBlock;
    blocks.for_each(0, blocks.num_blocks(), [&](int32_t b) {
      if (refs_[b] == 0) {
        lacking = b;
        return false;
      }
      --refs_[b];
      ++dropped;
      return true;
    });
    blocks.for_each(0, dropped, [&](int32_t b) {
      ++refs_[b];
      return true;
    });
    if (lacking != kNoBlock) {
      return {Status::kBlockNotHeld, lacking};
    }
    return {};
  }

  // ---- Eviction: cache-only blocks, oldest first. ----

  void lru_append(int32_t block) {
    prev_[block] = lru_tail_;
    next_[block] = kNoBlock;
    (lru_tail_ != kNoBlock ? next_[lru_tail_] : lru_head_) = block;
    lru_tail_ = block;
    ++num_cache_only_;
  }

  void lru_remove(int32_t block) {
    const int32_t prev = prev_[block];
    const int32_t next = next_[block];
    (prev != kNoBlock ? next_[prev] : lru_head_) = next;
    (next != kNoBlock ? prev_[next] : lru_tail_) = prev;
    --num_cache_only_;
  }

  // Returns the extent that the block is in now, see free_run().
  Range evict_oldest() {
    const int32_t block = lru_head_;
    lru_remove(block);
    cached_[block] = kUncached;
    if (index_ != nullptr) {
      index_->evict(block);
    }
    evicted_.push_back(block);
    return free_run({block, 1});
  }

  // Finds out whether `request` can get `count` > free_ blocks within the cap,
  // and reserves memory. Eviction stops as soon as `count` blocks are free, so
  // the request then takes every extent there is: the number of ranges follows
  // from the number of extents, without trying.
  Result plan_eviction(RangeList* request, int32_t count, RangeList* appended) {
    reserve_more(evicted_, num_cache_only_);
    int32_t extents = num_extents_;
    int32_t free_blocks = free_;
    int32_t end = lru_head_;
    for (; free_blocks < count; end = next_[end]) {
      cached_[end] = kEvictionPlanned;
      const int32_t group = align_down(end);
      if (is_group_idle(group)) {
        free_blocks += alignment_;
        extents += 1 - is_free_group(group - alignment_) -
                   is_free_group(group + alignment_);
      }
    }
    bool grows_in_place = false;
    if (!request->empty()) {
      const int32_t behind = request->ranges_.back().end();
      grows_in_place = behind % alignment_ == 0 && is_free_group(behind);
    }
    for (int32_t b = lru_head_; b != end; b = next_[b]) {
      cached_[b] = kCached;
    }
    const size_t ranges =
        request->num_ranges() + extents - (grows_in_place ? 1 : 0);
    if (exceeds_cap(ranges)) {
      return {Status::kRangeCap, static_cast<int64_t>(ranges)};
    }
    plan_.clear();
    reserve_more(plan_, extents);
    request->reserve(extents);
    appended->reserve(extents + 1);
    return {};
  }

  bool is_free_group(int32_t start) const {
    return contains(start) && is_group_idle(start);
  }

  int32_t longest_run_not_held() const {
    int32_t longest = 0;
    int32_t run = 0;
    for (int32_t b = 0; b < num_blocks_; b += alignment_) {
      run = is_group_held(b) ? 0 : run + alignment_;
      longest = std::max(longest, run);
    }
    return longest;
  }

  // ---- Checks. ----

  std::string check_extents() const;
  std::string check_size_classes() const;
  std::string check_references() const;
  std::string check_lru() const;
  std::string check_index() const;

  const int32_t num_blocks_;
  const int32_t alignment_;
  const int32_t max_ranges_;

  // Per block.
  std::vector<int32_t> refs_;      // Request references.
  std::vector<uint8_t> cached_;    // CacheState.
  std::vector<int32_t> extent_;    // Length, at both ends of an extent; else 0.
  std::vector<int32_t> headroom_;  // Wanted behind a request's last block.
  // Links: of a cache-only block in the LRU list, or of an extent's first
  // block in its size-class list. No block is both.
  std::vector<int32_t> prev_;
  std::vector<int32_t> next_;

  std::array<int32_t, kLevels * kSteps> heads_;  // By size class.
  std::array<uint32_t, kLevels> bitmap_{};       // Non-empty size classes.
  uint32_t summary_ = 0;                         // Non-zero words of bitmap_.

  int32_t lru_head_ = kNoBlock;
  int32_t lru_tail_ = kNoBlock;
  int32_t num_extents_ = 0;
  int32_t num_cache_only_ = 0;
  int32_t free_ = 0;       // Blocks in extents.
  int32_t available_ = 0;  // See num_free_blocks().
  std::vector<int32_t> evicted_;
  PrefixIndex* index_ = nullptr;
  std::vector<Piece> plan_;  // Scratch of extend().
};

inline std::string KVAllocator::check_invariants() const {
  for (const std::string& broken :
       {check_references(), check_extents(), check_size_classes(), check_lru(),
        check_index()}) {
    if (!broken.empty()) {
      return broken;
    }
  }
  return {};
}

inline std::string KVAllocator::check_references() const {
  int32_t available = 0;
  for (int32_t b = 0; b < num_blocks_; ++b) {
    if (refs_[b] < 0) {
      return "block " + std::to_string(b) + " has a negative reference count";
    }
    if (cached_[b] > kCached) {
      return "block " + std::to_string(b) + " is still marked for eviction";
    }
    if (refs_[b] == 0 && headroom_[b] != 0) {
      return "block " + std::to_string(b) +
             " has headroom although no request holds it";
    }
    if (b % alignment_ == 0 && !is_group_held(b)) {
      available += alignment_;
    }
  }
  if (available != available_) {
    return "num_free_blocks is " + std::to_string(available_) + ", counted " +
           std::to_string(available);
  }
  return {};
}

inline std::string KVAllocator::check_extents() const {
  int32_t extents = 0;
  int32_t free_blocks = 0;
  int32_t b = 0;
  while (b < num_blocks_) {
    if (!is_group_idle(b)) {
      for (int32_t i = b; i < b + alignment_; ++i) {
        if (extent_[i] != 0) {
          return "block " + std::to_string(i) + " is in use and in an extent";
        }
      }
      b += alignment_;
      continue;
    }
    int32_t end = b;
    while (is_free_group(end)) {
      end += alignment_;
    }
    const std::string extent =
        "free blocks [" + std::to_string(b) + ", " + std::to_string(end) + ")";
    if (extent_[b] != end - b || extent_[end - 1] != end - b) {
      return extent + " are not one merged extent";
    }
    for (int32_t i = b + 1; i < end - 1; ++i) {
      if (extent_[i] != 0) {
        return extent + " have a boundary tag inside";
      }
    }
    ++extents;
    free_blocks += end - b;
    b = end;
  }
  if (extents != num_extents_ || free_blocks != free_) {
    return "counts of extents or free blocks are wrong";
  }
  return {};
}

inline std::string KVAllocator::check_size_classes() const {
  int32_t listed = 0;
  for (int c = 0; c < kLevels * kSteps; ++c) {
    const bool set = bitmap_[c / kSteps] >> (c % kSteps) & 1;
    if (set != (heads_[c] != kNoBlock)) {
      return "bitmap is wrong for size class " + std::to_string(c);
    }
    int32_t prev = kNoBlock;
    for (int32_t e = heads_[c]; e != kNoBlock; prev = e, e = next_[e]) {
      if (extent_[e] <= 0 || size_class_of(extent_[e]) != c ||
          prev_[e] != prev || ++listed > num_extents_) {
        return "list of size class " + std::to_string(c) +
               " is broken at block " + std::to_string(e);
      }
    }
  }
  for (int level = 0; level < kLevels; ++level) {
    if ((summary_ >> level & 1) != (bitmap_[level] != 0)) {
      return "bitmap summary is wrong for level " + std::to_string(level);
    }
  }
  if (listed != num_extents_) {
    return "an extent is in no size class";
  }
  return {};
}

inline std::string KVAllocator::check_lru() const {
  int32_t cache_only = 0;
  for (int32_t b = 0; b < num_blocks_; ++b) {
    cache_only += refs_[b] == 0 && is_cached(b);
  }
  int32_t listed = 0;
  int32_t prev = kNoBlock;
  for (int32_t b = lru_head_; b != kNoBlock; prev = b, b = next_[b]) {
    if (refs_[b] != 0 || !is_cached(b) || prev_[b] != prev ||
        ++listed > cache_only) {
      return "LRU list is broken at block " + std::to_string(b);
    }
  }
  if (listed != cache_only || num_cache_only_ != cache_only ||
      lru_tail_ != prev) {
    return "LRU list does not hold every cache-only block";
  }
  return {};
}

inline std::string KVAllocator::check_index() const {
  if (index_ == nullptr) {
    return {};
  }
  for (int32_t b = 0; b < num_blocks_; ++b) {
    if (is_cached(b) != index_->contains(b)) {
      return "block " + std::to_string(b) + " is " +
             (is_cached(b) ? "cached without an index entry"
                           : "in the index without being cached");
    }
  }
  return index_->check_invariants();
}

inline std::string KVAllocator::dump() const {
  std::string bytes;
  const auto put = [&bytes](const auto* data, size_t count) {
    bytes.append(reinterpret_cast<const char*>(data), count * sizeof(*data));
  };
  const auto put_list = [&](int32_t head) {
    for (int32_t b = head; b != kNoBlock; b = next_[b]) {
      put(&b, 1);
    }
    put(&kNoBlock, 1);
  };
  put(&available_, 1);
  put(refs_.data(), refs_.size());
  put(cached_.data(), cached_.size());
  put(extent_.data(), extent_.size());
  put(headroom_.data(), headroom_.size());
  for (const int32_t head : heads_) {
    put_list(head);
  }
  put_list(lru_head_);
  put(evicted_.data(), evicted_.size());
  if (index_ != nullptr) {
    bytes += index_->dump();
  }
  return bytes;
}

}  // namespace vllm::tagma
