// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

// The range allocator of the tagma KV cache backend.
//
// A pool of `num_blocks` KV blocks; a request holds its blocks as few
// contiguous ranges. Two kinds of reference are counted apart: request
// references, one for each list that has the block, and at most one cache
// reference (the block is in the prefix cache). With neither, a block is empty;
// with the cache reference only, it is cache-only.
//
// Two decisions are apart. Which blocks leave the cache is upstream's: see
// Residency. Where a request's blocks lie is ours: see Placement. A window is
// made by moving what is cached in it to where blocks have just become empty.
// The moves are known here at once; the workers have to make the copies that
// take_copies() returns before they compute anything for the step.
//
// Not thread-safe: one caller at a time.

#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "allocation.h"
#include "free_order.h"
#include "gather.h"
#include "headroom.h"
#include "kv_ranges.h"
#include "placement.h"
#include "prefix_index.h"
#include "relocation.h"
#include "runs.h"
#include "statistics.h"
#include "window_search.h"

namespace vllm::tagma {

class KVAllocator {
 public:
  static constexpr int32_t kNoBound = Placement::kNoBound;

  // `num_blocks` in [1, kMaxBlocks]. `max_ranges` caps a request's ranges, 0
  // means no cap.
  KVAllocator(int32_t num_blocks, int32_t max_ranges)
      : num_blocks_(num_blocks),
        max_ranges_(max_ranges),
        states_(num_blocks),
        runs_(num_blocks),
        headroom_(num_blocks),
        search_(runs_, headroom_, states_.fence),
        allocation_(num_blocks, &states_, &runs_, headroom_, &search_),
        pinned_(num_blocks) {
    runs_.add_empty({0, num_blocks});
    set_copy_bound(Placement::kCopies);
  }

  KVAllocator(const KVAllocator&) = delete;
  KVAllocator& operator=(const KVAllocator&) = delete;

  int32_t num_blocks() const { return num_blocks_; }
  int32_t max_ranges() const { return max_ranges_; }
  int32_t num_extents() const { return runs_.holes().num_extents(); }
  int32_t num_cache_only_blocks() const { return residency().num_cached(); }

  // Blocks that an allocation can get: those that no request holds.
  int32_t num_free_blocks() const { return residency().num_free(); }

  // Length of the longest stretch of empty blocks, see ExtentSet::longest().
  int32_t largest_extent() const { return runs_.holes().longest().count; }

  // O(1).
  KVStats stats() const {
    KVStats stats = stats_;
    stats.free_blocks = num_free_blocks() - num_cache_only_blocks();
    stats.held_blocks = num_blocks_ - num_free_blocks();
    stats.cache_only_blocks = num_cache_only_blocks();
    stats.extents = num_extents();
    stats.largest_extent = largest_extent();
    return stats;
  }

  bool contains(int64_t block) const {
    return block >= 0 && block < num_blocks_;
  }
  bool is_cached(int32_t block) const { return refs().is_cached(block); }
  bool is_held(int32_t block) const { return refs().is_held(block); }
  int32_t ref_count(int32_t block) const { return refs().num_requests(block); }

  // Blocks evicted by extend() and allocate() since clear_evicted(), in order,
  // by the ids that they had then.
  const std::vector<int32_t>& evicted() const { return evicted_; }
  void clear_evicted() { evicted_.clear(); }

  // Calls `visit(block)` for the blocks that no request holds, the next one to
  // be given away first, with kNoBlock for an empty one.
  template <typename Visit>
  void for_each_free(Visit visit) const {
    residency().for_each(visit);
  }
  FreeOrder free_order() const { return {residency(), runs_.holes()}; }

  // ---- Moves. ----

