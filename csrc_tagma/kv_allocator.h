// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

// The range allocator of the tagma KV cache backend.
//
// A pool of `num_blocks` KV blocks; a request holds its blocks as few
// contiguous ranges. Two kinds of reference are counted apart: request
// references, one for each list that has the block, and at most one cache
// reference (the block is in the prefix cache). With neither, a block is free;
// with the cache reference only, it is cache-only and may be evicted.
//
// Between the blocks that requests hold lie runs. A run without cache-only
// blocks is a free extent; any other is a mixed run, of free extents and
// segments of cache-only blocks. What a request gets is a window of a run:
// whatever is cached in it is evicted. Extents, runs and segments are found
// from their ends by boundary tags and by length through size classes.
//
// Not thread-safe: one caller at a time.

#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "block_array.h"
#include "block_references.h"
#include "eviction_queue.h"
#include "extent_set.h"
#include "kv_ranges.h"
#include "placement.h"
#include "prefix_index.h"

namespace vllm::tagma {

// What operators watch. Counts are of blocks unless said otherwise.
struct KVStats {
  // Ranges of a request: 1, 2, 3-4, 5-8, and so on to 129-256, and more.
  static constexpr int kNumBuckets = 10;

  int32_t free_blocks = 0;  // In free extents.
  int32_t held_blocks = 0;  // With a request reference.
  int32_t cache_only_blocks = 0;
  int32_t extents = 0;         // Number of free extents.
  int32_t largest_extent = 0;  // Its length, see ExtentSet::longest().
  int32_t requests = 0;        // Number of requests that hold ranges.
  std::array<int32_t, kNumBuckets> ranges_per_request{};  // Of those.
  // Since the pool was made.
  int64_t spills = 0;            // Growths that needed a further range.
  int64_t window_evictions = 0;  // Ranges whose cached blocks were evicted.
  int64_t evicted_blocks = 0;
  int64_t cap_events = 0;  // Calls that failed for max_ranges.
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
        placement_(num_blocks),
        refs_(num_blocks),
        demands_(num_blocks),
        chains_(num_blocks),
        free_(num_blocks),
        mixed_(num_blocks),
        mixed_starts_(num_blocks),
        queue_(num_blocks) {
    evicted_.reserve(num_blocks);
    orphans_.reserve(num_blocks);  // Never needs more.
    available_ = num_blocks;
    free_.insert({0, num_blocks});
  }

  KVAllocator(const KVAllocator&) = delete;
  KVAllocator& operator=(const KVAllocator&) = delete;

  int32_t num_blocks() const { return num_blocks_; }
  int32_t alignment() const { return alignment_; }
  int32_t max_ranges() const { return max_ranges_; }
  int32_t num_extents() const { return free_.num_extents(); }
  int32_t num_cache_only_blocks() const { return queue_.num_blocks(); }

  // Blocks that an allocation can get: free or cache-only, in an aligned group
  // of which no request holds a block.
  int32_t num_free_blocks() const { return available_; }

  // Length of the longest free extent, see ExtentSet::longest().
  int32_t largest_extent() const { return free_.longest().count; }

  // O(1).
  KVStats stats() const {
    KVStats stats = stats_;
    stats.free_blocks = free_.num_blocks();
    stats.cache_only_blocks = queue_.num_blocks();
    stats.extents = num_extents();
    stats.largest_extent = largest_extent();
    return stats;
  }

  bool contains(int64_t block) const {
    return block >= 0 && block < num_blocks_;
  }
  bool is_cached(int32_t block) const { return refs_.is_cached(block); }
  bool is_held(int32_t block) const { return refs_.is_held(block); }
  int32_t ref_count(int32_t block) const { return refs_.num_requests(block); }

  // Blocks evicted by extend() and allocate() since clear_evicted(), in order.
  const std::vector<int32_t>& evicted() const { return evicted_; }
  void clear_evicted() { evicted_.clear(); }

  // Takes one contiguous range and evicts what is cached in it. Before it says
  // that there is none, it looks at all runs of the top size class.
  Result allocate(int64_t count, Range* range) {
    if (count < 1) {
      return {Status::kBadCount, count};
    }
    const int64_t rounded = align_up(count);
    if (rounded > available_) {
      return {Status::kOutOfBlocks, available_};
    }
    const auto n = static_cast<int32_t>(rounded);
    Range longest = longest_run();
    if (longest.count < n) {
      longest = longest_run(std::numeric_limits<int>::max());
    }
    if (longest.count < n) {
      return {Status::kNoExtent, longest.count};
    }
    reserve_evicted();
    Window window;
    if (!find_window(n, 0, &window) || window.range.count < n) {
      window = window_at({longest.start, n}, longest.start);
    }
    take(window);
    *range = window.range;
    return {};
  }

  // Appends `count` blocks to `request`: in place behind its last range if it
  // can, else in windows that the placement chooses. If not null, `appended`,
  // which must be another list, then holds just the new blocks.
  //
  // O(1) for each range added and each block taken or evicted. Fails for the
  // cap only if no choice of ranges would stay below it; lengths are known to
  // 1/32 there, see ExtentSet::longest().
  [[gnu::always_inline]] inline Result extend(RangeList* request, int64_t count,
                                              RangeList* appended = nullptr) {
    // A request that decodes needs one block at a time.
    if (count == 1 && alignment_ == 1 && !request->empty()) {
      const int32_t end = request->ranges_.back().end();
      const int32_t behind = free_.length_from(end);
      if (behind > 0 && is_run(end)) {
        grow_in_place(request, 1, end, behind, appended);
        return {};
      }
    }
    return extend_by(request, count, appended);
  }

  // Tells that after the next extend(), `count` blocks are sure to follow, such
  // as those of a prompt's later chunks: room for them is wanted, too.
  void expect(RangeList* request, int64_t count) const {
    request->expected_ =
        static_cast<int32_t>(std::clamp<int64_t>(count, 0, num_blocks_));
  }

  // Adds a request reference to each of `blocks`, none of which may be free,
  // and appends them to `request`, which must be another list.
  Result acquire(RangeList* request, const RangeList& blocks) {
    if (blocks.empty()) {
      return {};
    }
    const bool merges = request->merges(blocks.ranges_.front().start);
    const size_t ranges =
        request->num_ranges() + blocks.num_ranges() - (merges ? 1 : 0);
    if (exceeds_cap(ranges)) {
      ++stats_.cap_events;
      return {Status::kRangeCap, static_cast<int64_t>(ranges)};
    }
    request->reserve(blocks.num_ranges());
    const Result retained = add_references(blocks, false);
    if (!retained.ok()) {
      return retained;
    }
    withdraw_demand(*request);
    for (const Range& range : blocks.ranges_) {
      request->append(range);
    }
    track(request);
    return {};
  }

  // Adds a request reference to each of `blocks`. A free one leaves its extent,
  // which is looked for block by block, if the alignment is 1.
  Result retain(const RangeList& blocks) {
    return add_references(blocks, alignment_ == 1);
  }

