// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

#include "prefix_index.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "kv_allocator.h"

namespace vllm::tagma {
namespace {

// A key of `size` bytes that differs for each `id`.
std::string key_of(int id, size_t size = 32) {
  std::string key(size, '\0');
  for (size_t i = 0; i < size; ++i) {
    key[i] = static_cast<char>(id >> (8 * (i % 4)));
  }
  return key;
}

std::vector<int32_t> blocks_of(const RangeList& list) {
  std::vector<int32_t> blocks;
  for (int64_t i = 0; i < list.num_blocks(); ++i) {
    blocks.push_back(list.at(i));
  }
  return blocks;
}

TEST(PrefixIndex, FindsWhatWasInsertedAndNotErased) {
  PrefixIndex index(64);
  for (int b = 0; b < 64; ++b) {
    index.insert(b, key_of(b));
  }
  for (int b = 0; b < 64; b += 2) {
    index.erase(b);
  }
  for (int b = 0; b < 64; ++b) {
    EXPECT_EQ(index.find(key_of(b)), b % 2 == 0 ? kNoBlock : b);
    EXPECT_EQ(index.contains(b), b % 2 != 0);
  }
  EXPECT_EQ(index.size(), 32);
  EXPECT_EQ(index.check_invariants(), "");
}

TEST(PrefixIndex, KeysAreAnyBytesOfAnyLength) {
  PrefixIndex index(128);
  const size_t sizes[] = {0, 1, 7, 8, 9, 31, 32, 36, 40, 41, 64, 1000};
  int32_t block = 0;
  for (const size_t size : sizes) {
    index.insert(block++, std::string(size, '\0'));
    if (size > 0) {
      index.insert(block++, key_of(-1, size));
    }
  }
  EXPECT_EQ(index.check_invariants(), "");
  block = 0;
  for (const size_t size : sizes) {
    EXPECT_EQ(index.find(std::string(size, '\0')), block++);
    if (size > 0) {
      EXPECT_EQ(index.find(key_of(-1, size)), block);
      EXPECT_EQ(index.key_of(block++), key_of(-1, size));
    }
  }
}

TEST(PrefixIndex, TheBlockInsertedFirstIsFound) {
  PrefixIndex index(16);
  const std::string key = key_of(7);
  for (const int32_t block : {5, 3, 9, 1}) {
    index.insert(block, key);
  }
  index.insert(0, key_of(8));
  EXPECT_EQ(index.find(key), 5);
  index.erase(9);  // One that waits.
  EXPECT_EQ(index.find(key), 5);
  index.erase(5);  // The first: the next in order takes its place.
  EXPECT_EQ(index.find(key), 3);
  EXPECT_EQ(index.check_invariants(), "");
  index.erase(3);
  EXPECT_EQ(index.find(key), 1);
  index.erase(1);
  EXPECT_EQ(index.find(key), kNoBlock);
  EXPECT_EQ(index.find(key_of(8)), 0);
}

TEST(PrefixIndex, MatchStopsAtTheFirstUnknownKey) {
  PrefixIndex index(64);
  for (const int32_t block : {10, 11, 12, 30, 31}) {
    index.insert(block, key_of(block));
  }
  std::vector<std::string> keys;
  for (const int id : {10, 11, 30, 31, 99, 12}) {
    keys.push_back(key_of(id));
  }
  RangeList blocks;
  const auto key_at = [&](size_t i) { return BlockKey(keys[i]); };
  index.match(keys.size(), key_at, &blocks);
  EXPECT_EQ(blocks_of(blocks), (std::vector<int32_t>{10, 11, 30, 31}));
  EXPECT_EQ(blocks.num_ranges(), 2u);
  index.match(3, key_at, &blocks);
  EXPECT_EQ(blocks.num_blocks(), 3);
  index.match(0, key_at, &blocks);
  EXPECT_TRUE(blocks.empty());
}

TEST(PrefixIndex, AgreesWithAModel) {
  constexpr int kBlocks = 48;
  PrefixIndex index(kBlocks);
  std::map<std::string, std::vector<int32_t>> model;
  std::mt19937_64 rng(20250731);
  for (int step = 0; step < 50'000; ++step) {
    const auto block = static_cast<int32_t>(rng() % kBlocks);
    // Few keys, so that many are shared; some are long.
    const int id = static_cast<int>(rng() % 24);
    const std::string key = key_of(id, id % 4 == 0 ? 50 : 32);
    if (index.contains(block)) {
      const std::string old(index.key_of(block));
      std::vector<int32_t>& blocks = model[old];
      blocks.erase(std::find(blocks.begin(), blocks.end(), block));
      index.erase(block);
    } else {
      model[key].push_back(block);
      index.insert(block, key);
    }
    const std::vector<int32_t>& blocks = model[key];
    ASSERT_EQ(index.find(key), blocks.empty() ? kNoBlock : blocks.front());
    if (step % 64 == 0) {
      ASSERT_EQ(index.check_invariants(), "");
    }
  }
}

// ---- The index and the allocator together. ----

class IndexedPool : public testing::Test {
 protected:
  IndexedPool() { EXPECT_TRUE(pool_.attach(&index_).ok()); }