  // Bounds the copies that an admission may make to gather its hit; those of a
  // step make nearly half as many more at most, for whatever. With 0 no block
  // is ever moved: a request gets the blocks that the order of eviction leaves.
  void set_copy_bound(int32_t copies) {
    copy_bound_ = std::max(copies, 0);
    copies_left_ = Placement::copies_a_step(copy_bound_);
  }
  int32_t copy_bound() const { return copy_bound_; }
  // What is left of them for this step's further admissions.
  int32_t copies_left() const { return copies_left_; }

  // Keeps copies out of blocks that were given back since the last step that
  // has been processed: somebody reads them, and is not told of copies.
  void keep_copies_from_freed(bool keep) { states_.fence.watch_freed(keep); }

  // A step is being scheduled. Returns its number, which counts from one.
  int32_t begin_step() {
    copies_left_ = Placement::copies_a_step(copy_bound_);
    states_.fence.begin_step();
    return states_.fence.scheduled();
  }

  // The workers have processed a step and all before it: blocks whose hashes it
  // set may be moved.
  void process_step(int32_t step) {
    states_.fence.process(step);
    release_pinned();
  }

  int32_t scheduled_step() const { return states_.fence.scheduled(); }
  int32_t processed_step() const { return states_.fence.processed(); }

  // Replaces `copies` by those that the step needs, to be made before anything
  // else of it is done on the device: see Copies::take().
  size_t take_copies(std::vector<Copy>* copies) {
    const size_t ordered = states_.copies.take(copies);
    stats_.block_copies += static_cast<int64_t>(copies->size());
    return ordered;
  }

  // Moves since clear_moves(), if they are recorded: each before the next, by
  // the ids that blocks had then. The number of blocks stands for a place where
  // a content waited.
  void record_moves(bool record) { states_.records_moves = record; }
  const std::vector<Copy>& moves() const { return states_.moves; }
  void clear_moves() { states_.moves.clear(); }

  // Where what is in `block` lies until the copies of this step are made.
  int32_t source_of(int32_t block) const {
    return states_.copies.source_of(block);
  }

  // ---- Requests. ----

  // Takes one contiguous range.
  Result allocate(int64_t count, Range* range) {
    if (count < 1) {
      return {Status::kBadCount, count};
    }
    if (count > num_free_blocks()) {
      return {Status::kOutOfBlocks, num_free_blocks()};
    }
    const auto n = static_cast<int32_t>(count);
    reserve_records(n);
    begin(n);
    Range window = allocation_.take_one(n, most_copies());
    if (!allocation_.place_displaced()) {
      allocation_.cancel();
      allocation_.begin(n);
      window = allocation_.take_one(n, 0);
    }
    if (window.count < n) {
      allocation_.cancel();
      return {Status::kNoExtent, window.count};
    }
    finish();
    *range = window;
    return {};
  }