  // Drops a request reference of each block, last block first, and clears the
  // list. Blocks that only the cache holds then are the most recently used.
  Result release(RangeList* blocks) {
    // Blocks of a request build on each other, those of any list need not.
    const bool is_chain = blocks->bucket_ != RangeList::kNoBucket;
    if (const Result checked = check_blocks(*blocks); !checked.ok()) {
      return checked;
    }
    if (blocks->num_ranges() != 1 || !drop_alike(blocks->ranges_.front())) {
      if (const Result checked = check_releasable(*blocks); !checked.ok()) {
        return checked;
      }
      for (size_t i = blocks->num_ranges(); i-- > 0;) {
        if (is_chain && i > 0) {
          link_chain(blocks->ranges_[i - 1].end() - 1,
                     blocks->ranges_[i].start);
        }
        drop_refs(blocks->ranges_[i]);
      }
    }
    if (is_chain) {
      withdraw_demand(*blocks);
      placement_.observe(blocks->grown_);
      --stats_.ranges_per_request[blocks->bucket_];
      --stats_.requests;
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
  // its cache reference and an index entry under its key, with its index in
  // `blocks` as position; keys[0] is for the block at `start`. A block that is
  // cached under the same key is skipped; one that is cached under another key,
  // as a partial block is that filled up, moves to the new one. `cached` counts
  // the blocks that were not cached.
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
    auto position = static_cast<int32_t>(start);
    blocks.for_each(start, stop, [&](int32_t b) {
      const BlockKey& key = *keys++;
      const int32_t at = position++;
      if (!is_cached(b)) {
        refs_.cache(b);
        ++*cached;
      } else if (index_->key_of(b) == key) {
        return true;
      } else {
        index_->erase(b);
      }
      index_->insert(b, key, at);
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
        uncache_block(b);
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
      for_each_alike(range, [&](Range alike) {
        count += is_held(alike.start) ? 0 : alike.count;
      });
    }
    return count;
  }

  // Sets the block's cache reference; a request must hold the block. Not for a
  // pool with an index.
  Result cache(int32_t block) {
    if (index_ != nullptr) {
      return {Status::kIndexed, block};
    }
    if (!is_held(block)) {
      return {Status::kBlockNotHeld, block};
    }
    if (is_cached(block)) {
      return {Status::kAlreadyCached, block};
    }
    refs_.cache(block);
    return {};
  }

  // Drops the block's cache reference; a cache-only block becomes free.
  Result uncache(int32_t block) {
    if (!is_cached(block)) {
      return {Status::kNotCached, block};
    }
    uncache_block(block);
    if (index_ != nullptr) {
      index_->erase(block);
    }
    if (is_held(block)) {
      return {};
    }
    const Range run = run_of(block);
    drop_run(run);
    queue_.remove({block, 1});
    free_blocks({block, 1});
    add_run(run);
    return {};
  }

  // The first broken invariant in words, or an empty string. Scans the pool.
  std::string check_invariants() const;

  // Everything that later operations depend on, as bytes to compare.
  std::string dump() const;

 private:
  friend class ReferenceLimitTest;  // Nobody adds 2^31 references one by one.

  // Most windows chosen by the placement for one call, before the longest runs
  // are taken; each costs at most one range more than was necessary.
  static constexpr int kMaxChosen = 8;

  // A range to be taken, which lies in one run. `anchor` is the first block of
  // the free extent or segment that its first block lies in.
  struct Window {
    Range range{0, 0};
    int32_t anchor = 0;
    float cost = 0;
    Range run{0, 0};  // The mixed run that it is in, if known.
    // Where the next search for old segments begins.
    int32_t hand = kNoSegment;
  };

  // For room behind a request, at its last block. Zero: no request ends there.
  struct Demand {
    int32_t grown_plus_one;  // Blocks it has grown by, see growth().
    int32_t expected;        // Blocks that are sure to follow.
  };

  // The blocks at which a chain of cached blocks goes on from a block and comes
  // from, plus one; 0 for none.
  struct Chain {
    int32_t next;
    int32_t prev;
  };

  static constexpr int32_t kNoSegment = EvictionQueue::kNone;

  static Window window_at(Range range, int32_t anchor) {
    return {range, anchor, 0, {0, 0}, kNoSegment};
  }

  int64_t align_up(int64_t count) const {
    if (alignment_ == 1) {
      return count;
    }
    // The bound keeps the sum from overflowing; any larger count fails alike.
    const int64_t n = std::min<int64_t>(count, int64_t{num_blocks_} + 1);
    return (n + alignment_ - 1) / alignment_ * alignment_;
  }

  int32_t align_down(int32_t block) const {
    return alignment_ == 1 ? block : block - block % alignment_;
  }

  bool exceeds_cap(size_t ranges) const {
    return max_ranges_ > 0 && ranges > static_cast<size_t>(max_ranges_);
  }

  // Makes sure that no eviction allocates memory.
  void reserve_evicted() {
    if (const int32_t count = queue_.num_blocks(); count > 0) {
      reserve_more(evicted_, count);
      if (index_ != nullptr) {
        index_->reserve_evicted(count);
      }
    }
  }

  // ---- Groups: aligned, the smallest unit of an extent or a run. With
  // alignment 1 a group is the block itself. ----

  bool is_idle(int32_t block) const { return refs_.is_idle(block); }

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
      if (is_held(b)) {
        return true;
      }
    }
    return false;
  }

  bool is_free_group(int32_t start) const {
    return contains(start) && is_group_idle(start);
  }

  // ---- Runs. ----

  // Makes the aligned groups that `range` completed free.
  void free_blocks(Range range) {
    int32_t start = range.start;
    int32_t end = range.end();
    if (alignment_ > 1) {
      start = align_down(start);
      end = align_down(end - 1) + alignment_;
      start += is_group_idle(start) ? 0 : alignment_;
      if (start < end && !is_group_idle(end - alignment_)) {
        end -= alignment_;
      }
    }
    if (start < end) {
      free_.merge({start, end - start});
    }
  }

  // Whether the free extent that starts at `block` is a run.
  bool is_run(int32_t block) const {
    return mixed_.num_extents() == 0 || mixed_.length_from(block) == 0;
  }

  // The mixed run that `block` is in, of length 0 if it is in none.
  Range run_of(int32_t block) const {
    if (mixed_.num_extents() > 0) {
      const int32_t start = mixed_starts_.at_or_before(block);
      if (start != kNoBlock) {
        const Range run{start, mixed_.length_from(start)};
        if (run.end() > block) {
          return run;
        }
      }
    }
    return {block, 0};
  }

  void drop_run(Range run) {
    if (run.count > 0) {
      mixed_.remove(run);
      mixed_starts_.erase(run.start);
    }
  }

  // Adds a run that is nowhere but perhaps in `free_`: as a mixed one unless it
  // is one free extent.
  void add_run(Range run) {
    if (run.count > 0 && !is_extent(run)) {
      mixed_.insert(run);
      mixed_starts_.insert(run.start);
    }
  }

  // `range` with the runs beside it. Mixed ones are dropped.
  Range join_runs(Range range) {
    int32_t before = mixed_.length_to(range.start);
    drop_run({range.start - before, before});
    before = before > 0 ? before : free_.length_to(range.start);
    int32_t behind = mixed_.length_from(range.end());
    drop_run({range.end(), behind});
    behind = behind > 0 ? behind : free_.length_from(range.end());
    return {range.start - before, before + range.count + behind};
  }

