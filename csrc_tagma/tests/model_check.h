// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

// Operations on a small pool, each checked against a model that scans for
// everything. What to do comes from a source of bytes: a seeded generator in
// differential_test.cpp, a fuzzer in ../fuzz/kv_allocator_fuzz.cpp.
//
// The model knows what the engine promises, not its policies: any placement
// and any order of eviction passes as long as every promise is kept.

#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "kv_allocator.h"
#include "prefix_index.h"

namespace vllm::tagma::testing {

struct PoolConfig {
  int32_t num_blocks;
  int32_t alignment;
  int32_t max_ranges;
  bool indexed;  // A prefix index names the cached blocks.
};

inline constexpr std::array<PoolConfig, 10> kPools = {{
    {40, 1, 0, false},
    {96, 1, 4, true},
    {128, 4, 3, false},
    {256, 1, 8, true},
    {60, 5, 0, true},
    {256, 1, 256, false},
    {144, 16, 4, true},
    {7, 1, 2, true},
    {1, 1, 1, false},
    {1024, 1, 16, true},
}};

// What the engine must hold, and what it may do next.
class Model {
 public:
  explicit Model(const PoolConfig& pool)
      : pool_(pool),
        refs(pool.num_blocks, 0),
        cached(pool.num_blocks, false),
        keys(pool.num_blocks) {}

  bool contains(int64_t block) const {
    return block >= 0 && block < pool_.num_blocks;
  }
  bool is_held(int32_t block) const { return refs[block] > 0; }
  bool is_free(int32_t block) const {
    return !is_held(block) && !cached[block];
  }

  // Lengths of the stretches of aligned groups of which no block is held, or,
  // with `free`, of which every block is free. In order of address.
  std::vector<int32_t> stretches(bool free) const {
    std::vector<int32_t> lengths;
    bool open = false;
    for (int32_t group = 0; group < pool_.num_blocks;
         group += pool_.alignment) {
      bool good = true;
      for (int32_t b = group; b < group + pool_.alignment; ++b) {
        good &= free ? is_free(b) : !is_held(b);
      }
      if (good && !open) {
        lengths.push_back(0);
      }
      if (good) {
        lengths.back() += pool_.alignment;
      }
      open = good;
    }
    return lengths;
  }

  // The fewest ranges that `blocks` can have with `count` more of the free
  // blocks, which must be enough.
  size_t fewest_ranges(std::vector<int32_t> blocks, int32_t count) const {
    Model rest = *this;
    while (count > 0 && !blocks.empty()) {
      const int32_t next = blocks.back() + 1;
      if (!contains(next) || next % pool_.alignment != 0 ||
          !rest.is_free_group(next)) {
        break;
      }
      for (int32_t b = next; b < next + pool_.alignment; ++b) {
        rest.refs[b] = 1;
        blocks.push_back(b);
      }
      count -= pool_.alignment;
    }
    size_t ranges = count_ranges(blocks);
    std::vector<int32_t> lengths = rest.stretches(/*free=*/true);
    std::sort(lengths.rbegin(), lengths.rend());
    for (size_t i = 0; i < lengths.size() && count > 0; ++i, ++ranges) {
      count -= lengths[i];
    }
    return ranges;
  }

  static size_t count_ranges(const std::vector<int32_t>& blocks) {
    size_t ranges = 0;
    for (size_t i = 0; i < blocks.size(); ++i) {
      ranges += i == 0 || blocks[i] != blocks[i - 1] + 1;
    }
    return ranges;
  }

  void insert_key(int32_t block, const std::string& key) {
    keys[block] = key;
    entries[key].push_back(block);
  }

  // Drops the cache reference and the index entry, if there is one.
  void uncache(int32_t block) {
    cached[block] = false;
    if (pool_.indexed) {
      erase_key(block);
    }
  }

  void erase_key(int32_t block) {
    const auto entry = entries.find(keys[block]);
    std::deque<int32_t>& blocks = entry->second;
    blocks.erase(std::find(blocks.begin(), blocks.end(), block));
    if (blocks.empty()) {
      entries.erase(entry);
    }
  }

