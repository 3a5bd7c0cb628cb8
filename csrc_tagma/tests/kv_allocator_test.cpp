// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

#include "kv_allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <new>
#include <random>
#include <string>
#include <vector>

namespace {

int64_t g_allocations = 0;
int64_t g_allocations_until_failure = -1;  // Negative: never fail.

}  // namespace

// Not inlined: GCC 12 would warn that free() does not match operator new.
[[gnu::noinline]] void* operator new(std::size_t size) {
  ++g_allocations;
  if (g_allocations_until_failure == 0) {
    throw std::bad_alloc();
  }
  if (g_allocations_until_failure > 0) {
    --g_allocations_until_failure;
  }
  void* memory = std::malloc(size);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}

[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace vllm::tagma {

void PrintTo(const Range& range, std::ostream* os) {
  *os << "[" << range.start << ", " << range.end() << ")";
}

namespace {

using Ranges = std::vector<Range>;

// In pools of fewer blocks than this, placement leaves no headroom, so tests
// can name the blocks that they expect.
constexpr int32_t kNoHeadroomBelow = GrowthHeadroom::kSmallestPool;

RangeList list_of(const std::vector<int32_t>& blocks) {
  RangeList list;
  for (const int32_t block : blocks) {
    list.append({block, 1});
  }
  return list;
}

std::vector<int32_t> blocks_of(const RangeList& list) {
  std::vector<int32_t> blocks;
  list.for_each(0, list.num_blocks(), [&](int32_t block) {
    blocks.push_back(block);
    return true;
  });
  return blocks;
}

class KVAllocatorTest : public testing::Test {
 protected:
  static_assert(40 < kNoHeadroomBelow);

  // Holds every block of a pool of 40, then frees `blocks`.
  void free_only(std::vector<int32_t> blocks) {
    Range all;
    ASSERT_TRUE(pool_.allocate(pool_.num_free_blocks(), &all).ok());
    release(std::move(blocks));
  }

  void release(std::vector<int32_t> blocks) {
    std::reverse(blocks.begin(), blocks.end());
    RangeList list = list_of(blocks);
    ASSERT_TRUE(pool_.release(&list).ok());
    ASSERT_EQ(pool_.check_invariants(), "");
  }

  // Makes `blocks` cache-only, the first one the least recently used.
  void cache_only(const std::vector<int32_t>& blocks) {
    for (const int32_t block : blocks) {
      ASSERT_TRUE(pool_.cache(block).ok());
    }
    release(blocks);
  }

  // Makes `blocks` the cache-only chain of a request that ended. Something else
  // holds them before.
  void cache_chain(const std::vector<int32_t>& blocks) {
    RangeList request;
    ASSERT_TRUE(pool_.acquire(&request, list_of(blocks)).ok());
    cache_only(blocks);
    ASSERT_TRUE(pool_.release(&request).ok());
    ASSERT_EQ(pool_.check_invariants(), "");
  }

  RangeList extend(RangeList* request, int64_t count) {
    RangeList appended;
    const Result result = pool_.extend(request, count, &appended);
    EXPECT_TRUE(result.ok());
    EXPECT_EQ(pool_.check_invariants(), "");
    return appended;
  }

  KVAllocator pool_{40, 1, 4};
  std::string before_;
};

TEST(RangeList, PartsAreWhatTheBoundsSay) {
  const std::vector<int32_t> blocks{4, 5, 6, 9, 2, 3, 4};
  const RangeList list = list_of(blocks);
  const auto size = static_cast<int64_t>(blocks.size());
  for (int64_t start = 0; start <= size; ++start) {
    for (int64_t stop = start; stop <= size; ++stop) {
      const std::vector<int32_t> expected(blocks.begin() + start,
                                          blocks.begin() + stop);
      EXPECT_EQ(blocks_of(list.part(start, stop)), expected);
    }
  }
}

TEST(RangeList, IndexesBlocksInOrder) {
  const std::vector<int32_t> blocks = {7, 8, 9, 2, 3, 20};
  const RangeList list = list_of(blocks);
  EXPECT_EQ(list.ranges(), (Ranges{{7, 3}, {2, 2}, {20, 1}}));
  ASSERT_EQ(list.num_blocks(), 6);
  for (size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_EQ(list.at(i), blocks[i]);
  }
  std::vector<int32_t> middle;
  list.for_each(2, 5, [&](int32_t block) {
    middle.push_back(block);
    return true;
  });
  EXPECT_EQ(middle, (std::vector<int32_t>{9, 2, 3}));
}

// Every length, so that each way of the vectorised loops ends somewhere.
TEST(BlockReferences, ChangeAndLookAtEveryBlockOfARangeAndAtNoOther) {
  constexpr int32_t kMost = 40;
  for (int32_t count = 1; count <= kMost; ++count) {
    const Range range{1, count};
    const auto is_untouched = [&](const BlockReferences& refs) {
      return refs.is_idle(0) && refs.is_idle(range.end());
    };
    BlockReferences refs(kMost + 2);
    refs.set(range, 2, true);
    refs.add(range, 3);
    EXPECT_TRUE(refs.are_held(range));
    EXPECT_EQ(refs.alike_from(range), count);
    EXPECT_EQ(refs.alike_to(range), count);
    EXPECT_TRUE(refs.add_if_alike(range, -1));
    EXPECT_TRUE(is_untouched(refs));
    for (int32_t b = range.start; b < range.end(); ++b) {
      EXPECT_EQ(refs.num_requests(b), 4);
      EXPECT_TRUE(refs.is_cached(b));
    }
    for (int32_t odd = range.start; odd < range.end() && count > 1; ++odd) {
      refs.uncache(odd);
      EXPECT_FALSE(refs.add_if_alike(range, 1));
      EXPECT_EQ(refs.num_requests(odd), 4) << "undone";
      EXPECT_TRUE(refs.are_held(range));
      const int32_t from = odd - range.start;
      EXPECT_EQ(refs.alike_from(range), from == 0 ? 1 : from);
      const int32_t behind = range.end() - odd - 1;
      EXPECT_EQ(refs.alike_to(range), behind == 0 ? 1 : behind);
      refs.set({odd, 1}, 0, true);
      EXPECT_FALSE(refs.are_held(range));
      refs.set({odd, 1}, 4, true);
    }
    EXPECT_TRUE(is_untouched(refs));
  }
}

TEST(RangeList, KeepsItsRangesWhenItIsCopiedMovedAndGrown) {
  for (const int ranges : {0, 1, 2, 3, 40}) {
    RangeList list;
    Ranges expected;
    for (int i = 0; i < ranges; ++i) {
      list.append({10 * i, 1 + i % 3});
      expected.push_back({10 * i, 1 + i % 3});
    }
    RangeList copy = list;
    RangeList moved = std::move(list);
    EXPECT_EQ(copy.ranges(), expected);
    EXPECT_EQ(moved.ranges(), expected);
    EXPECT_TRUE(list.empty()) << "what was moved away can be used again";
    list.append({7, 2});
    EXPECT_EQ(list.ranges(), (Ranges{{7, 2}}));
    list = copy;
    copy = std::move(moved);
    EXPECT_EQ(list.ranges(), expected);
    EXPECT_EQ(copy.ranges(), expected);
    copy.append({1000, 1});
    EXPECT_EQ(copy.num_ranges(), expected.size() + 1);
    EXPECT_EQ(list.ranges(), expected) << "copies share nothing";
  }
}

TEST(KVAllocator, TheLongestExtentIsFoundAmongManyThatAreAboutAsLong) {
  constexpr int32_t kMany = 2 * ExtentSet::kFew;
  KVAllocator pool(66 * kMany, 1, 0);
  RangeList all;
  ASSERT_TRUE(pool.extend(&all, pool.num_blocks()).ok());
  for (int32_t i = 0; i < kMany; ++i) {
    RangeList extent;
    extent.append({66 * i, i == 0 ? 65 : 64});
    ASSERT_TRUE(pool.release(&extent).ok());
  }
  EXPECT_GE(pool.stats().largest_extent, 64);
  Range range;
  const Result result = pool.allocate(66, &range);
  EXPECT_EQ(result.status, Status::kNoExtent);
  EXPECT_EQ(result.value, 65);
  ASSERT_TRUE(pool.allocate(65, &range).ok());
  EXPECT_EQ(range, (Range{0, 65}));
}

TEST_F(KVAllocatorTest, AReferenceTooManyIsRefusedAndChangesNothing) {
  RangeList request;
  ASSERT_TRUE(pool_.extend(&request, 2).ok());
  const RangeList both = list_of({0, 1});
  for (int i = 1; i < BlockReferences::kMostRequests; ++i) {
    ASSERT_TRUE(pool_.retain(both).ok());
  }
  before_ = pool_.dump();
  const Result result = pool_.retain(both);
  EXPECT_EQ(result.status, Status::kTooManyRefs);
  EXPECT_EQ(result.value, 0);
  EXPECT_EQ(pool_.dump(), before_);
  EXPECT_FALSE(pool_.is_cached(0)) << "the count overflowed into the flag";
  RangeList one = list_of({1});
  ASSERT_TRUE(pool_.release(&one).ok());
  EXPECT_EQ(pool_.retain(both).status, Status::kTooManyRefs);
  EXPECT_EQ(pool_.ref_count(1), BlockReferences::kMostRequests - 1);
}

TEST_F(KVAllocatorTest, ABlockListedTwiceIsReleasedTwiceOrNotAtAll) {
  RangeList request;
  ASSERT_TRUE(pool_.extend(&request, 4).ok());
  RangeList twice = list_of({2, 3, 0, 1, 2});
  before_ = pool_.dump();
  EXPECT_EQ(pool_.release(&twice).status, Status::kBlockNotHeld);
  EXPECT_EQ(pool_.dump(), before_);
  ASSERT_TRUE(pool_.retain(list_of({2})).ok());
  EXPECT_TRUE(pool_.release(&twice).ok());
  EXPECT_TRUE(pool_.release(&twice).ok()) << "of no block at all";
  EXPECT_EQ(pool_.num_free_blocks(), pool_.num_blocks());
  EXPECT_EQ(pool_.check_invariants(), "");
}

TEST_F(KVAllocatorTest, FreshPoolIsOneExtentGivenOutFromItsStart) {
  EXPECT_EQ(pool_.num_extents(), 1);
  EXPECT_EQ(pool_.largest_extent(), 40);
  Range range;
  ASSERT_TRUE(pool_.allocate(3, &range).ok());
  EXPECT_EQ(range, (Range{0, 3}));
  EXPECT_EQ(pool_.num_free_blocks(), 37);
}

TEST_F(KVAllocatorTest, AdjacentFreeExtentsAreMerged) {
  free_only({3, 7});
  EXPECT_EQ(pool_.num_extents(), 2);
  release({4});  // Merges with the extent before it.
  EXPECT_EQ(pool_.num_extents(), 2);
  release({6});  // With the one behind it.
  EXPECT_EQ(pool_.num_extents(), 2);
  release({5});  // With both.
  EXPECT_EQ(pool_.num_extents(), 1);
  EXPECT_EQ(pool_.largest_extent(), 5);
}

TEST_F(KVAllocatorTest, LargestExtentIsExactWithinASizeClass) {
  KVAllocator pool(4096, 1, 0);
  Range all;
  ASSERT_TRUE(pool.allocate(4096, &all).ok());
  // 1008, 1015 and 1009 share a size class; the largest is in the middle of
  // its list.
  for (const Range& range : {Range{0, 1008}, {1100, 1015}, {2200, 1009}}) {
    RangeList list;
    list.append(range);
    ASSERT_TRUE(pool.release(&list).ok());
  }
  EXPECT_EQ(pool.largest_extent(), 1015);
}

TEST(KVAllocator, StartsAndCountsAreMultiplesOfTheAlignment) {
  KVAllocator pool(48, 4, 0);
  RangeList a, b, view;
  ASSERT_TRUE(pool.extend(&a, 5, &view).ok());
  EXPECT_EQ(view.num_blocks(), 8);
  ASSERT_TRUE(pool.extend(&b, 1, &view).ok());
  ASSERT_TRUE(pool.extend(&a, 3, &view).ok());
  Range range;
  ASSERT_TRUE(pool.allocate(2, &range).ok());
  EXPECT_EQ(range.start % 4, 0);
  EXPECT_EQ(range.count, 4);
  for (const RangeList* request : {&a, &b}) {
    for (const Range& r : request->ranges()) {
      EXPECT_EQ(r.start % 4, 0);
      EXPECT_EQ(r.count % 4, 0);
    }
  }
  EXPECT_EQ(pool.num_free_blocks(), 48 - 8 - 4 - 4 - 4);
}

TEST(KVAllocator, PartOfAnAlignedGroupIsNotFree) {
  KVAllocator pool(8, 4, 0);
  Range range;
  ASSERT_TRUE(pool.allocate(8, &range).ok());
  RangeList part = list_of({0, 1, 2});
  ASSERT_TRUE(pool.release(&part).ok());
  EXPECT_EQ(pool.num_free_blocks(), 0);
  EXPECT_EQ(pool.num_extents(), 0);
  RangeList rest = list_of({3});
  ASSERT_TRUE(pool.release(&rest).ok());
  EXPECT_EQ(pool.num_free_blocks(), 4);
  EXPECT_EQ(pool.check_invariants(), "");
}

TEST_F(KVAllocatorTest, ExtendGrowsTheLastRangeInPlace) {
  RangeList request;
  extend(&request, 3);
  const RangeList view = extend(&request, 2);
  EXPECT_EQ(request.ranges(), (Ranges{{0, 5}}));
  EXPECT_EQ(view.ranges(), (Ranges{{3, 2}}));
}

TEST_F(KVAllocatorTest, ExtendAddsARangeWhereTheNextBlockIsTaken) {
  RangeList a, b;
  extend(&a, 3);
  extend(&b, 2);
  extend(&a, 1);
  EXPECT_EQ(a.ranges(), (Ranges{{0, 3}, {5, 1}}));
}

TEST_F(KVAllocatorTest, ExtendFillsTheGapBehindTheRequestBeforeSpilling) {
  RangeList request, other;
  extend(&request, 3);
  extend(&other, 4);
  release({3, 4});
  const RangeList view = extend(&request, 3);
  EXPECT_EQ(request.ranges(), (Ranges{{0, 5}, {7, 1}}));
  EXPECT_EQ(view.ranges(), (Ranges{{3, 2}, {7, 1}}));
}

TEST_F(KVAllocatorTest, AdjacentRangesMergeWhenAcquired) {
  RangeList owner;
  extend(&owner, 6);
  RangeList request;
  ASSERT_TRUE(pool_.acquire(&request, list_of({0, 1})).ok());
  ASSERT_TRUE(pool_.acquire(&request, list_of({2, 5})).ok());
  EXPECT_EQ(request.ranges(), (Ranges{{0, 3}, {5, 1}}));
  EXPECT_EQ(pool_.ref_count(2), 2);
  EXPECT_EQ(pool_.ref_count(3), 1);
}

TEST_F(KVAllocatorTest, SeveralRangesWhenNoExtentIsLargeEnough) {
  free_only({1, 2, 5, 10, 11, 12});
  RangeList request;
  extend(&request, 6);
  EXPECT_EQ(request.ranges(), (Ranges{{10, 3}, {1, 2}, {5, 1}}));
  EXPECT_EQ(pool_.num_free_blocks(), 0);
}

TEST_F(KVAllocatorTest, OneRangeWhenAnExtentIsLargeEnough) {
  free_only({1, 2, 5, 10, 11, 12});
  RangeList request;
  extend(&request, 3);
  EXPECT_EQ(request.ranges(), (Ranges{{10, 3}}));
}

TEST_F(KVAllocatorTest, ABlockIsFreeExactlyWhenBothReferencesAreGone) {
  RangeList request;
  extend(&request, 1);
  ASSERT_TRUE(pool_.retain(list_of({0})).ok());
  ASSERT_TRUE(pool_.cache(0).ok());
  EXPECT_EQ(pool_.ref_count(0), 2);

  ASSERT_TRUE(pool_.release(&request).ok());
  EXPECT_EQ(pool_.num_free_blocks(), 39) << "one request reference is left";
  release({0});
  EXPECT_EQ(pool_.num_free_blocks(), 40);
  EXPECT_EQ(pool_.num_cache_only_blocks(), 1);
  EXPECT_EQ(pool_.largest_extent(), 39) << "the cache reference is left";
  ASSERT_TRUE(pool_.uncache(0).ok());
  EXPECT_EQ(pool_.num_cache_only_blocks(), 0);
  EXPECT_EQ(pool_.largest_extent(), 40);
}

TEST_F(KVAllocatorTest, UncachingAHeldBlockLeavesItHeld) {
  RangeList request;
  extend(&request, 2);
  ASSERT_TRUE(pool_.cache(1).ok());
  ASSERT_TRUE(pool_.uncache(1).ok());
  EXPECT_FALSE(pool_.is_cached(1));
  EXPECT_EQ(pool_.ref_count(1), 1);
  EXPECT_EQ(pool_.check_invariants(), "");
}

TEST_F(KVAllocatorTest, AFreeExtentIsUsedBeforeAnythingIsEvicted) {
  free_only({1, 2});
  cache_only({7, 8});
  RangeList request;
  extend(&request, 2);
  EXPECT_TRUE(pool_.evicted().empty());
  EXPECT_TRUE(pool_.is_cached(7));
}

TEST_F(KVAllocatorTest, EvictsNoMoreThanItTakes) {
  free_only({1});
  cache_only({30, 7, 8});
  RangeList request;
  extend(&request, 2);
  EXPECT_EQ(pool_.evicted().size(), 2u) << "7 and 8, in one range";
  extend(&request, 2);
  EXPECT_EQ(pool_.evicted().size(), 3u) << "1 is free";
  EXPECT_EQ(pool_.num_free_blocks(), 0);
  pool_.clear_evicted();
  EXPECT_TRUE(pool_.evicted().empty());
}

TEST_F(KVAllocatorTest, TheLeastRecentlyUsedChainIsEvictedFirst) {
  free_only({});
  cache_only({20, 21});
  cache_only({7, 8});
  cache_only({30, 31});
  // Used again, the oldest becomes the most recently used.
  RangeList hit, request;
  ASSERT_TRUE(pool_.acquire(&hit, list_of({20, 21})).ok());
  ASSERT_TRUE(pool_.release(&hit).ok());
  for (const int32_t first : {7, 30, 20}) {
    EXPECT_EQ(extend(&request, 2).ranges(), (Ranges{{first, 2}}));
  }
}

TEST_F(KVAllocatorTest, TheTailOfAChainIsEvictedBeforeItsHead) {
  RangeList request;
  extend(&request, 40);
  for (int32_t block = 0; block < 40; ++block) {
    ASSERT_TRUE(pool_.cache(block).ok());
  }
  ASSERT_TRUE(pool_.release(&request).ok());
  extend(&request, 3);
  EXPECT_EQ(pool_.evicted(), (std::vector<int32_t>{39, 38, 37}));
}

TEST(KVAllocator, AnEvictedWindowCutsAsLittleOfAChainAsItCan) {
  KVAllocator pool(4000, 1, 0);
  std::vector<Range> chains(4);
  for (Range& chain : chains) {
    ASSERT_TRUE(pool.allocate(1000, &chain).ok());
  }
  for (const Range& chain : chains) {
    RangeList blocks;
    blocks.append(chain);
    ASSERT_TRUE(pool.cache(blocks).ok());
    ASSERT_TRUE(pool.release(&blocks).ok());
  }
  // The oldest chain is at 0; its head stays cached, its end is headroom.
  RangeList request, view;
  ASSERT_TRUE(pool.extend(&request, 900, &view).ok());
  const int32_t headroom = static_cast<int32_t>(GrowthHeadroom::kInitial);
  EXPECT_EQ(request.ranges(), (Ranges{{100 - headroom, 900}}));
  EXPECT_EQ(pool.stats().window_evictions, 1);
  EXPECT_EQ(pool.stats().evicted_blocks, 900 + headroom);
  EXPECT_EQ(pool.check_invariants(), "");
}

TEST(EvictionQueue, WhatIsLeftOfASegmentStaysAsOldAsItWas) {
  EvictionQueue queue(64);
  queue.append({0, 10});
  queue.append({20, 10});
  queue.append({40, 10});
  queue.remove({20, 4});  // The head.
  queue.remove({3, 2});   // From the middle: the tail is the older part.
  Ranges oldest_first;
  queue.for_each([&](Range range, int64_t) { oldest_first.push_back(range); });
  EXPECT_EQ(oldest_first, (Ranges{{5, 5}, {0, 3}, {24, 6}, {40, 10}}));
  EXPECT_EQ(queue.range(queue.find(27)), (Range{24, 6}));
  EXPECT_EQ(queue.num_blocks(), 24);
  EXPECT_EQ(queue.check(64), "");
}

TEST(EvictionQueue, TheHandPassesOverSegmentsUntilItComesToRecentOnes) {
  EvictionQueue queue(64);
  for (int32_t start = 0; start < 60; start += 10) {
    queue.append({start, 10});
  }
  EXPECT_EQ(queue.hand(0.5f), queue.oldest());
  queue.set_hand(queue.after(queue.oldest()));
  EXPECT_EQ(queue.range(queue.hand(0.5f)), (Range{10, 10}));
  queue.remove({10, 10});  // Goes on with the next one.
  EXPECT_EQ(queue.range(queue.hand(0.5f)), (Range{20, 10}));
  queue.set_hand(queue.from(50));
  EXPECT_EQ(queue.hand(0.5f), queue.oldest());
  queue.set_hand(EvictionQueue::kNone);
  EXPECT_EQ(queue.hand(0.5f), queue.oldest());
  EXPECT_EQ(queue.check(64), "");
}

TEST_F(KVAllocatorTest, AHeldPartOfAChainStaysCached) {
  free_only({});
  cache_chain({2, 3, 6, 7});
  cache_only({10, 11});
  // A request holds 6 and 7, so it is there that the chain is cut.
  RangeList hit;
  ASSERT_TRUE(pool_.acquire(&hit, list_of({6, 7})).ok());
  RangeList request;
  extend(&request, 2);
  extend(&request, 2);
  EXPECT_EQ(pool_.num_free_blocks(), 0);
  EXPECT_TRUE(pool_.is_cached(6));
  EXPECT_EQ(pool_.evicted().size(), 4u);
}

TEST_F(KVAllocatorTest, AChainIsFollowedThroughItsRanges) {
  free_only({});
  cache_chain({2, 3, 6, 7, 10, 11});
  cache_chain({20, 21});
  // In place, 2 and 3 are next to a request that ends at 1.
  RangeList request = list_of({0, 1});
  extend(&request, 1);
  EXPECT_EQ(request.ranges(), (Ranges{{0, 3}}));
  EXPECT_EQ(pool_.evicted().size(), 6u) << "all that built on block 2";
  EXPECT_EQ(pool_.num_extents(), 3);
  EXPECT_TRUE(pool_.is_cached(20));
}

TEST_F(KVAllocatorTest, NeverEvictsABlockThatARequestHolds) {
  free_only({});
  cache_only({4, 5});
  RangeList hit;
  ASSERT_TRUE(pool_.acquire(&hit, list_of({4})).ok());
  EXPECT_EQ(pool_.num_free_blocks(), 1);

  RangeList request, view;
  before_ = pool_.dump();
  EXPECT_EQ(pool_.extend(&request, 2, &view).status, Status::kOutOfBlocks);
  EXPECT_TRUE(pool_.dump() == before_);
  extend(&request, 1);
  EXPECT_EQ(request.ranges(), (Ranges{{5, 1}}));
  EXPECT_TRUE(pool_.is_cached(4));
}

TEST_F(KVAllocatorTest, ExtendFailsOnlyForLackOfBlocksOrTheCap) {
  free_only({1, 3, 5, 7, 9});
  RangeList request, view;
  before_ = pool_.dump();
  EXPECT_EQ(pool_.extend(&request, 6, &view).status, Status::kOutOfBlocks);
  EXPECT_EQ(pool_.extend(&request, INT64_MAX, &view).status,
            Status::kOutOfBlocks);
  EXPECT_EQ(pool_.extend(&request, 5, &view).status, Status::kRangeCap);
  EXPECT_EQ(pool_.extend(&request, 0, &view).status, Status::kBadCount);
  EXPECT_TRUE(pool_.dump() == before_);
  EXPECT_TRUE(request.empty());
  extend(&request, 4);
  EXPECT_EQ(request.num_ranges(), 4u);
}

TEST_F(KVAllocatorTest, AtTheCapARequestStillGrowsInPlace) {
  free_only({1, 3, 5, 7, 20});
  RangeList request;
  extend(&request, 4);
  release({request.ranges().back().end()});
  RangeList view;
  before_ = pool_.dump();
  EXPECT_EQ(pool_.extend(&request, 2, &view).status, Status::kRangeCap);
  EXPECT_TRUE(pool_.dump() == before_);
  extend(&request, 1);
  EXPECT_EQ(request.num_ranges(), 4u);
}

TEST_F(KVAllocatorTest, TheCapIsCheckedBeforeAnythingIsEvicted) {
  free_only({1});
  cache_only({3, 5, 7, 9, 11});
  RangeList request, view;
  before_ = pool_.dump();
  EXPECT_EQ(pool_.extend(&request, 5, &view).status, Status::kRangeCap);
  EXPECT_TRUE(pool_.dump() == before_);
  // With 2 the first three are one run, so one more block needs fewer.
  cache_only({2});
  extend(&request, 6);
  EXPECT_EQ(request.num_ranges(), 4u);
}

TEST_F(KVAllocatorTest, NearTheCapTheFewestRangesWin) {
  // Free blocks would do, but in more ranges than the cap allows.
  free_only({1, 3, 5, 7, 9});
  cache_only({20, 21, 22});
  RangeList request;
  extend(&request, 5);
  EXPECT_LE(request.num_ranges(), 4u);
  EXPECT_EQ(pool_.evicted().size(), 3u);
}

TEST_F(KVAllocatorTest, AnEvictedBlockBehindTheRequestAddsNoRange) {
  free_only({1, 3, 5, 7});
  RangeList request;
  extend(&request, 4);
  cache_only({request.ranges().back().end()});
  extend(&request, 1);
  EXPECT_EQ(request.num_ranges(), 4u);
}

TEST_F(KVAllocatorTest, AllocateEvictsWhatIsInItsRange) {
  free_only({20});
  cache_only({30, 21, 22, 10});
  Range range;
  ASSERT_TRUE(pool_.allocate(3, &range).ok());
  EXPECT_EQ(range, (Range{20, 3}));
  EXPECT_EQ(pool_.evicted(), (std::vector<int32_t>{21, 22}));
  EXPECT_EQ(pool_.check_invariants(), "");
}

TEST_F(KVAllocatorTest, AFailedAllocateChangesNothing) {
  free_only({20});
  cache_only({30, 21, 22, 10});
  before_ = pool_.dump();
  Range range;
  const Result no_extent = pool_.allocate(4, &range);
  EXPECT_EQ(no_extent.status, Status::kNoExtent);
  EXPECT_EQ(no_extent.value, 3) << "the longest stretch that could be had";
  EXPECT_EQ(pool_.allocate(6, &range).status, Status::kOutOfBlocks);
  EXPECT_EQ(pool_.allocate(-1, &range).status, Status::kBadCount);
  EXPECT_TRUE(pool_.dump() == before_);
}

TEST_F(KVAllocatorTest, AFailedAcquireChangesNothing) {
  free_only({20});
  RangeList request;
  before_ = pool_.dump();
  const Result free_block = pool_.acquire(&request, list_of({3, 20}));
  EXPECT_EQ(free_block.status, Status::kBlockFree);
  EXPECT_EQ(free_block.value, 20);
  EXPECT_EQ(pool_.acquire(&request, list_of({39, 40})).status,
            Status::kBadBlock);
  EXPECT_EQ(pool_.acquire(&request, list_of({-1})).status, Status::kBadBlock);
  EXPECT_EQ(pool_.acquire(&request, list_of({0, 2, 4, 6, 8})).status,
            Status::kRangeCap);
  EXPECT_TRUE(pool_.dump() == before_);
  EXPECT_TRUE(request.empty());
}

TEST_F(KVAllocatorTest, AFailedReleaseChangesNothing) {
  free_only({20});
  ASSERT_TRUE(pool_.cache(3).ok());
  before_ = pool_.dump();
  for (const auto& blocks :
       std::vector<std::vector<int32_t>>{{3, 20}, {4, 3, 3}, {39, 40}}) {
    RangeList list = list_of(blocks);
    EXPECT_FALSE(pool_.release(&list).ok());
    EXPECT_TRUE(pool_.dump() == before_);
    EXPECT_EQ(blocks_of(list), blocks);
  }
}

TEST_F(KVAllocatorTest, CacheReferenceIsSetOnceAndOnHeldBlocksOnly) {
  RangeList request;
  extend(&request, 1);
  EXPECT_EQ(pool_.cache(1).status, Status::kBlockNotHeld);
  EXPECT_EQ(pool_.uncache(0).status, Status::kNotCached);
  ASSERT_TRUE(pool_.cache(0).ok());
  EXPECT_EQ(pool_.cache(0).status, Status::kAlreadyCached);
}

TEST(KVAllocator, PlacementLeavesHeadroomForAGrowingRequest) {
  KVAllocator pool(1 << 14, 1, 0);
  RangeList first, second, view;
  ASSERT_TRUE(pool.extend(&first, 10, &view).ok());
  ASSERT_TRUE(pool.extend(&second, 10, &view).ok());
  const auto headroom = static_cast<int>(GrowthHeadroom::kInitial);
  for (int i = 0; i < GrowthHeadroom::kSpread * headroom; ++i) {
    ASSERT_TRUE(pool.extend(&first, 1, &view).ok());
  }
  EXPECT_EQ(first.num_ranges(), 1u);
  EXPECT_EQ(second.ranges().front().start, first.ranges().front().end());
}

TEST(KVAllocator, HeadroomWidensAsARequestOutgrowsIt) {
  const GrowthHeadroom placement(1 << 14);
  EXPECT_EQ(placement.headroom(0, 1 << 14, 1), 16);
  EXPECT_EQ(placement.headroom(14, 1 << 14, 1), 14);
  EXPECT_EQ(placement.headroom(100, 1 << 14, 1), 100);
}

TEST(KVAllocator, HeadroomIsAFairShareOfWhatIsLeft) {
  const GrowthHeadroom placement(1 << 14);
  EXPECT_EQ(placement.headroom(1000, 300, 2), 100);
  EXPECT_EQ(placement.headroom(1000, 1000, 499), 2);
  EXPECT_EQ(placement.headroom(1000, 400, 500), 0);
}

TEST(KVAllocator, RoomIsKeptForBlocksThatAreSureToFollow) {
  KVAllocator pool(1000, 1, 0);
  RangeList prompt, other;
  pool.expect(&prompt, 200);
  ASSERT_TRUE(pool.extend(&prompt, 100).ok());
  ASSERT_TRUE(pool.extend(&other, 50).ok());
  pool.expect(&prompt, 100);
  ASSERT_TRUE(pool.extend(&prompt, 100).ok());
  ASSERT_TRUE(pool.extend(&other, 50).ok());
  pool.expect(&prompt, 0);
  ASSERT_TRUE(pool.extend(&prompt, 100).ok());
  EXPECT_EQ(prompt.num_ranges(), 1u);
}

TEST(KVAllocator, TheShortestExtentThatWillDoIsUsed) {
  KVAllocator pool(4000, 1, 0);
  std::vector<Range> parts(5);
  for (const auto& [i, count] :
       {std::pair(0, 900), {1, 10}, {2, 200}, {3, 10}, {4, 2880}}) {
    ASSERT_TRUE(pool.allocate(count, &parts[i]).ok());
  }
  for (const int i : {0, 2, 4}) {
    RangeList blocks;
    blocks.append(parts[i]);
    ASSERT_TRUE(pool.release(&blocks).ok());
  }
  RangeList request;
  ASSERT_TRUE(pool.extend(&request, 100).ok());
  EXPECT_EQ(request.ranges(), (Ranges{{parts[2].start, 100}}));
  EXPECT_EQ(pool.largest_extent(), 2880);
}

TEST(KVAllocator, HeadroomFollowsHowMuchRequestsGrow) {
  GrowthHeadroom placement(1 << 20);
  for (int i = 0; i < 2000; ++i) {
    placement.observe(100 + i * 37 % 100);
  }
  EXPECT_NEAR(placement.expected(), 100 + 200 / 3, 15);
  EXPECT_EQ(placement.headroom(0, 1 << 20, 1),
            static_cast<int32_t>(placement.expected()));
  EXPECT_EQ(placement.headroom(1000, 1 << 20, 1), 1000);
}

TEST(KVAllocator, ASmallPoolSharesItsFreeBlocksAsHeadroom) {
  KVAllocator pool(64, 1, 0);
  std::vector<RangeList> streams(8);
  RangeList view;
  for (RangeList& stream : streams) {
    ASSERT_TRUE(pool.extend(&stream, 1, &view).ok());
  }
  for (int i = 0; i < 4; ++i) {
    for (RangeList& stream : streams) {
      ASSERT_TRUE(pool.extend(&stream, 1, &view).ok());
    }
  }
  size_t ranges = 0;
  for (const RangeList& stream : streams) {
    ranges += stream.num_ranges();
  }
  EXPECT_LE(ranges, 12u);
}

TEST(KVAllocator, GrowthTakesAnOldCachedNeighbourInPlace) {
  KVAllocator pool(4000, 1, 0);
  std::vector<Range> ranges(4);
  for (const auto& [i, count] :
       {std::pair(0, 100), {1, 100}, {2, 3700}, {3, 100}}) {
    ASSERT_TRUE(pool.allocate(count, &ranges[i]).ok());
  }
  RangeList request, view;
  request.append(ranges[0]);
  for (const int i : {3, 1, 2}) {  // The least recently used first.
    RangeList chain;
    chain.append(ranges[i]);
    ASSERT_TRUE(pool.cache(chain).ok());
    ASSERT_TRUE(pool.release(&chain).ok());
  }
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(pool.extend(&request, 1, &view).ok());
  }
  EXPECT_EQ(request.ranges(), (Ranges{{0, 200}}));
  // Behind it comes the head of a chain that was just used.
  ASSERT_TRUE(pool.extend(&request, 1, &view).ok());
  EXPECT_EQ(request.num_ranges(), 2u);
  // In the oldest chain; one block of room may be worth the one before it.
  EXPECT_GE(request.ranges().back().start, 3899);
  EXPECT_TRUE(pool.is_cached(200));
}

TEST(KVAllocator, StatsCountWhatHappened) {
  KVAllocator pool(40, 1, 2);
  RangeList a, b, c, view;
  ASSERT_TRUE(pool.extend(&a, 3, &view).ok());
  ASSERT_TRUE(pool.extend(&b, 2, &view).ok());
  ASSERT_TRUE(pool.extend(&a, 1, &view).ok());  // Spills.
  KVStats stats = pool.stats();
  EXPECT_EQ(stats.held_blocks, 6);
  EXPECT_EQ(stats.free_blocks, 34);
  EXPECT_EQ(stats.largest_extent, 34);
  EXPECT_EQ(stats.requests, 2);
  EXPECT_EQ(stats.ranges_per_request[0], 1);
  EXPECT_EQ(stats.ranges_per_request[1], 1);
  EXPECT_EQ(stats.spills, 1);

  ASSERT_TRUE(pool.cache(a).ok());
  ASSERT_TRUE(pool.release(&a).ok());
  ASSERT_TRUE(pool.extend(&c, 34, &view).ok());
  stats = pool.stats();
  EXPECT_EQ(stats.cache_only_blocks, 4);
  EXPECT_EQ(stats.requests, 2);
  EXPECT_EQ(stats.extents, 0);
  EXPECT_EQ(stats.evicted_blocks, 0);
  EXPECT_EQ(pool.extend(&c, 5, &view).status, Status::kOutOfBlocks);
  EXPECT_EQ(pool.stats().cap_events, 0);
  ASSERT_TRUE(pool.extend(&b, 3, &view).ok());
  stats = pool.stats();
  EXPECT_EQ(stats.evicted_blocks, 4) << "with what built on them";
  EXPECT_EQ(stats.window_evictions, 1);
  EXPECT_EQ(stats.held_blocks, 39);
  ASSERT_TRUE(pool.release(&b).ok());
  ASSERT_TRUE(pool.release(&c).ok());
  stats = pool.stats();
  EXPECT_EQ(stats.requests, 0);
  EXPECT_EQ(stats.held_blocks, 0);
  EXPECT_EQ(stats.free_blocks, 40);
}

TEST(KVAllocator, ACopyOfARequestIsNotCounted) {
  KVAllocator pool(40, 1, 0);
  RangeList request, view;
  ASSERT_TRUE(pool.extend(&request, 3, &view).ok());
  RangeList copy = request;
  ASSERT_TRUE(pool.retain(copy).ok());
  ASSERT_TRUE(pool.release(&copy).ok());
  EXPECT_EQ(pool.stats().requests, 1);
  ASSERT_TRUE(pool.release(&request).ok());
  EXPECT_EQ(pool.stats().requests, 0);
}

TEST(KVAllocator, HeadroomIsLeftOnlyBehindARequestsLastBlock) {
  KVAllocator pool(1 << 14, 1, 0);
  RangeList first, second, view;
  ASSERT_TRUE(pool.extend(&first, 10, &view).ok());
  ASSERT_TRUE(pool.extend(&first, 1, &view).ok());
  RangeList last = list_of({10});
  ASSERT_TRUE(pool.release(&last).ok());
  ASSERT_TRUE(pool.extend(&second, 10, &view).ok());
  EXPECT_EQ(second.ranges().front().start, 10);
}

TEST(KVAllocator, PlacementSharesSlackInProportion) {
  EXPECT_EQ(GrowthHeadroom::offset(26, 10, 16, 16), 8);
  EXPECT_EQ(GrowthHeadroom::offset(74, 10, 16, 16), 32);
  EXPECT_EQ(GrowthHeadroom::offset(4096, 10, 16, 16),
            16 * GrowthHeadroom::kSpread);
  EXPECT_EQ(GrowthHeadroom::offset(10, 10, 16, 16), 0);
  EXPECT_EQ(GrowthHeadroom::offset(100, 10, 0, 16), 0);
}

// A pool in use, warmed up: requests grow, are cached, released and evicted.
void churn(KVAllocator* pool, std::vector<RangeList>* requests,
           RangeList* view) {
  for (int round = 0; round < 50; ++round) {
    for (RangeList& request : *requests) {
      if (pool->extend(&request, 1 + round % 3, view).ok()) {
        const int32_t last = request.at(request.num_blocks() - 1);
        if (!pool->is_cached(last)) {
          ASSERT_TRUE(pool->cache(last).ok());
        }
      } else {
        ASSERT_TRUE(pool->release(&request).ok());
      }
    }
    pool->clear_evicted();
  }
}

TEST(KVAllocator, HotPathDoesNotAllocateMemoryAfterWarmUp) {
  KVAllocator pool(500, 1, 64);
  std::vector<RangeList> requests(16);
  for (RangeList& request : requests) {
    request.reserve(64);
  }
  RangeList view;
  view.reserve(64);
  churn(&pool, &requests, &view);
  const int64_t before = g_allocations;
  churn(&pool, &requests, &view);
  EXPECT_EQ(g_allocations - before, 0);
  EXPECT_EQ(pool.check_invariants(), "");
}

TEST_F(KVAllocatorTest, RunningOutOfMemoryChangesNothing) {
  free_only({1, 3});
  // Fills the list of evicted blocks to its capacity, so that it must grow.
  while (pool_.evicted().size() < 40) {
    RangeList request;
    extend(&request, 2);
    ASSERT_TRUE(pool_.cache(request.at(0)).ok());
    ASSERT_TRUE(pool_.release(&request).ok());
  }
  cache_only({30, 7, 8});
  before_ = pool_.dump();
  int failures = 0;
  for (bool done = false; !done; ++failures) {
    RangeList request, view;
    g_allocations_until_failure = failures;
    try {
      done = pool_.extend(&request, 5, &view).ok();
      g_allocations_until_failure = -1;
    } catch (const std::bad_alloc&) {
      g_allocations_until_failure = -1;
      ASSERT_TRUE(pool_.dump() == before_);
      ASSERT_TRUE(request.empty());
    }
  }
  EXPECT_GT(failures, 2);
  EXPECT_EQ(pool_.check_invariants(), "");
}

// ---- Differential test against a model that scans for everything. ----

struct Config {
  int32_t num_blocks;
  int32_t alignment;
  int32_t max_ranges;
};

class Model {
 public:
  explicit Model(const Config& config)
      : config_(config),
        refs(config.num_blocks, 0),
        cached(config.num_blocks, false) {}

  bool group_is(int32_t group, bool (Model::*test)(int32_t) const) const {
    for (int32_t b = group; b < group + config_.alignment; ++b) {
      if (!(this->*test)(b)) {
        return false;
      }
    }
    return true;
  }
  bool idle(int32_t block) const { return refs[block] == 0 && !cached[block]; }
  bool unheld(int32_t block) const { return refs[block] == 0; }

  int32_t count_in_groups(bool (Model::*test)(int32_t) const) const {
    int32_t count = 0;
    for (int32_t g = 0; g < config_.num_blocks; g += config_.alignment) {
      count += group_is(g, test) ? config_.alignment : 0;
    }
    return count;
  }
  int32_t num_cache_only() const {
    int32_t count = 0;
    for (int32_t b = 0; b < config_.num_blocks; ++b) {
      count += refs[b] == 0 && cached[b];
    }
    return count;
  }
  int32_t num_available() const { return count_in_groups(&Model::unheld); }

  // Lengths of the stretches of such groups, in order of address.
  std::vector<int32_t> stretches(bool (Model::*test)(int32_t) const) const {
    std::vector<int32_t> lengths;
    bool open = false;
    for (int32_t g = 0; g < config_.num_blocks; g += config_.alignment) {
      if (!group_is(g, test)) {
        open = false;
        continue;
      }
      if (!open) {
        lengths.push_back(0);
      }
      open = true;
      lengths.back() += config_.alignment;
    }
    return lengths;
  }

  // The fewest ranges that `request` can have once it took `count` blocks.
  size_t fewest_ranges(const RangeList& request, int32_t count) const {
    Model rest = *this;
    size_t ranges = request.num_ranges();
    if (!request.empty()) {
      for (int32_t g = request.ranges().back().end();
           g % config_.alignment == 0 && g < config_.num_blocks &&
           rest.group_is(g, &Model::unheld) && count > 0;
           g += config_.alignment) {
        rest.refs[g] = 1;
        count -= config_.alignment;
      }
    }
    std::vector<int32_t> lengths = rest.stretches(&Model::unheld);
    std::sort(lengths.rbegin(), lengths.rend());
    for (size_t i = 0; i < lengths.size() && count > 0; ++i, ++ranges) {
      count -= lengths[i];
    }
    return ranges;
  }

 private:
  Config config_;

 public:
  std::vector<int32_t> refs;
  std::vector<bool> cached;
};

class Differential : public testing::TestWithParam<Config> {
 protected:
  static constexpr int kSteps = 60'000;
  static constexpr int kCheckEvery = 8;

  int random(int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(rng_);
  }
  RangeList& any_request() {
    return requests_[random(0, static_cast<int>(requests_.size()) - 1)];
  }

  void extend() {
    RangeList& request = any_request();
    const int32_t count = random(1, random(0, 3) == 0 ? 24 : 3);
    const int32_t a = GetParam().alignment;
    const int32_t rounded = (count + a - 1) / a * a;
    const std::vector<int32_t> had = blocks_of(request);
    const std::string before = pool_.dump();
    RangeList view;
    const Result result = pool_.extend(&request, count, &view);
    if (!result.ok()) {
      ASSERT_TRUE(pool_.dump() == before);
      ASSERT_EQ(blocks_of(request), had);
      ++failures_;
    }
    if (rounded > model_.num_available()) {
      ASSERT_EQ(result.status, Status::kOutOfBlocks);
      return;
    }
    const size_t fewest = model_.fewest_ranges(request, rounded);
    const auto cap = static_cast<size_t>(GetParam().max_ranges);
    if (!result.ok()) {
      ASSERT_EQ(result.status, Status::kRangeCap);
      ASSERT_GT(fewest, cap);
      return;
    }
    const std::vector<int32_t> added = blocks_of(view);
    ASSERT_EQ(added.size(), static_cast<size_t>(rounded));
    take(added);
    std::vector<int32_t> expected = had;
    expected.insert(expected.end(), added.begin(), added.end());
    ASSERT_EQ(blocks_of(request), expected);
    ASSERT_EQ(request.ranges(), list_of(expected).ranges());
    if (cap > 0) {
      ASSERT_LE(request.num_ranges(), cap);
    }
  }

  // Of the blocks that were given out, the cached ones are evicted, and perhaps
  // what built on them.
  void take(const std::vector<int32_t>& blocks) {
    std::vector<int32_t> evicted = pool_.evicted();
    pool_.clear_evicted();
    for (const int32_t block : evicted) {
      ASSERT_TRUE(model_.unheld(block) && model_.cached[block]) << block;
      model_.cached[block] = false;
    }
    for (const int32_t block : blocks) {
      ASSERT_TRUE(model_.idle(block)) << block;
      model_.refs[block] = 1;
    }
  }

  void acquire() {
    std::vector<int32_t> blocks;
    bool any_free = false;
    for (int i = random(1, 4); i > 0; --i) {
      const int32_t block = random(0, GetParam().num_blocks - 1);
      any_free |= model_.idle(block);
      blocks.push_back(block);
    }
    RangeList& request = any_request();
    std::vector<int32_t> expected = blocks_of(request);
    expected.insert(expected.end(), blocks.begin(), blocks.end());
    const auto cap = static_cast<size_t>(GetParam().max_ranges);
    const bool over_cap = cap > 0 && list_of(expected).num_ranges() > cap;
    const std::string before = pool_.dump();
    const Result result = pool_.acquire(&request, list_of(blocks));
    ASSERT_EQ(result.ok(), !any_free && !over_cap);
    if (!result.ok()) {
      ASSERT_TRUE(pool_.dump() == before);
      ++failures_;
      return;
    }
    for (const int32_t block : blocks) {
      ++model_.refs[block];
    }
    ASSERT_EQ(request.ranges(), list_of(expected).ranges());
  }

  void release() {
    RangeList& request = any_request();
    std::vector<int32_t> blocks = blocks_of(request);
    ASSERT_TRUE(pool_.release(&request).ok());
    ASSERT_TRUE(request.empty());
    for (auto b = blocks.rbegin(); b != blocks.rend(); ++b) {
      --model_.refs[*b];
    }
  }

  void allocate() {
    const int32_t a = GetParam().alignment;
    const int32_t count = a * random(1, 4);
    int32_t longest = 0;
    int32_t run = 0;
    for (int32_t g = 0; g < GetParam().num_blocks; g += a) {
      run = model_.group_is(g, &Model::unheld) ? run + a : 0;
      longest = std::max(longest, run);
    }
    const std::string before = pool_.dump();
    Range range;
    const Result result = pool_.allocate(count, &range);
    ASSERT_EQ(result.ok(), longest >= count);
    if (!result.ok()) {
      ASSERT_TRUE(pool_.dump() == before);
      ++failures_;
      return;
    }
    RangeList blocks;
    blocks.append(range);
    take(blocks_of(blocks));
    loose_.push_back(blocks);
  }

  void release_loose() {
    if (!loose_.empty()) {
      for (const int32_t block : blocks_of(loose_.front())) {
        // One at a time and upwards: not the order of release().
        RangeList one = list_of({block});
        ASSERT_TRUE(pool_.release(&one).ok());
        --model_.refs[block];
      }
      loose_.erase(loose_.begin());
    }
  }

  void cache_or_uncache() {
    const int32_t block = random(0, GetParam().num_blocks - 1);
    if (random(0, 9) > 0) {
      const bool allowed = model_.refs[block] > 0 && !model_.cached[block];
      ASSERT_EQ(pool_.cache(block).ok(), allowed);
      model_.cached[block] = model_.cached[block] || allowed;
      return;
    }
    ASSERT_EQ(pool_.uncache(block).ok(), model_.cached[block]);
    model_.cached[block] = false;
  }

  void compare() {
    ASSERT_EQ(pool_.check_invariants(), "");
    ASSERT_EQ(pool_.num_free_blocks(), model_.num_available());
    ASSERT_EQ(pool_.num_cache_only_blocks(), model_.num_cache_only());
    const std::vector<int32_t> lengths = model_.stretches(&Model::idle);
    ASSERT_EQ(pool_.num_extents(), static_cast<int32_t>(lengths.size()));
    const auto longest = std::max_element(lengths.begin(), lengths.end());
    ASSERT_EQ(pool_.largest_extent(), longest == lengths.end() ? 0 : *longest);
    for (int32_t b = 0; b < GetParam().num_blocks; ++b) {
      ASSERT_EQ(pool_.ref_count(b), model_.refs[b]);
      ASSERT_EQ(pool_.is_cached(b), model_.cached[b]);
    }
  }

  std::mt19937_64 rng_{20250731};
  KVAllocator pool_{GetParam().num_blocks, GetParam().alignment,
                    GetParam().max_ranges};
  Model model_{GetParam()};
  std::vector<RangeList> requests_{
      static_cast<size_t>(std::max(2, GetParam().num_blocks / 24))};
  std::vector<RangeList> loose_;
  int failures_ = 0;
};

TEST_P(Differential, AgreesWithTheModel) {
  for (int step = 0; step < kSteps; ++step) {
    const int kind = random(0, 99);
    if (kind < 45) {
      extend();
    } else if (kind < 58) {
      release();
    } else if (kind < 66) {
      acquire();
    } else if (kind < 70) {
      allocate();
    } else if (kind < 74) {
      release_loose();
    } else {
      cache_or_uncache();
    }
    if (step % kCheckEvery == 0) {
      compare();
    }
    ASSERT_FALSE(HasFatalFailure()) << "at step " << step;
  }
  EXPECT_GT(failures_, kSteps / 1000) << "the failure paths were hardly taken";
}

INSTANTIATE_TEST_SUITE_P(Pools, Differential,
                         testing::Values(Config{40, 1, 0}, Config{96, 1, 4},
                                         Config{128, 4, 3}, Config{256, 1, 8}),
                         [](const auto& info) {
                           const Config& c = info.param;
                           return "Blocks" + std::to_string(c.num_blocks) +
                                  "Align" + std::to_string(c.alignment) +
                                  "Cap" + std::to_string(c.max_ranges);
                         });

}  // namespace
}  // namespace vllm::tagma