  // A longest run, see ExtentSet::longest(). A free extent that is no run is
  // shorter than its run.
  Range longest_run(int most_looked_at = ExtentSet::kFew) const {
    const Range free = free_.longest(most_looked_at);
    const Range mixed = mixed_.longest(most_looked_at);
    return free.count > mixed.count ? free : mixed;
  }

  // Takes the range out of its run, evicts what is cached in it and gives its
  // blocks one request reference each. reserve_evicted() comes first.
  void take(const Window& window) {
    const Range range = window.range;
    const Range run = window.run.count > 0 ? window.run : run_of(range.start);
    if (run.count == 0) {
      free_.cut({window.anchor, free_.length_from(window.anchor)}, range);
      hold(range);
      return;
    }
    if (window.hand != kNoSegment) {
      queue_.set_hand(window.hand);
    }
    clear_out(window);
    split_run(run, range);
    hold(range);
    evict_orphans();
  }

  // Takes `range` out of the mixed run that it is in.
  void split_run(Range run, Range range) {
    mixed_.cut(run, range);
    const Range behind{range.end(), run.end() - range.end()};
    if (run.start == range.start) {
      mixed_starts_.erase(run.start);
    } else if (const Range before{run.start, range.start - run.start};
               is_extent(before)) {
      drop_run(before);
    }
    if (behind.count == 0) {
      return;
    }
    if (is_extent(behind)) {
      mixed_.remove(behind);
    } else {
      mixed_starts_.insert(behind.start);
    }
  }

  // Whether the run is one free extent.
  bool is_extent(Range run) const {
    return free_.length_from(run.start) == run.count;
  }

  // Removes all that is free or cache-only in the range. A chain that is cut
  // loses all that builds on the first block taken: that becomes free, and so
  // the headroom of the request that took it.
  void clear_out(const Window& window) {
    const Range range = window.range;
    const size_t evicted = evicted_.size();
    int32_t next = 0;
    for (int32_t b = window.anchor; b < range.end(); b = next) {
      const int32_t free = free_.length_from(b);
      const int32_t cached = free > 0 ? 0 : queue_.range(queue_.from(b)).count;
      next = b + std::max({free, cached, 1});
      const int32_t start = std::max(b, range.start);
      if (free > 0) {
        free_.cut({b, free}, {start, std::min(next, range.end()) - start});
      } else if (cached > 0) {
        evict({start, next - start});
      }
    }
    if (next > range.end() && evicted_.size() > evicted &&
        free_.length_to(next) == 0) {
      free_blocks({range.end(), next - range.end()});
    }
    stats_.window_evictions += evicted_.size() > evicted;
    stats_.evicted_blocks += evicted_.size() - evicted;
  }

  // Evicts the end of a segment, the last block first, and notes the chains
  // that go on from it.
  void evict(Range part) {
    queue_.remove(part);
    refs_.set(part, 0, false);
    if (has_chains(part)) {
      note_orphans(part);
      std::fill_n(&chains_[part.start], part.count, Chain{});
    }
    for (int32_t b = part.end(); b-- > part.start;) {
      evicted_.push_back(b);
    }
    if (index_ != nullptr) {
      for (int32_t b = part.end(); b-- > part.start;) {
        index_->evict(b);
      }
    }
  }

  // Whether anything is noted of chains at any of the blocks. Writing pages for
  // the first time that are not needed costs more than looking.
  bool has_chains(Range part) const {
    const Chain* const chains = &chains_[part.start];
    uint64_t any = 0;
    for (const Chain* chain = chains; chain != chains + part.count; ++chain) {
      uint64_t both;
      std::memcpy(&both, chain, sizeof(both));
      any |= both;
    }
    return any != 0;
  }

  void note_orphans(Range part) {
    for (int32_t b = part.end(); b-- > part.start;) {
      if (const int32_t next = chain_after(b); next != kNoBlock) {
        orphans_.push_back(next);
      }
    }
  }

  // Evicts the chains that evict() noted: without what they build on they can
  // not be found.
  void evict_orphans() {
    while (!orphans_.empty()) {
      const int32_t first = orphans_.back();
      orphans_.pop_back();
      if (!is_cached(first) || is_held(first)) {
        continue;
      }
      const Range segment = queue_.range(queue_.find(first));
      const Range rest{first, segment.end() - first};
      const Range run = run_of(first);
      drop_run(run);
      stats_.evicted_blocks += rest.count;
      evict(rest);
      free_blocks(rest);
      add_run(run);
    }
  }

  void uncache_block(int32_t block) {
    refs_.uncache(block);
    chains_[block] = {};
  }

  void link_chain(int32_t block, int32_t next) {
    if (is_cached(block) && is_cached(next)) {
      chains_[block].next = next + 1;
      chains_[next].prev = block + 1;
    }
  }

  // The block in another range that goes on from `block`, or kNoBlock.
  int32_t chain_after(int32_t block) const {
    const int32_t next = chains_[block].next - 1;
    return next >= 0 && chains_[next].prev == block + 1 ? next : kNoBlock;
  }

  void hold(Range range) {
    refs_.set(range, 1, false);
    available_ -= range.count;
    stats_.held_blocks += range.count;
  }

  // ---- Extending. ----

  // Blocks from `end` on that a request may take in place, `count` at most:
  // free ones, and cache-only ones that are cheaper to lose than a range more
  // is. The first block of a chain costs the whole chain.
  int32_t reach(int32_t end, int32_t count) const {
    if (align_down(end) != end) {
      return 0;
    }
    float cost = 0;
    int32_t b = end;
    for (int hop = 0; hop < Placement::kHops && b - end < count; ++hop) {
      const Piece piece = piece_from(b);
      cost += piece.cost(piece.range.count);
      if (piece.range.count == 0 || cost > Placement::kRangeCost) {
        break;
      }
      b = piece.range.end();
    }
    return align_down(std::min(b - end, count));
  }

  // The number of ranges that `count` blocks need at least, beside those of the
  // run at `behind`. Once it is more than the cap, it may be too small.
  size_t fewest_ranges(int64_t count, int32_t behind) const {
    size_t ranges = 0;
    ExtentSet::Cursor free = free_.top();
    ExtentSet::Cursor mixed = mixed_.top();
    while (count > 0 && !exceeds_cap(ranges)) {
      if (free.at_end() && mixed.at_end()) {
        return static_cast<size_t>(max_ranges_) + 1;  // That run is needed.
      }
      const bool is_free =
          mixed.at_end() ||
          (!free.at_end() && free.size_class > mixed.size_class);
      const Range run = is_free ? free_.at(free) : mixed_.at(mixed);
      (is_free ? free : mixed) =
          is_free ? free_.after(free) : mixed_.after(mixed);
      if (run.start != behind && !(is_free && run_of(run.start).count > 0)) {
        count -= run.count;
        ++ranges;
      }
    }
    return ranges;
  }

  // Takes the next `n` of the `behind` free blocks behind the request, which
  // are a run.
  [[gnu::always_inline]] inline void grow_in_place(RangeList* request,
                                                   int32_t n, int32_t end,
                                                   int32_t behind,
                                                   RangeList* appended) {
    if (appended != nullptr) {
      appended->assign({end, n});  // May fail, so before anything changes.
    }
    free_.cut_front({end, behind}, n);
    hold({end, n});
    demands_[end - 1] = {};
    request->lengthen(n);
    place_demand(request, n, end + n - 1);
    if (request->bucket_ == RangeList::kNoBucket) {
      track(request);
    }
  }

