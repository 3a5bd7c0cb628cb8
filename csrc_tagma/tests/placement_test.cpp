// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

// Where blocks go, and what is moved for that.

#include "placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "kv_allocator.h"
#include "prefix_index.h"

namespace vllm::tagma {

void PrintTo(const Range& range, std::ostream* os) {
  *os << "[" << range.start << ", " << range.end() << ")";
}
void PrintTo(const Copy& copy, std::ostream* os) {
  *os << copy.from << "->" << copy.to;
}

namespace {

using Ranges = std::vector<Range>;
using List = std::vector<Copy>;

// A pool without headroom, whose blocks are named by keys of their own.
class PlacementTest : public testing::Test {
 protected:
  static constexpr int32_t kBlocks = 60;
  static_assert(kBlocks < Placement::kSmallestPool);

  void SetUp() override {
    ASSERT_TRUE(pool_.attach(&index_).ok());
    ASSERT_TRUE(pool_.extend(&all_, kBlocks).ok());
  }

  static RangeList list_of(Range range) {
    RangeList list;
    list.append(range);
    return list;
  }

  // Gives back blocks that `all_` holds, empty or cached as parts of a chain.
  void free_empty(Range range) {
    RangeList list = list_of(range);
    ASSERT_TRUE(pool_.release(&list).ok());
  }
  void free_cached(Range range) {
    RangeList list = list_of(range);
    cache(list);
    ASSERT_TRUE(pool_.release(&list).ok());
  }

  void cache(const RangeList& list) {
    std::vector<std::string> names;
    list.for_each(0, list.num_blocks(), [&](int32_t b) {
      names.push_back(name_of(b));
      return true;
    });
    const std::vector<BlockKey> keys(names.begin(), names.end());
    int64_t cached = 0;
    ASSERT_TRUE(
        pool_.cache_prefix(list, 0, list.num_blocks(), keys.data(), &cached)
            .ok());
  }

  // By where it was when it was cached.
  static std::string name_of(int32_t block) {
    return "block " + std::to_string(block);
  }
  int32_t find(int32_t block) const { return index_.find(name_of(block)); }

  RangeList hit(std::vector<Range> ranges) {
    RangeList request, blocks;
    for (const Range& range : ranges) {
      blocks.append(range);
    }
    EXPECT_TRUE(pool_.acquire(&request, blocks).ok());
    return request;
  }

  void extend(RangeList* request, int64_t count) {
    ASSERT_TRUE(pool_.extend(request, count).ok());
    ASSERT_EQ(pool_.check_invariants(), "");
  }

  List take_copies() {
    List copies;
    pool_.take_copies(&copies);
    return copies;
  }