 private:
  bool is_free_group(int32_t group) const {
    for (int32_t b = group; b < group + pool_.alignment; ++b) {
      if (!is_free(b)) {
        return false;
      }
    }
    return true;
  }

  PoolConfig pool_;

 public:
  std::vector<int32_t> refs;
  std::vector<bool> cached;
  std::vector<std::string> keys;                       // Of cached blocks.
  std::map<std::string, std::deque<int32_t>> entries;  // Oldest block first.
};

// Ends the operation with what is wrong.
#define TAGMA_EXPECT(condition)                                    \
  do {                                                             \
    if (!(condition)) {                                            \
      error_ = std::to_string(__LINE__) + ": not so: " #condition; \
      return;                                                      \
    }                                                              \
  } while (false)

// `Choices` has `uint8_t byte()`, which never ends.
template <typename Choices>
class ModelCheck {
 public:
  ModelCheck(const PoolConfig& pool, Choices* choices)
      : pool_(pool),
        choices_(*choices),
        index_(pool.num_blocks),
        engine_(pool.num_blocks, pool.alignment, pool.max_ranges),
        model_(pool) {
    requests_.resize(2 + pool.num_blocks / 24);
    if (pool.indexed && !engine_.attach(&index_).ok()) {
      error_ = "cannot attach the index";
    }
  }

  // Does one operation and compares the whole pool with the model. Returns the
  // first thing that is wrong, or an empty string.
  std::string step() {
    before_ = engine_.dump();
    operate();
    if (error_.empty()) {
      compare();
    }
    return error_;
  }

  int64_t num_failed_calls() const { return num_failed_calls_; }
  int64_t num_evicted() const { return num_evicted_; }

 private:
  using Blocks = std::vector<int32_t>;

  struct Request {
    RangeList list;
    Blocks blocks;
  };

  void operate() {
    const int kind = choices_.byte() % 100;
    if (kind < 36) {
      extend(any_request());
    } else if (kind < 49) {
      release(any_request());
    } else if (kind < 56) {
      acquire(any_request(), any_blocks());
    } else if (kind < 60) {
      hit(any_request());
    } else if (kind < 64) {
      allocate();
    } else if (kind < 69) {
      release_loose();
    } else if (kind < 72) {
      retain(any_blocks());
    } else if (kind < 92) {
      cache();
    } else if (kind < 97) {
      uncache();
    } else {
      release_too_much();
    }
  }

  // ---- Choices. ----

  int32_t below(int32_t limit) {
    const int low = choices_.byte();
    return (limit > 256 ? low | choices_.byte() << 8 : low) % limit;
  }

  Request& any_request() {
    return requests_[below(static_cast<int32_t>(requests_.size()))];
  }

  int64_t any_count() {
    const int kind = choices_.byte();
    if (kind < 160) {
      return 1 + kind % 3;
    }
    if (kind < 240) {
      return 1 + below(pool_.num_blocks);
    }
    constexpr std::array<int64_t, 4> kUnusual = {0, -1, INT64_MAX, INT64_MIN};
    return kind < 248 ? kUnusual[kind % 4] : pool_.num_blocks;
  }

  // A part of what a request holds, or blocks from anywhere, some outside.
  Blocks any_blocks() {
    Blocks blocks;
    const int kind = choices_.byte();
    if (kind < 128) {
      const Blocks& from = any_request().blocks;
      const auto stop = static_cast<int32_t>(from.size());
      const int32_t begin = kind % 2 == 0 || stop == 0 ? 0 : below(stop);
      blocks.assign(from.begin() + begin, from.end());
      blocks.resize(std::min<size_t>(blocks.size(), kind / 8));
      return blocks;
    }
    for (int i = kind % 4; i >= 0; --i) {
      blocks.push_back(below(pool_.num_blocks));
    }
    if (kind >= 250) {
      blocks.push_back(kind % 2 == 0 ? -1 : pool_.num_blocks);
    }
    return blocks;
  }