  // The part of extend() for more than one block, or for what is not just free
  // behind the request.
  [[gnu::noinline]] Result extend_by(RangeList* request, int64_t count,
                                     RangeList* appended) {
    if (count < 1) {
      return {Status::kBadCount, count};
    }
    const int64_t rounded = align_up(count);
    if (rounded > available_) {
      return {Status::kOutOfBlocks, available_};
    }
    const auto n = static_cast<int32_t>(rounded);
    if (request->empty()) {
      if (appended != nullptr) {
        appended->clear();
      }
      return extend_empty(request, n, appended);
    }
    const int32_t end = request->ranges_.back().end();
    const int32_t behind = free_.length_from(end);
    if (behind >= n && is_run(end)) {
      grow_in_place(request, n, end, behind, appended);
      return {};
    }
    if (appended != nullptr) {
      appended->clear();
    }
    if (behind < n &&
        (has_room(n, headroom_after(*request, n)) || reach(end, n) < n)) {
      return extend_by_windows(request, n, end - 1, Window(), appended);
    }
    reserve_evicted();
    if (appended != nullptr) {
      appended->append({end, n});  // May fail, so before anything changes.
    }
    take(window_at({end, n}, end));
    request->lengthen(n);
    grew(request, n, end - 1);
    return {};
  }

  // The part of extend() for a request's first blocks: mostly one window.
  Result extend_empty(RangeList* request, int32_t n, RangeList* appended) {
    Window window;
    const int32_t headroom = headroom_after(*request, n);
    if (!find_window(n, headroom, &window) || window.range.count < n) {
      return extend_by_windows(request, n, kNoBlock, window, appended);
    }
    request->reserve(1);
    if (appended != nullptr) {
      appended->reserve(1);
    }
    reserve_evicted();
    take(window);
    request->append(window.range);
    if (appended != nullptr) {
      appended->append(window.range);
    }
    grew(request, n, kNoBlock);
    return {};
  }

  // The part of extend() that adds ranges. `last` is the request's last block,
  // `found` the best window for all of `n`, if that was looked for.
  Result extend_by_windows(RangeList* request, int32_t n, int32_t last,
                           const Window& found, RangeList* appended) {
    const int32_t end = last == kNoBlock ? num_blocks_ : last + 1;
    const int32_t run_behind =
        std::max(free_.length_from(end), mixed_.length_from(end));
    const int32_t in_place = std::min(run_behind, n);
    const size_t fewest = fewest_ranges(n - in_place, end);
    if (exceeds_cap(request->num_ranges() + fewest)) {
      ++stats_.cap_events;
      return {Status::kRangeCap,
              static_cast<int64_t>(request->num_ranges() + fewest)};
    }
    // A chosen window adds a range and, if it breaks the run that the fewest
    // ranges would have used, makes these one more. So does leaving cached
    // blocks behind the request where they are.
    const size_t most = fewest + 2 * kMaxChosen + 1;
    const bool near_cap = exceeds_cap(request->num_ranges() + most);
    const size_t below_cap =
        max_ranges_ > 0 ? max_ranges_ - request->num_ranges() : most;
    request->reserve(std::min({static_cast<size_t>(n), most, below_cap}));
    if (appended != nullptr) {
      appended->reserve(std::min<size_t>(n, most + 1));
    }
    reserve_evicted();

    // Nothing below can fail.
    int32_t left = n;
    const auto append = [&](const Window& window) {
      take(window);
      request->append(window.range);
      if (appended != nullptr) {
        appended->append(window.range);
      }
      left -= window.range.count;
    };
    // Whether `ranges` more and the fewest for what is left stay below the cap.
    const auto fits = [&](int32_t count, size_t ranges) {
      return !near_cap || !exceeds_cap(request->num_ranges() + ranges +
                                       fewest_ranges(count, end));
    };
    stats_.spills += !request->empty();
    const int32_t free_behind = std::min(free_.length_from(end), n);
    const int32_t first = fits(n - free_behind, 0) ? free_behind : in_place;
    if (first > 0) {
      append(window_at({end, first}, end));
    }
    const int32_t headroom = headroom_after(*request, n);
    bool may_choose = true;
    for (int chosen = 0; left > 0; ++chosen) {
      Window window = chosen == 0 ? found : Window();
      may_choose &= chosen < kMaxChosen || queue_.num_blocks() == 0;
      bool is_found = may_choose;
      if (is_found && window.range.count == 0) {
        is_found = find_window(left, headroom, &window);
      }
      if (is_found && window.range.count < left) {
        is_found = chosen < kMaxChosen && fits(left, 2);
        may_choose = is_found || queue_.num_blocks() == 0;
      }
      if (!is_found) {
        const Range run = longest_run();
        window = window_at({run.start, std::min(left, run.count)}, run.start);
      }
      append(window);
    }
    grew(request, n, last);
    return {};
  }

  // Notes that `request`, whose last block was `last`, got `count` blocks.
  void grew(RangeList* request, int32_t count, int32_t last) {
    if (last != kNoBlock) {
      demands_[last] = {};
    }
    place_demand(request, count, request->ranges_.back().end() - 1);
    track(request);
  }

  // Notes at the `last` block of `request`, which got `count` blocks, what room
  // it wants behind it. What that comes to is found when it is asked for.
  [[gnu::always_inline]] inline void place_demand(RangeList* request,
                                                  int32_t count, int32_t last) {
    request->grown_ = growth(*request, count);
    demands_[last] = {request->grown_ + 1, request->expected_};
  }

  void withdraw_demand(const RangeList& request) {
    if (!request.empty()) {
      demands_[request.ranges_.back().end() - 1] = {};
    }
  }

  // What `request` has grown by once it gets `count` blocks; its first ones do
  // not count.
  int32_t growth(const RangeList& request, int32_t count) const {
    if (request.grown_ == RangeList::kNotExtended) {
      return 0;
    }
    const bool grows = count <= Placement::kGrowthStep * alignment_;
    return request.grown_ + (grows ? count : 0);
  }

  // Blocks wanted behind `request` once it gets `count` more.
  int32_t headroom_after(const RangeList& request, int32_t count) const {
    const int32_t spare =
        Placement::spare(free_.num_blocks(), queue_.num_blocks());
    return wanted_headroom({growth(request, count) + 1, request.expected_},
                           spare);
  }

  // Blocks wanted by a request, of `spare` that are shared by all.
  int32_t wanted_headroom(Demand demand, int32_t spare) const {
    const int32_t grown = demand.grown_plus_one - 1;
    return std::min(demand.expected, available_) +
           placement_.headroom(grown, spare, stats_.requests);
  }

  // Keeps the histogram up to date with the request's number of ranges.
  void track(RangeList* request) {
    const auto ranges = static_cast<uint32_t>(request->num_ranges());
    const int log2_ceil = ranges <= 1 ? 0 : 32 - __builtin_clz(ranges - 1);
    const auto bucket =
        static_cast<int8_t>(std::min(log2_ceil, KVStats::kNumBuckets - 1));
    if (bucket == request->bucket_) {
      return;
    }
    if (request->bucket_ == RangeList::kNoBucket) {
      ++stats_.requests;
    } else {
      --stats_.ranges_per_request[request->bucket_];
    }
    ++stats_.ranges_per_request[bucket];
    request->bucket_ = bucket;
  }