  PrefixIndex index_{kBlocks, secret_of_seed(1)};
  KVAllocator pool_{kBlocks, 0};
  RangeList all_;
};

TEST_F(PlacementTest, GrowthMovesTheBlockBehindToWhereOneWasEvicted) {
  free_cached({40, 1});  // The least recently used.
  free_cached({10, 2});
  RangeList request = list_of({8, 2});
  extend(&request, 1);
  EXPECT_EQ(request.ranges(), (Ranges{{8, 3}}));
  EXPECT_EQ(pool_.evicted(), (std::vector<int32_t>{40}));
  EXPECT_EQ(take_copies(), (List{{10, 40}}));
  EXPECT_EQ(find(10), 40) << "the index knows at once";
  EXPECT_EQ(find(11), 11);
}

TEST_F(PlacementTest, AMovedBlockKeepsItsPlaceInTheOrderOfEviction) {
  free_cached({40, 1});
  free_cached({10, 2});
  free_cached({20, 1});
  RangeList request = list_of({8, 2});
  extend(&request, 1);
  std::vector<int32_t> order;
  pool_.for_each_free([&order](int32_t b) { order.push_back(b); });
  EXPECT_EQ(order, (std::vector<int32_t>{11, 40, 20}));
  pool_.clear_evicted();
  RangeList other;
  extend(&other, 2);
  EXPECT_EQ(find(10), kNoBlock);
  EXPECT_EQ(find(20) != kNoBlock, true);
}

TEST_F(PlacementTest, AWindowIsMadeByMovingNotByEvicting) {
  for (int32_t i = 0; i < 5; ++i) {
    free_cached({30 + 2 * i, 1});  // Leave first, and lie apart.
  }
  free_cached({10, 5});
  RangeList request;
  extend(&request, 5);
  EXPECT_EQ(request.ranges(), (Ranges{{10, 5}}));
  EXPECT_EQ(take_copies().size(), 5u);
  for (int32_t b = 10; b < 15; ++b) {
    EXPECT_NE(find(b), kNoBlock);
  }
}

TEST_F(PlacementTest, WithoutMovesARequestGetsWhatTheOrderOfEvictionLeaves) {
  pool_.set_copy_bound(0);
  for (int32_t i = 0; i < 5; ++i) {
    free_cached({30 + 2 * i, 1});
  }
  free_cached({10, 5});
  RangeList request = list_of({8, 2});
  extend(&request, 5);
  EXPECT_EQ(request.num_ranges(), 6u);
  for (int32_t b = 10; b < 15; ++b) {
    EXPECT_EQ(find(b), b);
  }
  EXPECT_EQ(take_copies(), List{});
}

TEST_F(PlacementTest, WithoutACacheLongHolesStayWhole) {
  free_empty({0, 10});
  free_empty({20, 30});
  free_empty({52, 4});
  RangeList request;
  extend(&request, 8);
  EXPECT_EQ(request.ranges(), (Ranges{{0, 8}})) << "the shortest that will do";
  RangeList other;
  extend(&other, 30);
  EXPECT_EQ(other.ranges(), (Ranges{{20, 30}}));
}

TEST_F(PlacementTest, ADisplacedChainStaysTogether) {
  free_cached({40, 4});
  free_cached({30, 1});
  free_cached({50, 2});
  free_cached({10, 7});
  RangeList request = list_of({5, 5});
  extend(&request, 7);
  EXPECT_EQ(request.ranges(), (Ranges{{5, 12}}));
  for (int32_t b = 10; b < 14; ++b) {
    EXPECT_EQ(find(b), 40 + b - 10) << "the longest part in the longest hole";
  }
}

TEST_F(PlacementTest, PiecesOfAHitAreGathered) {
  free_cached({10, 2});
  free_cached({20, 2});
  free_cached({30, 2});
  free_empty({40, 12});
  RangeList request = hit({{10, 2}, {20, 2}, {30, 2}});
  extend(&request, 4);
  EXPECT_EQ(request.num_ranges(), 1u);
  const int32_t start = request.at(0);
  for (int32_t i = 0; i < 6; ++i) {
    EXPECT_EQ(find(10 + i / 2 * 10 + i % 2), start + i);
  }
  EXPECT_EQ(take_copies().size(), 6u);
}

TEST_F(PlacementTest, ABlockThatAnotherHoldsIsNotGathered) {
  free_cached({10, 2});
  free_cached({20, 2});
  free_cached({30, 2});
  free_empty({40, 12});
  const RangeList other = hit({{20, 1}});
  RangeList request = hit({{10, 2}, {20, 2}, {30, 2}});
  extend(&request, 4);
  EXPECT_EQ(find(10), 10) << "nor what comes before it";
  EXPECT_EQ(find(20), 20);
  EXPECT_EQ(find(21), 21) << "that would be a range more";
  EXPECT_NE(find(30), 30);
  EXPECT_EQ(request.num_ranges(), 3u);
}

TEST_F(PlacementTest, BlocksThatWereHandedOutAreNeverMoved) {
  free_cached({10, 2});
  free_cached({20, 2});
  RangeList request = hit({{10, 2}, {20, 2}});
  pool_.set_copy_bound(0);
  free_empty({50, 10});
  extend(&request, 1);
  cache(request);
  pool_.set_copy_bound(Placement::kCopies);
  extend(&request, 3);
  EXPECT_EQ(find(10), 10);
  EXPECT_EQ(find(20), 20);
}

TEST_F(PlacementTest, NoMoreIsGatheredThanTheBoundAllows) {
  free_cached({10, 2});
  free_cached({20, 2});
  free_cached({30, 2});
  free_empty({40, 12});
  // Six blocks, and what most often has to make room for them.
  pool_.set_copy_bound(11);
  RangeList request = hit({{10, 2}, {20, 2}, {30, 2}});
  extend(&request, 4);
  EXPECT_GT(request.num_ranges(), 1u);
}

TEST_F(PlacementTest, TheAdmissionsOfAStepShareTheirCopies) {
  free_cached({10, 2});
  free_cached({20, 2});
  free_cached({30, 2});
  free_empty({40, 12});
  pool_.set_copy_bound(12);  // 17 a step.
  RangeList request = hit({{10, 2}, {20, 2}, {30, 2}});
  extend(&request, 4);
  EXPECT_EQ(request.num_ranges(), 1u);
  const auto spent = static_cast<int32_t>(take_copies().size());
  EXPECT_EQ(spent, 6);
  EXPECT_EQ(pool_.copies_left(), 17 - spent);
  pool_.begin_step();
  EXPECT_EQ(pool_.copies_left(), 17);
}

TEST_F(PlacementTest, ABlockIsNotMovedBeforeItsStepHasBeenProcessed) {
  free_cached({40, 1});
  const int32_t step = pool_.begin_step();
  free_cached({10, 1});
  RangeList request = list_of({8, 2});
  extend(&request, 1);
  EXPECT_EQ(find(10), 10) << "it may have no data yet";
  EXPECT_EQ(request.ranges(), (Ranges{{8, 2}, {40, 1}}));
  pool_.process_step(step);
  free_empty({41, 1});
  RangeList other = list_of({8, 2});
  extend(&other, 1);
  EXPECT_NE(find(10), 10);
  EXPECT_EQ(other.ranges(), (Ranges{{8, 3}}));
}

TEST_F(PlacementTest, AHitIsNotGatheredBeforeItsStepHasBeenProcessed) {
  pool_.begin_step();
  free_cached({10, 2});
  free_cached({20, 2});
  free_empty({40, 12});
  RangeList request = hit({{10, 2}, {20, 2}});
  extend(&request, 4);
  EXPECT_EQ(find(10), 10);
  EXPECT_EQ(find(20), 20);
}

TEST_F(PlacementTest, NothingIsCopiedToABlockThatWasJustGivenBack) {
  pool_.keep_copies_from_freed(true);
  const int32_t before = pool_.begin_step();
  free_cached({10, 2});
  pool_.process_step(before);
  const int32_t step = pool_.begin_step();
  pool_.process_step(step - 1);
  // A connector stores this block in the next step, if not the one after.
  free_empty({40, 1});
  RangeList request = list_of({8, 2});
  extend(&request, 1);
  EXPECT_EQ(request.ranges(), (Ranges{{8, 2}, {40, 1}}));
  EXPECT_EQ(find(10), 10);
  free_empty({41, 1});
  const int32_t next = pool_.begin_step();
  pool_.process_step(next);
  RangeList other = list_of({8, 2});
  extend(&other, 1);
  EXPECT_EQ(other.ranges(), (Ranges{{8, 3}}));
  EXPECT_EQ(find(10), 41);
}

// Where all empty blocks are needed, one that may not be copied to would else
// keep everything from moving.
class ClosedBlockTest : public PlacementTest {
 protected:
  void SetUp() override {
    PlacementTest::SetUp();
    pool_.keep_copies_from_freed(true);
    free_cached({10, 8});
    for (const int32_t start : {30, 33, 36}) {
      free_empty({start, 2});
    }
    pool_.process_step(pool_.begin_step());
    free_empty({40, 1});
  }
};

TEST_F(ClosedBlockTest, IsTakenInFrontByANewRequest) {
  RangeList request;
  extend(&request, 7);
  EXPECT_EQ(request.ranges(), (Ranges{{40, 1}, {10, 6}}));
  EXPECT_EQ(take_copies().size(), 6u);
}

TEST_F(ClosedBlockTest, IsTakenLastByARequestThatGrows) {
  RangeList request = list_of({8, 2});
  extend(&request, 7);
  EXPECT_EQ(request.ranges(), (Ranges{{8, 8}, {40, 1}}));
  EXPECT_EQ(take_copies().size(), 6u);
}

TEST_F(PlacementTest, NothingIsGatheredInBlocksThatWereJustGivenBack) {
  pool_.keep_copies_from_freed(true);
  free_cached({10, 2});
  free_cached({20, 2});
  free_cached({30, 2});
  pool_.process_step(pool_.begin_step());
  RangeList request = hit({{10, 2}, {20, 2}, {30, 2}});
  free_empty({40, 12});
  extend(&request, 4);
  EXPECT_EQ(find(10), 10);
  EXPECT_EQ(find(30), 30);
  EXPECT_EQ(take_copies(), List{});
}

TEST_F(PlacementTest, WhatCannotFitEndsBeforeAnySearch) {
  free_cached({10, 20});
  const int64_t searches = pool_.search().num_searches();
  RangeList request;
  for (int step = 0; step < 100; ++step) {  // It is tried again at every step.
    pool_.process_step(pool_.begin_step());
    EXPECT_EQ(pool_.extend(&request, 21).status, Status::kOutOfBlocks);
  }
  EXPECT_EQ(pool_.search().num_searches(), searches);
}

TEST(Placement, HeadroomWidensAsARequestOutgrowsIt) {
  const Placement placement(1 << 14);
  EXPECT_EQ(placement.headroom(0, 1 << 14, 1), 16);
  EXPECT_EQ(placement.headroom(100, 1 << 14, 1), 100);
}

TEST(Placement, RoomIsLeftBetweenRequestsThatGrow) {
  KVAllocator pool(1 << 14, 0);
  std::vector<RangeList> requests(8);
  for (RangeList& request : requests) {
    ASSERT_TRUE(pool.extend(&request, 10).ok());
  }
  for (int i = 0; i < 200; ++i) {
    for (RangeList& request : requests) {
      ASSERT_TRUE(pool.extend(&request, 1).ok());
    }
  }
  for (const RangeList& request : requests) {
    EXPECT_EQ(request.num_ranges(), 1u);
  }
}

TEST(Placement, PromptsThatAlmostFillAnEmptyPoolGetOneRangeEach) {
  KVAllocator pool(1 << 16, 0);
  std::vector<RangeList> requests(7);
  for (RangeList& request : requests) {
    ASSERT_TRUE(pool.extend(&request, 1 << 13).ok());
    EXPECT_EQ(request.num_ranges(), 1u);
  }
}

// ---- What a call costs at most. ----

// A pool of `runs` runs of `length` cached blocks each, between held ones.
class CostTest : public testing::Test {
 protected:
  void make_runs(KVAllocator* pool, int32_t runs, int32_t length, bool cached) {
    ASSERT_TRUE(pool->extend(&all_, pool->num_blocks()).ok());
    for (int32_t i = 0; i < runs; ++i) {
      RangeList list;
      list.append({i * (length + 1), length});
      if (cached) {
        ASSERT_TRUE(pool->cache(list).ok());
      }
      ASSERT_TRUE(pool->release(&list).ok());
    }
  }