  // Few enough for the same key to come again; most are as long as a hash.
  std::string any_key() {
    const int id = choices_.byte();
    const size_t size = id < 224 ? 32 : id < 240 ? 100 : id % 16;
    std::string key(size, static_cast<char>('a' + id % 16));
    for (size_t i = 0; i < key.size() && i < 8; ++i) {
      key[i] = static_cast<char>(id);
    }
    return key;
  }

  // ---- Operations. ----

  void extend(Request& request) {
    const int64_t count = any_count();
    const bool with_view = choices_.byte() % 8 > 0;
    RangeList view;
    const Result result =
        engine_.extend(&request.list, count, with_view ? &view : nullptr);
    num_cap_events_ += result.status == Status::kRangeCap;
    if (!result.ok()) {
      expect_unchanged(request);
      if (error_.empty()) {
        expect_cannot_extend(request, count, result);
      }
      return;
    }
    TAGMA_EXPECT(count >= 1);
    Blocks added = blocks_of(request.list);
    TAGMA_EXPECT(added.size() > request.blocks.size());
    added.erase(added.begin(), added.begin() + request.blocks.size());
    TAGMA_EXPECT(!with_view || view.ranges() == list_of(added).ranges());
    TAGMA_EXPECT(static_cast<int64_t>(added.size()) == round_up(count));
    take(added);
    request.blocks.insert(request.blocks.end(), added.begin(), added.end());
  }

  void expect_cannot_extend(const Request& request, int64_t count,
                            const Result& result) {
    if (count < 1) {
      TAGMA_EXPECT(result.status == Status::kBadCount);
      return;
    }
    if (count > sum(model_.stretches(/*free=*/false)) ||
        round_up(count) > sum(model_.stretches(/*free=*/false))) {
      TAGMA_EXPECT(result.status == Status::kOutOfBlocks);
      return;
    }
    TAGMA_EXPECT(result.status == Status::kRangeCap);
    TAGMA_EXPECT(pool_.max_ranges > 0);
    const auto rounded = static_cast<int32_t>(round_up(count));
    if (rounded <= sum(model_.stretches(/*free=*/true))) {
      TAGMA_EXPECT(model_.fewest_ranges(request.blocks, rounded) >
                   static_cast<size_t>(pool_.max_ranges));
    }
  }

  void allocate() {
    const int64_t count = any_count();
    const std::vector<int32_t> stretches = model_.stretches(/*free=*/false);
    const int32_t longest =
        stretches.empty()
            ? 0
            : *std::max_element(stretches.begin(), stretches.end());
    Range range;
    const Result result = engine_.allocate(count, &range);
    if (!result.ok()) {
      expect_unchanged();
      const Status expected =
          count < 1 ? Status::kBadCount
          : count > sum(stretches) || round_up(count) > sum(stretches)
              ? Status::kOutOfBlocks
              : Status::kNoExtent;
      TAGMA_EXPECT(result.status == expected);
      TAGMA_EXPECT(count < 1 || count > longest || round_up(count) > longest);
      return;
    }
    TAGMA_EXPECT(count >= 1);
    TAGMA_EXPECT(range.count == round_up(count));
    Blocks blocks;
    for (int32_t b = range.start; b < range.end(); ++b) {
      blocks.push_back(b);
    }
    take(blocks);
    loose_.insert(loose_.end(), blocks.begin(), blocks.end());
  }

  // The engine gave out `blocks`: none may be held, and those that were cached
  // must be among the evicted ones, of which none may be held either.
  void take(const Blocks& blocks) {
    for (const int32_t b : engine_.evicted()) {
      TAGMA_EXPECT(model_.contains(b));
      TAGMA_EXPECT(model_.cached[b]);
      TAGMA_EXPECT(!model_.is_held(b));
      model_.uncache(b);
      ++num_evicted_;
    }
    engine_.clear_evicted();
    for (size_t i = 0; i < blocks.size(); ++i) {
      const int32_t b = blocks[i];
      TAGMA_EXPECT(model_.contains(b));
      TAGMA_EXPECT(model_.is_free(b));
      // Whole aligned groups, in order.
      TAGMA_EXPECT(i % pool_.alignment == 0 ? b % pool_.alignment == 0
                                            : b == blocks[i - 1] + 1);
      model_.refs[b] = 1;
    }
  }