  // ---- Finding a window. ----

  // A free extent or segment as a part of a run; of length 0 outside runs.
  struct Piece {
    Range range;
    float block_cost;
    float chain_cost;  // Of what goes on from its end elsewhere.

    // What is lost if the last `count` blocks are taken.
    float cost(int32_t count) const {
      return block_cost * static_cast<float>(count) + chain_cost;
    }
  };

  // The surroundings of a seed.
  struct Area {
    std::array<Piece, 2 * Placement::kHops + 1> pieces;  // Not initialised.
    int num_pieces = 0;
    int32_t start = 0;
    int32_t end = 0;
    Range run;             // That it is a part of.
    int32_t reserved = 0;  // For the request in front of the run.
  };

  struct Choice {
    Window* window;
    float score;
  };

  Piece piece_from(int32_t block) const {
    if (const int32_t n = free_.length_from(block); n > 0) {
      return {{block, n}, 0, 0};
    }
    if (const int32_t id = queue_.from(block); id != kNoSegment) {
      return segment_piece(id);
    }
    return loose_piece(block);
  }

  Piece piece_to(int32_t block) const {
    if (const int32_t n = free_.length_to(block); n > 0) {
      return {{block - n, n}, 0, 0};
    }
    if (const int32_t id = queue_.to(block); id != kNoSegment) {
      return segment_piece(id);
    }
    return loose_piece(block - 1);
  }

  Piece segment_piece(int32_t id) const {
    const Range segment = queue_.range(id);
    if (alignment_ > 1 && is_group_held(segment.start)) {
      return {};
    }
    Piece piece{segment, cost_of(id), 0};
    int32_t next = chain_after(segment.end() - 1);
    for (int i = 0; i < Placement::kChain && next != kNoBlock; ++i) {
      if (!is_cached(next) || is_held(next)) {
        break;
      }
      const int32_t rest = queue_.find(next);
      const int32_t end = queue_.range(rest).end();
      piece.chain_cost += cost_of(rest) * static_cast<float>(end - next);
      next = chain_after(end - 1);
    }
    return piece;
  }

  float cost_of(int32_t segment) const {
    return Placement::block_cost(queue_.recency(segment));
  }

  // With an alignment, an idle block may lie next to a cached one in its group.
  Piece loose_piece(int32_t block) const {
    const bool loose =
        alignment_ > 1 && contains(block) && !is_group_held(block);
    return loose ? Piece{{block, 1}, 0, 0} : Piece{};
  }

  // Whether nothing cached need be lost for `count` blocks: a free extent holds
  // them with their headroom, and most idle blocks are free. In a pool that the
  // cache has filled, a growing request would else spill from one small extent
  // to the next.
  bool has_room(int32_t count, int32_t headroom) const {
    return free_.num_blocks() > available_ / 2 &&
           free_.longest().count >= count + headroom;
  }

  // The best window for `count` blocks, or the best one for a part of them.
  // Returns false if there is none at all.
  bool find_window(int32_t count, int32_t own, Window* window) const {
    Choice choice{window, std::numeric_limits<float>::infinity()};
    const bool fits =
        free_.num_blocks() > 0 && choose_extent(count, own, &choice);
    if (queue_.num_blocks() == 0 ||
        (fits && (window->cost == 0 || has_room(count, own)))) {
      return window->range.count > 0;
    }
    int32_t hand = queue_.hand(Placement::kOld);
    int32_t passed = hand;
    if (choose_old_end(count, own, &passed, &choice) ||
        !choose_around_old(count, own, &hand, &choice)) {
      hand = passed;
    }
    if (!is_good(choice, count)) {
      choose_shortest_runs(count, own, &choice);
      choose_longest_extents(count, own, &choice);
    }
    window->hand = hand;
    return window->range.count > 0;
  }

  // Chooses from the ends of old segments from `hand` on, which moves on to one
  // that is good enough, or beyond all that it looked at. Returns whether there
  // is one: that is how most searches end.
  bool choose_old_end(int32_t count, int32_t own, int32_t* hand,
                      Choice* choice) const {
    for (int i = 0; i < Placement::kEnds && *hand != kNoSegment;
         ++i, *hand = queue_.after(*hand)) {
      const Piece seed = segment_piece(*hand);
      if (seed.block_cost > Placement::block_cost(Placement::kOld)) {
        break;
      }
      choose_end(seed, count, own, choice);
      if (is_good(*choice, count)) {
        return true;
      }
    }
    return false;
  }

  // The same with all windows around old segments.
  bool choose_around_old(int32_t count, int32_t own, int32_t* hand,
                         Choice* choice) const {
    for (int i = 0; i < Placement::kSeeds && *hand != kNoSegment;
         ++i, *hand = queue_.after(*hand)) {
      const Piece piece = segment_piece(*hand);
      const int32_t evicted = std::min(piece.range.count, count);
      if (evicted == 0) {
        continue;  // In no run.
      }
      if (Placement::score(piece.cost(evicted), count) >= choice->score) {
        break;  // Later ones were used more recently.
      }
      if (may_win({piece.range.start, evicted}, count, *choice)) {
        choose_around(piece, count, own, choice);
        if (is_good(*choice, count)) {
          return true;
        }
      }
    }
    return false;
  }

  static bool is_good(const Choice& choice, int32_t count) {
    return choice.window->range.count == count &&
           choice.window->cost < Placement::kCheap;
  }

  // Chooses the end of `seed`, if that is all that needs to be taken. What goes
  // on from the window is lost, so that is where the headroom is best.
  void choose_end(const Piece& seed, int32_t count, int32_t own,
                  Choice* choice) const {
    if (seed.range.count < count || alignment_ > 1) {
      return;
    }
    const Range run = run_of(seed.range.start);
    own = run.count > count ? own : 0;  // There is no choice.
    const int32_t end = seed.range.end();
    const int32_t inside =
        std::clamp(own - free_.length_from(end), 0, seed.range.count - count);
    Window window = window_at({end - inside - count, count}, seed.range.start);
    window.run = run;
    window.cost = seed.cost(count + inside) + room_cost(window, own);
    const int32_t limit = window.range.end() + own;
    int32_t next = end;
    for (int hop = 0; hop < Placement::kHops && next < limit; ++hop) {
      const Piece piece = piece_from(next);
      if (piece.range.count == 0) {
        break;
      }
      next = piece.range.end();
      const int32_t beyond = std::max(next - limit, 0);
      window.cost += piece.cost(piece.range.count - beyond) / 2;
    }
    choose(window, choice);
  }

  // Of the headroom that a window in a run takes or lacks.
  float room_cost(const Window& window, int32_t own) const {
    const Range run = window.run;
    return Placement::room_cost(window.range.start - run.start,
                                reserved_before(run.start)) +
           Placement::room_cost(run.end() - window.range.end(), own);
  }

  void choose_longest_extents(int32_t count, int32_t own,
                              Choice* choice) const {
    ExtentSet::Cursor at = free_.top();
    for (int i = 0; i < Placement::kFreeSeeds && !at.at_end();
         ++i, at = free_.after(at)) {
      if (const Range extent = free_.at(at); may_win(extent, count, *choice)) {
        choose_around({extent, 0, 0}, count, own, choice);
      }
    }
  }