  // Of a pool of 40,000 blocks, of which the last 10,000 are empty then.
  void take_hit_in_10000_pieces(KVAllocator* pool, RangeList* request) {
    make_runs(pool, 10'000, 2, true);
    RangeList rest, hit;
    rest.append({30'000, 10'000});
    ASSERT_TRUE(pool->release(&rest).ok());
    for (int32_t i = 0; i < 10'000; ++i) {
      hit.append({i * 3, 2});
    }
    ASSERT_TRUE(pool->acquire(request, hit).ok());
  }

  // Searches of a call.
  static constexpr int64_t kSearchesACall = 16;

  RangeList all_;
};

TEST_F(CostTest, ASearchAmong10000RunsLooksAtAFewHundredWindows) {
  KVAllocator pool(10'000 * 21, 0);
  make_runs(&pool, 10'000, 20, true);
  RangeList request;
  ASSERT_TRUE(pool.extend(&request, 20).ok());
  EXPECT_EQ(request.num_ranges(), 1u);
  EXPECT_LE(pool.search().num_looks(),
            WindowSearch::kMostLooks * pool.search().num_searches());
}

// Whether there is a prefix cache.
class HolesTest : public CostTest, public testing::WithParamInterface<bool> {};

TEST_P(HolesTest, ManyBlocksFrom28000OfOneBlockTakeFewSearches) {
  KVAllocator pool(56'000, 0);
  make_runs(&pool, 28'000, 1, false);
  if (GetParam()) {
    RangeList list;
    list.append({1, 1});
    ASSERT_TRUE(pool.cache(list).ok());
    ASSERT_TRUE(pool.release(&list).ok());
  }
  const int64_t looks = pool.search().num_looks();
  const int64_t searches = pool.search().num_searches();
  RangeList request;
  ASSERT_TRUE(pool.extend(&request, 8192).ok());
  EXPECT_GE(request.num_ranges(), 8190u);
  EXPECT_LE(pool.search().num_searches() - searches, kSearchesACall);
  EXPECT_LE(pool.search().num_looks() - looks,
            WindowSearch::kMostLooks * kSearchesACall);
}

INSTANTIATE_TEST_SUITE_P(Cache, HolesTest, testing::Bool());

TEST_F(CostTest, AHitIn10000PiecesIsGatheredWithFewSearches) {
  KVAllocator pool(40'000, 0);
  pool.set_copy_bound(KVAllocator::kNoBound);
  RangeList request;
  take_hit_in_10000_pieces(&pool, &request);
  const int64_t before = pool.search().num_searches();
  ASSERT_TRUE(pool.extend(&request, 10).ok());
  EXPECT_LE(request.num_ranges(), 10'000u - Placement::kPieces + 1);
  EXPECT_LE(pool.search().num_searches() - before, 2 * kSearchesACall);
  EXPECT_LE(pool.gather().num_looks(), Placement::kPieces);
  EXPECT_EQ(pool.check_invariants(), "");
}

TEST_F(CostTest, FewPricesOfACopyAreTriedWhereTheBoundIsTight) {
  KVAllocator pool(40'000, 0);
  pool.set_copy_bound(1'000);
  RangeList request;
  take_hit_in_10000_pieces(&pool, &request);
  ASSERT_TRUE(pool.extend(&request, 10).ok());
  EXPECT_GT(pool.gather().num_looks(), Placement::kPieces);
  EXPECT_LE(pool.gather().num_looks(),
            Gather::most_looks() * Placement::kPieces);
}

}  // namespace
}  // namespace vllm::tagma