  void release(Request& request) {
    TAGMA_EXPECT(engine_.release(&request.list).ok());
    TAGMA_EXPECT(request.list.empty());
    drop(request.blocks);
    request.blocks.clear();
  }

  void acquire(Request& request, const Blocks& blocks) {
    Blocks expected = request.blocks;
    expected.insert(expected.end(), blocks.begin(), blocks.end());
    const bool over_cap =
        pool_.max_ranges > 0 &&
        Model::count_ranges(expected) > static_cast<size_t>(pool_.max_ranges);
    const Result result = engine_.acquire(&request.list, list_of(blocks));
    num_cap_events_ += result.status == Status::kRangeCap;
    TAGMA_EXPECT(result.ok() ==
                 (blocks.empty() || (can_retain(blocks) && !over_cap)));
    if (!result.ok()) {
      expect_unchanged(request);
      return;
    }
    add(blocks);
    request.blocks = expected;
  }

  void retain(const Blocks& blocks) {
    const Result result = engine_.retain(list_of(blocks));
    TAGMA_EXPECT(result.ok() == can_retain(blocks));
    if (!result.ok()) {
      expect_unchanged();
      return;
    }
    add(blocks);
    loose_.insert(loose_.end(), blocks.begin(), blocks.end());
  }

  // Drops some of the references that belong to no request.
  void release_loose() {
    const auto count = static_cast<size_t>(choices_.byte() % 8);
    Blocks blocks;
    while (blocks.size() < count && !loose_.empty()) {
      blocks.push_back(loose_.back());
      loose_.pop_back();
    }
    RangeList list = list_of(blocks);
    TAGMA_EXPECT(engine_.release(&list).ok());
    drop(blocks);
  }

  // More often than the block is held, or outside the pool.
  void release_too_much() {
    Blocks blocks = any_blocks();
    const int32_t block = below(pool_.num_blocks + 1);
    const int times = model_.contains(block) ? model_.refs[block] + 1 : 1;
    blocks.insert(blocks.end(), times, block);
    const RangeList list = list_of(blocks);
    RangeList passed = list;
    TAGMA_EXPECT(!engine_.release(&passed).ok());
    TAGMA_EXPECT(passed.ranges() == list.ranges());
    expect_unchanged();
  }

  void cache() {
    const int kind = choices_.byte();
    if (pool_.indexed && kind < 224) {
      cache_prefix(any_request());
    } else if (pool_.indexed) {
      cache_what_is_not_held();
    } else if (kind < 128) {
      cache_list(any_blocks());
    } else {
      cache_block();
    }
  }

  void cache_block() {
    const int32_t b = below(pool_.num_blocks);
    const Result result = engine_.cache(b);
    TAGMA_EXPECT(result.ok() == (model_.is_held(b) && !model_.cached[b]));
    if (!result.ok()) {
      expect_unchanged();
    }
    model_.cached[b] = model_.cached[b] || result.ok();
  }

  void cache_list(const Blocks& blocks) {
    Model after = model_;
    bool allowed = true;
    for (const int32_t b : blocks) {
      allowed =
          allowed && after.contains(b) && after.is_held(b) && !after.cached[b];
      if (allowed) {
        after.cached[b] = true;
      }
    }
    const Result result = engine_.cache(list_of(blocks));
    TAGMA_EXPECT(result.ok() == allowed);
    if (result.ok()) {
      model_ = after;
    } else {
      expect_unchanged();
    }
  }

  void cache_what_is_not_held() {
    const int32_t b = below(pool_.num_blocks + 1);
    const std::string key = any_key();
    const BlockKey view = key;
    int64_t cached = 0;
    if (!model_.contains(b) || !model_.is_held(b)) {
      const RangeList list = list_of({b});
      TAGMA_EXPECT(!engine_.cache_prefix(list, 0, 1, &view, &cached).ok());
      expect_unchanged();
    }
  }