  // Chooses from the windows at the ends of the shortest runs that are long
  // enough, so that longer ones stay whole.
  void choose_shortest_runs(int32_t count, int32_t own, Choice* choice) const {
    ExtentSet::Cursor at = mixed_.bottom(count + own);
    if (at.at_end()) {
      at = mixed_.top();
    }
    for (int i = 0; i < Placement::kRunSeeds && !at.at_end();
         ++i, at = mixed_.above(at)) {
      const Range run = mixed_.at(at);
      for (const Piece& piece : {piece_from(run.start), piece_to(run.end())}) {
        if (piece.range.count > 0) {
          choose_around(piece, count, own, choice);
        }
      }
    }
  }

  // Whether a window in the run of `piece` can be better than the choice, if it
  // cost nothing but its range.
  bool may_win(Range piece, int32_t count, const Choice& choice) const {
    int32_t run = mixed_.length_from(piece.start);
    run = run > 0 ? run : std::max(run_of(piece.start).count, piece.count);
    return run >= count || Placement::score(0, run) < choice.score;
  }

  static void choose(const Window& window, Choice* choice) {
    const float score = Placement::score(window.cost, window.range.count);
    if (score < choice->score) {
      choice->score = score;
      *choice->window = window;
    }
  }

  // Chooses a free extent for `count` blocks: the shortest that has the
  // headroom of both requests; else the one that leaves most room; else, for a
  // part of the blocks, the longest. Returns whether one has them all.
  bool choose_extent(int32_t count, int32_t own, Choice* choice) const {
    Range best = shortest_with_room(count, own);
    if (best.count == 0) {
      best = extent_with_most_room(count);
    }
    if (best.count > 0) {
      choose(window_in(best, count, own), choice);
      return true;
    }
    if (best = longest_for_part(); best.count > 0) {
      choose(window_at(best, best.start), choice);
    }
    return false;
  }

  // So that longer ones stay whole.
  Range shortest_with_room(int32_t count, int32_t own) const {
    ExtentSet::Cursor at = free_.bottom(count + own);
    for (int i = 0; i < Placement::kShort && !at.at_end(); ++i) {
      const Range extent = free_.at(at);
      if (extent.count - count >= own + reserved_before(extent.start)) {
        return extent;
      }
      at = (i + 1) % Placement::kAlike == 0 ? free_.above_class(at)
                                            : free_.above(at);
    }
    return {0, 0};
  }

  Range extent_with_most_room(int32_t count) const {
    Range best{0, 0};
    int32_t most_room = INT32_MIN;
    ExtentSet::Cursor at = free_.top();
    for (int i = 0; i < Placement::kLong && !at.at_end();
         ++i, at = free_.after(at)) {
      const int32_t longest = ExtentSet::max_length(at.size_class);
      if (longest < count || longest - count <= most_room) {
        break;
      }
      const Range extent = free_.at(at);
      const int32_t room =
          extent.count - count -
          Placement::kReservedWeight * reserved_before(extent.start);
      if (extent.count >= count && room > most_room) {
        most_room = room;
        best = extent;
      }
    }
    return best;
  }

  // The longest free extent; one that nobody grows into counts for more.
  Range longest_for_part() const {
    Range best{0, 0};
    int32_t most = 0;
    ExtentSet::Cursor at = free_.top();
    for (int i = 0; i < Placement::kLong && !at.at_end();
         ++i, at = free_.after(at)) {
      const Range extent = free_.at(at);
      const bool is_reserved = reserved_before(extent.start) > 0;
      const int32_t weight = is_reserved ? 1 : Placement::kUnreservedWeight;
      if (extent.count > most / weight) {
        most = extent.count * weight;
        best = extent;
      }
    }
    return best;
  }

  // The window for `count` blocks that shares the slack of a free extent.
  Window window_in(Range extent, int32_t count, int32_t own) const {
    const int32_t reserved = reserved_before(extent.start);
    const int32_t offset =
        Placement::offset(extent.count, count, reserved, own);
    const int32_t behind = extent.count - count - offset;
    return {{extent.start + align_down(offset), count},
            extent.start,
            Placement::room_cost(std::min(offset, reserved), reserved) +
                Placement::room_cost(behind, own),
            {0, 0},
            kNoSegment};
  }

  // The headroom of the request that ends in front of `block`, if one does.
  int32_t reserved_before(int32_t block) const {
    const Demand demand = block > 0 ? demands_[block - 1] : Demand{};
    if (demand.grown_plus_one == 0) {
      return 0;
    }
    return wanted_headroom(
        demand,
        Placement::spare_of_others(free_.num_blocks(), queue_.num_blocks()));
  }

  // Chooses from the windows around `seed` whose begin or end is that of a
  // piece: those cut no chain, or only its tail.
  void choose_around(const Piece& seed, int32_t count, int32_t own,
                     Choice* choice) const {
    Area area;
    survey(seed, count, own, &area);
    const int32_t start = align_down(area.start + alignment_ - 1);
    const int32_t end = align_down(area.end);
    if (start >= end) {
      return;
    }
    if (end - start <= count) {
      consider(area, {start, end - start}, 0, choice);
      return;
    }
    const int32_t last = end - count;
    const int32_t seed_end = seed.range.end();
    const int32_t shared =
        Placement::offset(end - start, count, area.reserved, own);
    int32_t previous = kNoBlock;
    for (const int32_t at :
         {seed_end - count, seed.range.start, seed_end - count - own,
          start + shared, last - own, last}) {
      const int32_t clipped = std::clamp(align_down(at), start, last);
      if (clipped != previous) {
        consider(area, {clipped, count}, own, choice);
      }
      previous = clipped;
    }
  }

  // Finds the pieces around `seed` that windows of `count` blocks with headroom
  // could reach.
  void survey(const Piece& seed, int32_t count, int32_t own, Area* area) const {
    std::array<Piece, Placement::kHops> before;
    int num_before = 0;
    area->start = seed.range.start;
    const int32_t low = seed.range.end() - count - own;
    while (area->start > low && num_before < Placement::kHops) {
      const Piece piece = piece_to(area->start);
      if (piece.range.count == 0) {
        break;
      }
      before[num_before++] = piece;
      area->start = piece.range.start;
    }
    area->run = run_of(seed.range.start);
    if (area->run.count == 0) {
      area->run = seed.range;
    }
    area->reserved = reserved_before(area->run.start);
    for (int i = num_before; i-- > 0;) {
      area->pieces[area->num_pieces++] = before[i];
    }
    area->pieces[area->num_pieces++] = seed;
    area->end = seed.range.end();
    const int32_t high =
        std::max(seed.range.end(), seed.range.start + count) + own;
    for (int hop = 0; area->end < high && hop < Placement::kHops; ++hop) {
      const Piece piece = piece_from(area->end);
      if (piece.range.count == 0) {
        break;
      }
      area->pieces[area->num_pieces++] = piece;
      area->end = piece.range.end();
    }
  }