  // Appends `count` blocks to `request`: in place behind its last range if it
  // can, else in windows that the placement chooses. If not null, `appended`,
  // which must be another list, then holds just the new blocks.
  //
  // The first time, what was acquired before is taken for the request's prefix,
  // whose ids nobody has read yet: its pieces may be moved together. Fails for
  // the cap only if no choice of ranges would stay below it; lengths are known
  // to 1/32 there, see ExtentSet::longest().
  [[gnu::always_inline]] inline Result extend(RangeList* request, int64_t count,
                                              RangeList* appended = nullptr) {
    // A request that decodes needs one block at a time.
    if (count == 1 && !request->empty() && request->is_extended() &&
        residency().num_in_front() > 0) {
      const int32_t end = request->ranges_.back().end();
      if (runs_.hole_from(end) > 0) {
        grow_in_place(request, end, appended);
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

  // Adds a request reference to each of `blocks`, none of which may be empty,
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

  // Adds a request reference to each of `blocks`. Empty ones leave the order of
  // eviction from its front, see Residency::take_nameless().
  Result retain(const RangeList& blocks) {
    return add_references(blocks, true);
  }

  // Drops a request reference of each block, last block first, and clears the
  // list. Blocks that only the cache holds then are the last to be evicted,
  // empty ones the first.
  Result release(RangeList* blocks) {
    if (const Result checked = check_blocks(*blocks); !checked.ok()) {
      return checked;
    }
    if (blocks->num_ranges() != 1 || !drop_alike(blocks->ranges_.front())) {
      if (const Result checked = check_releasable(*blocks); !checked.ok()) {
        return checked;
      }
      for (size_t i = blocks->num_ranges(); i-- > 0;) {
        drop_refs(blocks->ranges_[i]);
      }
    }
    if (blocks->bucket_ != RangeList::kNoBucket) {
      withdraw_demand(*blocks);
      headroom_.observe(std::max(blocks->grown_, 0));
      --stats_.ranges_per_request[blocks->bucket_];
      --stats_.requests;
    }
    blocks->clear();
    return {};
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

  // ---- The prefix cache. ----

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
    states_.index = index;
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
    PrefixIndex& index = *states_.index;
    index.reserve(keys, stop - start);
    *cached = 0;
    auto position = static_cast<int32_t>(start);
    blocks.for_each(start, stop, [&](int32_t b) {
      const BlockKey& key = *keys++;
      const int32_t at = position++;
      if (!is_cached(b)) {
        states_.refs.cache(b);
        ++*cached;
      } else if (index.key_of(b) == key) {
        return true;
      } else {
        index.erase(b);
      }
      states_.fence.note_hashed(b);
      index.insert(b, key, at);
      return true;
    });
    return {};
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
        states_.refs.uncache(b);
        return true;
      });
    }
    return result;
  }