  Result cache(const RangeList& blocks, int64_t start, int64_t stop,
               int first_id) {
    std::vector<std::string> strings;
    for (int64_t i = start; i < stop; ++i) {
      strings.push_back(key_of(first_id++));
    }
    const std::vector<BlockKey> keys(strings.begin(), strings.end());
    return pool_.cache_prefix(blocks, start, stop, keys.data(), &cached_);
  }

  void extend(RangeList* request, int64_t count) {
    RangeList view;
    ASSERT_TRUE(pool_.extend(request, count, &view).ok());
    ASSERT_EQ(pool_.check_invariants(), "");
  }

  PrefixIndex index_{32};
  KVAllocator pool_{32, 1, 0};
  int64_t cached_ = -1;
};

TEST_F(IndexedPool, CachingARequestMakesItsPrefixFound) {
  RangeList request;
  extend(&request, 6);
  ASSERT_TRUE(cache(request, 0, 4, 100).ok());
  EXPECT_EQ(cached_, 4);
  EXPECT_EQ(index_.find(key_of(103)), request.at(3));
  EXPECT_FALSE(pool_.is_cached(request.at(4)));
  // As the request fills more blocks, only those are new.
  ASSERT_TRUE(cache(request, 0, 6, 100).ok());
  EXPECT_EQ(cached_, 2);
  EXPECT_EQ(index_.size(), 6);
  EXPECT_EQ(pool_.check_invariants(), "");
}

TEST_F(IndexedPool, ABlockCachedUnderAnotherKeyMovesToTheNewOne) {
  RangeList request;
  extend(&request, 1);
  ASSERT_TRUE(cache(request, 0, 1, 100).ok());
  ASSERT_TRUE(cache(request, 0, 1, 200).ok());
  EXPECT_EQ(cached_, 0);
  EXPECT_EQ(index_.find(key_of(100)), kNoBlock);
  EXPECT_EQ(index_.find(key_of(200)), request.at(0));
  EXPECT_EQ(pool_.check_invariants(), "");
}

TEST_F(IndexedPool, EvictionRemovesTheEntryInTheSameCall) {
  index_.record_evicted(true);
  RangeList chain, request;
  extend(&chain, 32);
  ASSERT_TRUE(cache(chain, 0, 32, 100).ok());
  ASSERT_TRUE(pool_.release(&chain).ok());
  EXPECT_EQ(index_.size(), 32);
  extend(&request, 5);
  EXPECT_EQ(index_.size(), 27);
  EXPECT_EQ(pool_.evicted().size(), 5u);
  size_t i = 0;
  EXPECT_TRUE(index_.for_each_evicted(
      [&](BlockKey key) { return key == key_of(100 + pool_.evicted()[i++]); }));
  EXPECT_EQ(i, 5u);
  for (const int32_t block : blocks_of(request)) {
    EXPECT_EQ(index_.find(key_of(100 + block)), kNoBlock);
  }
}

TEST_F(IndexedPool, UncachingRemovesTheEntry) {
  RangeList request;
  extend(&request, 4);
  ASSERT_TRUE(cache(request, 0, 4, 100).ok());
  ASSERT_TRUE(pool_.uncache(2).ok());
  EXPECT_EQ(index_.find(key_of(102)), kNoBlock);
  ASSERT_TRUE(pool_.release(&request).ok());
  pool_.uncache_all();
  EXPECT_EQ(index_.size(), 0);
  EXPECT_EQ(pool_.largest_extent(), 32);
  EXPECT_EQ(pool_.check_invariants(), "");
}

TEST_F(IndexedPool, AFailedCacheChangesNothing) {
  RangeList request, hit;
  extend(&request, 4);
  hit = request;
  ASSERT_TRUE(cache(request, 0, 2, 100).ok());
  RangeList tail;
  tail.append({request.at(3), 1});
  ASSERT_TRUE(pool_.release(&tail).ok());
  const std::string before = pool_.dump();
  const Result result = cache(hit, 0, 4, 200);
  EXPECT_EQ(result.status, Status::kBlockNotHeld);
  EXPECT_EQ(result.value, 3);
  EXPECT_EQ(pool_.cache(2).status, Status::kIndexed);
  EXPECT_TRUE(pool_.dump() == before);
}

TEST(PrefixIndexAttach, NeedsAPoolWithoutCachedBlocks) {
  PrefixIndex index(8);
  KVAllocator pool(8, 1, 0);
  Range range;
  ASSERT_TRUE(pool.allocate(1, &range).ok());
  ASSERT_TRUE(pool.cache(0).ok());
  EXPECT_EQ(pool.attach(&index).status, Status::kAlreadyCached);
  ASSERT_TRUE(pool.uncache(0).ok());
  EXPECT_TRUE(pool.attach(&index).ok());
}

}  // namespace
}  // namespace vllm::tagma