  void cache_prefix(const Request& request) {
    const auto length = static_cast<int32_t>(request.blocks.size());
    const int32_t start = length == 0 ? 0 : below(length);
    const int32_t stop =
        start + (length == start ? 0 : below(length - start + 1));
    std::vector<std::string> keys;
    for (int32_t i = start; i < stop; ++i) {
      keys.push_back(any_key());
    }
    const std::vector<BlockKey> views(keys.begin(), keys.end());
    int64_t cached = 0;
    const Result result =
        engine_.cache_prefix(request.list, start, stop, views.data(), &cached);
    TAGMA_EXPECT(result.ok());
    int64_t expected = 0;
    for (int32_t i = start; i < stop; ++i) {
      const int32_t b = request.blocks[i];
      const std::string& key = keys[i - start];
      if (model_.cached[b] && model_.keys[b] == key) {
        continue;
      }
      if (model_.cached[b]) {
        model_.erase_key(b);
      }
      expected += !model_.cached[b];
      model_.cached[b] = true;
      model_.insert_key(b, key);
    }
    TAGMA_EXPECT(cached == expected);
    TAGMA_EXPECT(engine_.cache(below(pool_.num_blocks)).status ==
                 Status::kIndexed);
  }

  void uncache() {
    const int kind = choices_.byte();
    if (kind == 0) {
      engine_.uncache_all();
      for (int32_t b = 0; b < pool_.num_blocks; ++b) {
        uncache_in_model(b);
      }
    } else if (kind < 64) {
      uncache_list(any_blocks());
    } else {
      uncache_block();
    }
  }

  void uncache_list(const Blocks& blocks) {
    const Result result = engine_.uncache(list_of(blocks));
    const bool allowed =
        std::all_of(blocks.begin(), blocks.end(),
                    [this](int32_t b) { return model_.contains(b); });
    TAGMA_EXPECT(result.ok() == allowed);
    if (!result.ok()) {
      expect_unchanged();
      return;
    }
    for (const int32_t b : blocks) {
      uncache_in_model(b);
    }
  }

  void uncache_in_model(int32_t block) {
    if (model_.cached[block]) {
      model_.uncache(block);
    }
  }

  void uncache_block() {
    const int32_t b = below(pool_.num_blocks);
    const Result result = engine_.uncache(b);
    TAGMA_EXPECT(result.ok() == model_.cached[b]);
    if (result.ok()) {
      model_.uncache(b);
    } else {
      expect_unchanged();
    }
  }

  // Looks a prefix up and acquires what is found.
  void hit(Request& request) {
    std::vector<std::string> keys;
    for (int i = choices_.byte() % 6; i > 0; --i) {
      keys.push_back(any_key());
    }
    Blocks expected;
    for (const std::string& key : keys) {
      const auto entry = model_.entries.find(key);
      if (entry == model_.entries.end()) {
        break;
      }
      expected.push_back(entry->second.front());
    }
    RangeList found;
    index_.match(
        keys.size(), [&keys](size_t i) { return BlockKey(keys[i]); }, &found);
    TAGMA_EXPECT(blocks_of(found) == expected);
    acquire(request, expected);
  }

  // ---- Checks. ----

  bool can_retain(const Blocks& blocks) const {
    return std::all_of(blocks.begin(), blocks.end(), [this](int32_t b) {
      return model_.contains(b) && !model_.is_free(b);
    });
  }

  void add(const Blocks& blocks) {
    for (const int32_t b : blocks) {
      ++model_.refs[b];
    }
  }

  void drop(const Blocks& blocks) {
    for (const int32_t b : blocks) {
      --model_.refs[b];
    }
  }

  void expect_unchanged() {
    ++num_failed_calls_;
    TAGMA_EXPECT(engine_.dump() == before_);
  }