  void consider(const Area& area, Range range, int32_t own,
                Choice* choice) const {
    // A window that costs more is not chosen. Rounding is given some leeway.
    const float most =
        1.001f * choice->score * static_cast<float>(range.count) -
        Placement::kRangeCost;
    Window window = window_at(range, 0);
    const int32_t before = range.start - area.run.start;
    const int32_t behind = area.run.end() - range.end();
    window.cost = Placement::room_cost(before, area.reserved) +
                  Placement::room_cost(behind, own);
    for (int i = 0; i < area.num_pieces; ++i) {
      const Piece& piece = area.pieces[i];
      if (piece.range.end() <= range.start) {
        continue;
      }
      if (piece.range.start >= range.end() + own) {
        break;
      }
      if (piece.range.start <= range.start) {
        window.anchor = piece.range.start;
      }
      // From the window's begin on the chain is lost. Headroom is not evicted
      // now, but will be.
      const int32_t lost =
          piece.range.end() - std::max(piece.range.start, range.start);
      const int32_t later =
          std::min(lost, range.end() + own - piece.range.start);
      window.cost += piece.range.start < range.end() ? piece.cost(lost)
                                                     : piece.cost(later) / 2;
      if (window.cost > most) {
        return;
      }
    }
    choose(window, choice);
  }

  // ---- References. ----

  // Calls `visit(part)` for the stretches of a range whose blocks have the same
  // references, from the first to the last.
  template <typename Visit>
  void for_each_alike(Range range, Visit visit) const {
    while (range.count > 0) {
      const int32_t alike = refs_.alike_from(range);
      visit(Range{range.start, alike});
      range = {range.start + alike, range.count - alike};
    }
  }

  // As retain(); free blocks are refused unless `takes_free`.
  Result add_references(const RangeList& blocks, bool takes_free) {
    if (const Result checked = check_blocks(blocks); !checked.ok()) {
      return checked;
    }
    if (blocks.num_ranges() == 1) {
      const Range& range = blocks.ranges_.front();
      const int32_t requests = refs_.num_requests(range.start);
      if (requests > 0 && requests < BlockReferences::kMostRequests &&
          refs_.add_if_alike(range, 1)) {
        return {};
      }
    }
    return retain_each(blocks, takes_free);
  }

  // The part of it for several ranges, and for blocks that no request
  // holds.
  [[gnu::noinline]] Result retain_each(const RangeList& blocks,
                                       bool takes_free) {
    // A block may be listed several times, once in each range.
    const auto ranges = static_cast<int64_t>(blocks.num_ranges());
    const int64_t most = BlockReferences::kMostRequests - ranges;
    Result result;
    bool is_close = false;
    for (const Range& range : blocks.ranges_) {
      for_each_alike(range, [&](Range alike) {
        if (result.ok() && !takes_free && refs_.is_idle(alike.start)) {
          result = {Status::kBlockFree, alike.start};
        }
        is_close |= ref_count(alike.start) > most;
      });
    }
    if (result.ok() && is_close) {
      result = try_retain(blocks);
    }
    if (!result.ok()) {
      return result;
    }
    for (const Range& range : blocks.ranges_) {
      for_each_alike(range, [this](Range alike) {
        if (is_held(alike.start)) {
          refs_.add(alike, 1);
        } else if (refs_.is_idle(alike.start)) {
          hold_free(alike);
        } else {
          hold_cached(alike);
        }
      });
    }
    return {};
  }

  // Adds the references on trial and takes them back, since a block's count may
  // come to its limit within the list.
  [[gnu::noinline]] Result try_retain(const RangeList& blocks) {
    Result result;
    size_t added = 0;
    for (; added < blocks.num_ranges(); ++added) {
      const Range& range = blocks.ranges_[added];
      for_each_alike(range, [&](Range alike) {
        if (result.ok() &&
            ref_count(alike.start) == BlockReferences::kMostRequests) {
          result = {Status::kTooManyRefs, alike.start};
        }
      });
      if (!result.ok()) {
        break;
      }
      refs_.add(range, 1);
    }
    while (added-- > 0) {
      refs_.add(blocks.ranges_[added], -1);
    }
    return result;
  }

  // Gives blocks of a free extent their first request reference.
  void hold_free(Range range) {
    int32_t start = range.start;
    while (start > 0 && refs_.is_idle(start - 1)) {
      --start;
    }
    free_.cut({start, free_.length_from(start)}, range);
    if (const Range run = run_of(range.start); run.count > 0) {
      split_run(run, range);
    }
    hold(range);
  }

  // Gives cache-only blocks their first request reference.
  void hold_cached(Range range) {
    queue_.remove(range);
    if (alignment_ == 1) {
      leave_run(range);
    } else {
      for (int32_t g = align_down(range.start); g < range.end();
           g += alignment_) {
        if (!is_group_held(g)) {
          leave_run({g, alignment_});
        }
      }
    }
    refs_.set(range, 1, true);
    stats_.held_blocks += range.count;
  }

  void leave_run(Range range) {
    split_run(run_of(range.start), range);
    available_ -= range.count;
  }

  // Drops a request reference of each block, if all have the same ones. Returns
  // whether they do.
  [[gnu::always_inline]] inline bool drop_alike(const Range& range) {
    if (!is_held(range.start) || !refs_.add_if_alike(range, -1)) {
      return false;
    }
    if (!is_held(range.start)) {
      let_go(range, true);
    }
    return true;
  }

  // Drops a request reference of each block; all have one.
  [[gnu::noinline]] void drop_refs(Range range) {
    if (drop_alike(range)) {
      return;
    }
    refs_.add(range, -1);
    int32_t end = range.end();
    while (end > range.start) {
      const int32_t last = end;
      while (end > range.start && !is_held(end - 1)) {
        end -= refs_.alike_to({range.start, end - range.start});
      }
      if (end < last) {
        let_go({end, last - end}, false);
      }
      while (end > range.start && is_held(end - 1)) {
        end -= refs_.alike_to({range.start, end - range.start});
      }
    }
  }

  // Makes blocks that lost their last request reference free or cache-only;
  // `is_alike` if it is known that all become the same.
  [[gnu::noinline]] void let_go(Range range, bool is_alike) {
    stats_.held_blocks -= range.count;
    demands_[range.end() - 1] = {};
    if (alignment_ == 1 && mixed_.num_extents() == 0 && is_alike &&
        !is_cached(range.start)) {
      available_ += range.count;
      free_.merge(range);
      return;
    }
    const Range left = groups_left(range);
    const Range run = left.count > 0 ? join_runs(left) : left;
    available_ += left.count;
    while (range.count > 0) {
      const int32_t alike = is_alike ? range.count : refs_.alike_to(range);
      range.count -= alike;
      if (is_cached(range.end())) {
        append_segments({range.end(), alike});
      } else {
        free_blocks({range.end(), alike});
      }
    }
    add_run(run);
  }

  // The groups that no request holds any more, now that it does not `range`.
  Range groups_left(Range range) const {
    if (alignment_ == 1) {
      return range;
    }
    int32_t start = align_down(range.start);
    int32_t end = align_down(range.end() - 1) + alignment_;
    start += is_group_held(start) ? alignment_ : 0;
    if (start < end && is_group_held(end - 1)) {
      end -= alignment_;
    }
    return {start, std::max(end - start, 0)};
  }