  // Sets the block's cache reference; a request must hold the block. Not for a
  // pool with an index.
  Result cache(int32_t block) {
    if (states_.index != nullptr) {
      return {Status::kIndexed, block};
    }
    if (!is_held(block)) {
      return {Status::kBlockNotHeld, block};
    }
    if (is_cached(block)) {
      return {Status::kAlreadyCached, block};
    }
    states_.refs.cache(block);
    states_.fence.note_hashed(block);
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

  // Drops the block's cache reference; a cache-only block becomes empty, and
  // keeps its place in the order of eviction.
  Result uncache(int32_t block) {
    if (!is_cached(block)) {
      return {Status::kNotCached, block};
    }
    states_.refs.uncache(block);
    if (states_.index != nullptr) {
      states_.index->erase(block);
    }
    if (!is_held(block)) {
      states_.residency.strip(block);
      states_.copies.forget(block);
      runs_.make_empty({block, 1});
    }
    return {};
  }

  // Drops every cache reference. Scans the pool.
  void uncache_all() {
    for (int32_t b = 0; b < num_blocks_; ++b) {
      (void)uncache(b);
    }
  }

  // ---- Checks. ----

  // The first broken invariant in words, or an empty string. Scans the pool.
  std::string check_invariants() const;

  // Everything that later operations depend on, as bytes to compare.
  std::string dump() const;

  // What searches and choices of pieces have cost so far.
  const WindowSearch& search() const { return search_; }
  const Gather& gather() const { return allocation_.gather(); }

 private:
  friend class Checker;
  friend class ReferenceLimitTest;  // Nobody adds 2^31 references one by one.

  const BlockReferences& refs() const { return states_.refs; }
  const Residency& residency() const { return states_.residency; }

  bool exceeds_cap(size_t ranges) const {
    return max_ranges_ > 0 && ranges > static_cast<size_t>(max_ranges_);
  }
  // For a request that runs already: it needs one range more or a few copies.
  int32_t most_copies() const { return copy_bound_ > 0 ? kNoBound : 0; }

  // ---- Extending. ----

  // Makes sure that an allocation that evicts `count` blocks needs no memory to
  // record that.
  void reserve_records(int32_t count) {
    if (states_.records_moves) {
      reserve_more(states_.moves, 2 * num_blocks_);
    }
    reserve_more(evicted_, count);
    if (states_.index != nullptr) {
      states_.index->reserve_evicted(count);
    }
  }

  void begin(int32_t count) {
    headroom_.set_load(num_free_blocks(), stats_.requests);
    allocation_.begin(count);
  }

  // Returns how many blocks were moved.
  int32_t finish() {
    stats_.kept_blocks += allocation_.num_displaced();
    stats_.evicted_blocks -= static_cast<int64_t>(evicted_.size());
    const int32_t moves = allocation_.finish(&evicted_);
    stats_.evicted_blocks += static_cast<int64_t>(evicted_.size());
    return moves;
  }

  // Takes the next block, which is empty.
  [[gnu::always_inline]] inline void grow_in_place(RangeList* request,
                                                   int32_t end,
                                                   RangeList* appended) {
    if (appended != nullptr) {
      appended->assign({end, 1});  // May fail, so before anything changes.
    }
    states_.residency.take_empty(1);
    runs_.take_front(end, 1);
    states_.refs.set({end, 1}, 1, false);
    headroom_.withdraw(end - 1);
    request->lengthen(1);
    request->grown_ = growth(*request, 1);
    headroom_.place(end, request->grown_, request->expected_);
  }

  // The part of extend() for whatever is not just that.
  [[gnu::noinline]] Result extend_by(RangeList* request, int64_t count,
                                     RangeList* appended) {
    if (count < 1) {
      return {Status::kBadCount, count};
    }
    if (count > num_free_blocks()) {
      return {Status::kOutOfBlocks, num_free_blocks()};
    }
    const auto n = static_cast<int32_t>(count);
    if (appended != nullptr) {
      appended->clear();
    }
    reserve_records(n);
    const int32_t last =
        request->empty() ? kNoBlock : request->ranges_.back().end() - 1;
    const Headroom::Demand demand =
        last == kNoBlock ? Headroom::Demand{} : headroom_.withdraw(last);
    begin(n);
    plan(*request, n);
    bool is_done = may_commit(*request);
    const int32_t closed = std::min(allocation_.num_unplaced(), n);
    if (!is_done && closed > 0) {
      allocation_.cancel();
      allocation_.begin(n);
      plan_with_closed(*request, n, closed);
      is_done = may_commit(*request);
    }
    for (const int32_t copies : {most_copies(), 0}) {
      if (!is_done) {
        allocation_.cancel();
        allocation_.begin(n);
        allocation_.take_fewest(*request, n, copies);
        is_done = may_commit(*request);
      }
    }
    const size_t ranges = allocation_.num_ranges(*request);
    const auto cancel = [&] {
      allocation_.cancel();
      if (last != kNoBlock) {
        headroom_.restore(last, demand);
      }
    };
    if (!is_done) {
      cancel();
      ++stats_.cap_events;
      return {Status::kRangeCap, static_cast<int64_t>(ranges)};
    }
    try {
      allocation_.reserve(request, appended);
    } catch (...) {
      cancel();
      throw;
    }
    const size_t ranges_before = request->num_ranges();
    const bool is_admission = !request->is_extended();
    allocation_.hand_over(request, appended);
    const int32_t moves = finish();
    copies_left_ = std::max(copies_left_ - moves, 0);
    stats_.spills += !is_admission && request->num_ranges() > ranges_before;
    request->grown_ = growth(*request, n);
    headroom_.place(request->ranges_.back().end() - 1, request->grown_,
                    request->expected_);
    track(request);
    return {};
  }

  // Whether what was taken stays below the cap and can be made room in.
  bool may_commit(const RangeList& request) {
    return !exceeds_cap(allocation_.num_ranges(request)) &&
           allocation_.place_displaced();
  }

  // Takes blocks for `request` as the placement has it.
  void plan(const RangeList& request, int32_t n) {
    Wish wish{n, request.expected_};
    wish.own = headroom_.wanted(growth(request, n), 0);
    if (request.is_extended()) {
      wish.copies = most_copies();
      allocation_.take_behind(request.ranges_.back().end(), wish);
    } else if (request.empty()) {
      wish.copies = copies_left_;
      allocation_.take_windows(wish);
    } else {
      wish.copies = copies_left_;
      allocation_.admit(request, wish, std::min(copy_bound_, copies_left_));
    }
  }

  // What `request` has grown by once it gets `count` blocks; its first ones do
  // not count.
  int32_t growth(const RangeList& request, int32_t count) const {
    if (!request.is_extended()) {
      return 0;
    }
    return request.grown_ + (count <= Placement::kGrowthStep ? count : 0);
  }

  // The same if `closed` cached blocks would have to move to where nothing may
  // be copied yet: the request takes these places, and its windows are smaller.
  void plan_with_closed(const RangeList& request, int32_t n, int32_t closed) {
    if (request.empty()) {
      n -= allocation_.take_closed(closed);  // It grows on behind a window.
    } else {
      n -= closed;
    }
    if (n > 0) {
      plan(request, n);
    }
    if (!request.empty()) {
      closed -= allocation_.take_closed(closed);
      allocation_.take_fewest(request, closed, 0);
    }
  }

  void withdraw_demand(const RangeList& request) {
    if (!request.empty()) {
      (void)headroom_.withdraw(request.ranges_.back().end() - 1);
    }
  }

  void track(RangeList* request) {
    stats_.count_request(request->num_ranges(), &request->bucket_);
  }

  // ---- References. ----

  // Calls `visit(part)` for the stretches of a range whose blocks have the same
  // references, from the first to the last.
  template <typename Visit>
  void for_each_alike(Range range, Visit visit) const {
    while (range.count > 0) {
      const int32_t alike = refs().alike_from(range);
      visit(Range{range.start, alike});
      range = {range.start + alike, range.count - alike};
    }
  }

  // As retain(); empty blocks are refused unless `takes_empty`.
  Result add_references(const RangeList& blocks, bool takes_empty) {
    if (const Result checked = check_blocks(blocks); !checked.ok()) {
      return checked;
    }
    if (blocks.num_ranges() == 1) {
      const Range& range = blocks.ranges_.front();
      const int32_t requests = ref_count(range.start);
      if (requests > 0 && requests < BlockReferences::kMostRequests &&
          states_.refs.add_if_alike(range, 1)) {
        return {};
      }
    }
    return retain_each(blocks, takes_empty);
  }

  // The part of it for several ranges, and for blocks that no request holds.
  [[gnu::noinline]] Result retain_each(const RangeList& blocks,
                                       bool takes_empty) {
    // A block may be listed several times, once in each range.
    const auto ranges = static_cast<int64_t>(blocks.num_ranges());
    const int64_t most = BlockReferences::kMostRequests - ranges;
    Result result;
    bool is_close = false;
    for (const Range& range : blocks.ranges_) {
      for_each_alike(range, [&](Range alike) {
        if (result.ok() && !takes_empty && refs().is_idle(alike.start)) {
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
          states_.refs.add(alike, 1);
        } else if (is_cached(alike.start)) {
          hold_cached(alike);
        } else {
          hold_empty(alike);
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
      states_.refs.add(range, 1);
    }
    while (added-- > 0) {
      states_.refs.add(blocks.ranges_[added], -1);
    }
    return result;
  }

  // Gives empty blocks their first request reference.
  void hold_empty(Range range) {
    states_.residency.take_nameless(range.count);
    runs_.take(range, [](Range) {});
    states_.refs.set(range, 1, false);
  }

  // Gives cache-only blocks their first request reference.
  void hold_cached(Range range) {
    states_.refs.set(range, 1, true);
    for (int32_t b = range.end(); b-- > range.start;) {
      states_.residency.remove(b);
    }
    // Those that may not be moved yet are in no run.
    for (int32_t b = range.start; b < range.end();) {
      int32_t end = b;
      while (end < range.end() && runs_.is_cached(end)) {
        ++end;
      }
      if (end > b) {
        runs_.hold_cached({b, end - b});
      }
      b = std::max(end, b + 1);
    }
  }

  // Drops a request reference of each block, if all have the same ones. Returns
  // whether they do.
  [[gnu::always_inline]] inline bool drop_alike(const Range& range) {
    if (!is_held(range.start) || !states_.refs.add_if_alike(range, -1)) {
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
    states_.refs.add(range, -1);
    int32_t end = range.end();
    while (end > range.start) {
      const int32_t last = end;
      while (end > range.start && !is_held(end - 1)) {
        end -= refs().alike_to({range.start, end - range.start});
      }
      if (end < last) {
        let_go({end, last - end}, false);
      }
      while (end > range.start && is_held(end - 1)) {
        end -= refs().alike_to({range.start, end - range.start});
      }
    }
  }

  // Makes blocks that lost their last request reference empty or cache-only,
  // the last one first; `is_alike` if it is known that all become the same.
  [[gnu::noinline]] void let_go(Range range, bool is_alike) {
    (void)headroom_.withdraw(range.end() - 1);
    if (states_.fence.watches_freed()) {
      states_.fence.note_freed(range);
    }
    while (range.count > 0) {
      const int32_t alike = is_alike ? range.count : refs().alike_to(range);
      range.count -= alike;
      const Range part{range.end(), alike};
      if (!is_cached(part.start)) {
        states_.residency.add_empty(alike);
        runs_.add_empty(part);
        continue;
      }
      for (int32_t b = part.end(); b-- > part.start;) {
        states_.residency.append(b);
      }
      add_cached(part);
    }
  }

  // Cache-only blocks that may not be moved yet are in no run.
  void add_cached(Range range) {
    for (int32_t b = range.start; b < range.end();) {
      int32_t end = b;
      while (end < range.end() && states_.fence.may_be_copied(end)) {
        ++end;
      }
      if (end > b) {
        runs_.add_cached({b, end - b});
      }
      if (end < range.end() && !pinned_.contains(end)) {
        pinned_.insert(end);
      }
      b = end + 1;
    }
  }

  // Puts blocks in runs that may be moved now.
  void release_pinned() {
    for (int32_t b = pinned_.at_or_after(0); b < num_blocks_;
         b = pinned_.at_or_after(b + 1)) {
      if (is_held(b) || !is_cached(b) || runs_.is_cached(b)) {
        pinned_.erase(b);  // Something has become of it since.
      } else if (states_.fence.may_be_copied(b)) {
        pinned_.erase(b);
        runs_.add_cached({b, 1});
      }
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
                                    return refs().are_held(range);
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
      if (refs().are_held(*range)) {
        states_.refs.add(*range, -1);
        continue;
      }
      for (b = range->start; is_held(b); ++b) {
        states_.refs.add({b, 1}, -1);
      }
      lacking = range;
    }
    while (range != blocks.ranges_.data()) {
      --range;
      const int32_t stop = range == lacking ? b : range->end();
      states_.refs.add({range->start, stop - range->start}, 1);
    }
    if (lacking != nullptr) {
      return {Status::kBlockNotHeld, b};
    }
    return {};
  }

  const int32_t num_blocks_;
  const int32_t max_ranges_;

  BlockStates states_;
  Runs runs_;
  Headroom headroom_;
  WindowSearch search_;
  Allocation allocation_;

  int32_t copy_bound_ = 0;
  int32_t copies_left_ = 0;  // For this step's requests.
  BlockSet pinned_;  // Cache-only blocks that may not be moved yet, and others.
  std::vector<int32_t> evicted_;
  KVStats stats_;  // What is counted as it happens.
};

}  // namespace vllm::tagma

#include "checker.h"