  void expect_unchanged(const Request& request) {
    TAGMA_EXPECT(blocks_of(request.list) == request.blocks);
    expect_unchanged();
  }

  void compare() {
    error_ = engine_.check_invariants();
    if (!error_.empty()) {
      return;
    }
    const std::vector<int32_t> extents = model_.stretches(/*free=*/true);
    TAGMA_EXPECT(engine_.num_free_blocks() ==
                 sum(model_.stretches(/*free=*/false)));
    const KVStats stats = engine_.stats();
    TAGMA_EXPECT(stats.free_blocks == sum(extents));
    TAGMA_EXPECT(stats.extents == static_cast<int32_t>(extents.size()));
    TAGMA_EXPECT(stats.largest_extent ==
                 (extents.empty()
                      ? 0
                      : *std::max_element(extents.begin(), extents.end())));
    int32_t held = 0;
    int32_t cache_only = 0;
    for (int32_t b = 0; b < pool_.num_blocks; ++b) {
      TAGMA_EXPECT(engine_.ref_count(b) == model_.refs[b]);
      TAGMA_EXPECT(engine_.is_cached(b) == model_.cached[b]);
      held += model_.is_held(b);
      cache_only += model_.cached[b] && !model_.is_held(b);
    }
    TAGMA_EXPECT(stats.held_blocks == held);
    TAGMA_EXPECT(stats.cache_only_blocks == cache_only);
    TAGMA_EXPECT(stats.evicted_blocks == num_evicted_);
    TAGMA_EXPECT(stats.window_evictions <= num_evicted_);
    TAGMA_EXPECT(stats.cap_events == num_cap_events_);
    compare_requests(stats);
  }

  void compare_requests(const KVStats& stats) {
    int32_t holding = 0;
    std::array<int32_t, KVStats::kNumBuckets> ranges{};
    for (const Request& request : requests_) {
      const RangeList expected = list_of(request.blocks);
      TAGMA_EXPECT(request.list.ranges() == expected.ranges());
      TAGMA_EXPECT(request.list.num_blocks() == expected.num_blocks());
      TAGMA_EXPECT(engine_.count_unreferenced(request.list) == 0);
      const size_t count = expected.num_ranges();
      TAGMA_EXPECT(pool_.max_ranges == 0 ||
                   count <= static_cast<size_t>(pool_.max_ranges));
      if (count > 0) {
        ++holding;
        size_t bucket = 0;
        while (count > size_t{1} << bucket) {
          ++bucket;
        }
        ++ranges[std::min(bucket, ranges.size() - 1)];
      }
    }
    TAGMA_EXPECT(stats.requests == holding);
    TAGMA_EXPECT(stats.ranges_per_request == ranges);
  }

  int64_t round_up(int64_t count) const {
    // Beyond the pool any count fails alike.
    const int64_t n = std::min<int64_t>(count, pool_.num_blocks + 1);
    return (n + pool_.alignment - 1) / pool_.alignment * pool_.alignment;
  }

  static int32_t sum(const std::vector<int32_t>& lengths) {
    int32_t total = 0;
    for (const int32_t length : lengths) {
      total += length;
    }
    return total;
  }

  static RangeList list_of(const Blocks& blocks) {
    RangeList list;
    for (const int32_t block : blocks) {
      list.append({block, 1});
    }
    return list;
  }

  static Blocks blocks_of(const RangeList& list) {
    Blocks blocks;
    for (const Range& range : list.ranges()) {
      for (int32_t b = range.start; b < range.end(); ++b) {
        blocks.push_back(b);
      }
    }
    return blocks;
  }

  const PoolConfig pool_;
  Choices& choices_;
  PrefixIndex index_;
  KVAllocator engine_;
  Model model_;
  std::vector<Request> requests_;
  Blocks loose_;
  std::string before_;
  std::string error_;
  int64_t num_failed_calls_ = 0;
  int64_t num_evicted_ = 0;
  int64_t num_cap_events_ = 0;
};

#undef TAGMA_EXPECT

}  // namespace vllm::tagma::testing