  // With an alignment no segment is in two groups, so that none is partly in a
  // run.
  void append_segments(Range range) {
    while (alignment_ > 1 && align_down(range.end() - 1) > range.start) {
      const int32_t start = align_down(range.end() - 1);
      queue_.append({start, range.end() - start});
      range.count = start - range.start;
    }
    queue_.append(range);
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

  // Whether a block could be in several of the ranges: only a few are compared.
  static bool may_repeat(const RangeVector& ranges) {
    constexpr size_t kFew = 4;
    for (size_t i = 1; i < std::min(ranges.size(), kFew); ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (ranges[i].start < ranges[j].end() &&
            ranges[j].start < ranges[i].end()) {
          return true;
        }
      }
    }
    return ranges.size() > kFew;
  }

  Result check_releasable(const RangeList& blocks) {
    const bool held = !may_repeat(blocks.ranges_) &&
                      std::all_of(blocks.ranges_.begin(), blocks.ranges_.end(),
                                  [this](const Range& range) {
                                    return refs_.are_held(range);
                                  });
    return held ? Result() : try_release(blocks);
  }

  // A block may be listed in several ranges, so this drops the references on
  // trial and puts them back.
  [[gnu::noinline]] Result try_release(const RangeList& blocks) {
    const Range* lacking = nullptr;
    int32_t b = 0;  // The first block without a reference, of that range.
    const Range* range = blocks.ranges_.data();
    const Range* const end = range + blocks.num_ranges();
    for (; range != end && lacking == nullptr; ++range) {
      if (refs_.are_held(*range)) {
        refs_.add(*range, -1);
        continue;
      }
      for (b = range->start; is_held(b); ++b) {
        refs_.add({b, 1}, -1);
      }
      lacking = range;
    }
    while (range != blocks.ranges_.data()) {
      --range;
      const int32_t stop = range == lacking ? b : range->end();
      refs_.add({range->start, stop - range->start}, 1);
    }
    if (lacking != nullptr) {
      return {Status::kBlockNotHeld, b};
    }
    return {};
  }

  // ---- Checks. ----

  std::string check_blocks_state() const;
  std::string check_extents() const;
  std::string check_runs() const;
  std::string check_segments() const;
  std::string check_index() const;

  const int32_t num_blocks_;
  const int32_t alignment_;
  const int32_t max_ranges_;
  Placement placement_;

  // Per block.
  BlockReferences refs_;
  BlockArray<Demand> demands_;  // Of the request whose last block it is.
  // Of a chain that goes on elsewhere: a link counts if both ends agree.
  BlockArray<Chain> chains_;

  ExtentSet free_;         // Free extents.
  ExtentSet mixed_;        // Runs that are not one free extent.
  BlockSet mixed_starts_;  // Their first blocks.
  EvictionQueue queue_;    // Cache-only blocks.

  int32_t available_ = 0;  // Blocks in runs, see num_free_blocks().
  std::vector<int32_t> evicted_;
  std::vector<int32_t> orphans_;  // Scratch of take().
  PrefixIndex* index_ = nullptr;
  KVStats stats_;  // What is counted as it happens.
};

inline std::string KVAllocator::check_invariants() const {
  for (const std::string& broken :
       {check_blocks_state(), free_.check(num_blocks_),
        mixed_.check(num_blocks_), queue_.check(num_blocks_), check_extents(),
        check_runs(), check_segments(), check_index()}) {
    if (!broken.empty()) {
      return broken;
    }
  }
  return {};
}

inline std::string KVAllocator::check_blocks_state() const {
  int32_t held = 0;
  for (int32_t b = 0; b < num_blocks_; ++b) {
    held += is_held(b);
  }
  int32_t requests = 0;
  for (const int32_t count : stats_.ranges_per_request) {
    requests += count;
    if (count < 0) {
      return "the histogram of ranges has a negative count";
    }
  }
  if (held != stats_.held_blocks || requests != stats_.requests) {
    return "the number of held blocks or of requests is wrong";
  }
  return {};
}

inline std::string KVAllocator::check_extents() const {
  int32_t extents = 0;
  int32_t b = 0;
  while (b < num_blocks_) {
    if (!is_group_idle(b)) {
      b += alignment_;
      continue;
    }
    int32_t end = b;
    while (is_free_group(end)) {
      end += alignment_;
    }
    if (free_.length_from(b) != end - b) {
      return "free blocks [" + std::to_string(b) + ", " + std::to_string(end) +
             ") are not one merged extent";
    }
    ++extents;
    b = end;
  }
  if (extents != free_.num_extents()) {
    return "an extent has blocks that are not free";
  }
  return {};
}

inline std::string KVAllocator::check_runs() const {
  int32_t mixed = 0;
  int32_t available = 0;
  int32_t starts = 0;
  int32_t b = 0;
  while (b < num_blocks_) {
    if (is_group_held(b)) {
      b += alignment_;
      continue;
    }
    int32_t end = b;
    while (end < num_blocks_ && !is_group_held(end)) {
      end += alignment_;
    }
    const bool is_free = free_.length_from(b) == end - b;
    if (mixed_.length_from(b) != (is_free ? 0 : end - b)) {
      return "blocks [" + std::to_string(b) + ", " + std::to_string(end) +
             ") that no request holds are not one run";
    }
    mixed += !is_free;
    starts += !is_free && mixed_starts_.contains(b);
    available += end - b;
    b = end;
  }
  if (available != available_) {
    return "num_free_blocks is " + std::to_string(available_) + ", counted " +
           std::to_string(available);
  }
  if (mixed != mixed_.num_extents() || starts != mixed) {
    return "a mixed run is not one";
  }
  return {};
}

inline std::string KVAllocator::check_segments() const {
  int32_t cache_only = 0;
  for (int32_t b = 0; b < num_blocks_; ++b) {
    cache_only += !is_held(b) && is_cached(b);
  }
  std::string broken;
  queue_.for_each([&](Range segment, int64_t) {
    const bool one_group =
        align_down(segment.start) == align_down(segment.end() - 1);
    if (alignment_ > 1 && !one_group) {
      broken = "a segment is in two groups";
    }
    for (int32_t b = segment.start; b < segment.end(); ++b) {
      if (is_held(b) || !is_cached(b)) {
        broken = "block " + std::to_string(b) +
                 " is in the eviction queue but not cache-only";
      }
    }
  });
  if (broken.empty() && cache_only != queue_.num_blocks()) {
    return "the eviction queue does not hold every cache-only block";
  }
  return broken;
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
  const auto put_range = [&put](Range range) { put(&range, 1); };
  put(&available_, 1);
  refs_.dump(num_blocks_, put);
  put(&chains_[0], num_blocks_);
  put(&demands_[0], num_blocks_);
  free_.for_each(put_range);
  put_range({kNoBlock, 0});
  mixed_.for_each(put_range);
  put_range({kNoBlock, 0});
  queue_.for_each([&](Range segment, int64_t stamp) {
    put_range(segment);
    put(&stamp, 1);
  });
  const int32_t hand = queue_.hand_start();
  put(&hand, 1);
  const float expected = placement_.expected();
  put(&expected, 1);
  put(evicted_.data(), evicted_.size());
  if (index_ != nullptr) {
    bytes += index_->dump();
  }
  return bytes;
}

}  // namespace vllm::tagma
