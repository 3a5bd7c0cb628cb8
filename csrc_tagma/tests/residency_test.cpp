// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

// What stays cached is what upstream's pool keeps, whatever is moved: the same
// victims in the same order, and the same order of all that is free.

#include "residency.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "kv_allocator.h"
#include "prefix_index.h"

namespace vllm::tagma {
namespace {

using Hash = int64_t;  // 0 is none.

// `BlockPool` and `FreeKVCacheBlockQueue` of vllm/v1/core, line by line as far
// as they order blocks.
class UpstreamPool {
 public:
  explicit UpstreamPool(int32_t num_blocks) : blocks_(num_blocks + 2) {
    head_ = num_blocks;
    tail_ = num_blocks + 1;
    int32_t last = head_;
    for (int32_t b = 0; b < num_blocks; ++b) {
      link(last, b);
      last = b;
    }
    link(last, tail_);
  }

  // Appends the hashes that are evicted to `evicted`.
  std::vector<int32_t> get_new_blocks(int32_t count,
                                      std::vector<Hash>* evicted) {
    std::vector<int32_t> blocks = popleft_n(count);
    for (const int32_t b : blocks) {
      maybe_evict_cached_block(b, evicted);
      ++blocks_[b].ref_cnt;
    }
    return blocks;
  }

  void touch(const std::vector<int32_t>& blocks) {
    for (const int32_t b : blocks) {
      if (blocks_[b].ref_cnt == 0) {
        remove(b);
      }
      ++blocks_[b].ref_cnt;
    }
  }

  void free_blocks(const std::vector<int32_t>& ordered_blocks) {
    std::vector<int32_t> evict_first;
    std::vector<int32_t> evict_last;
    for (const int32_t b : ordered_blocks) {
      if (--blocks_[b].ref_cnt == 0) {
        (blocks_[b].hash == 0 ? evict_first : evict_last).push_back(b);
      }
    }
    prepend_n(evict_first);
    append_n(evict_last);
  }

  void evict_block(int32_t block) {
    std::vector<Hash> evicted;
    maybe_evict_cached_block(block, &evicted);
  }

  void set_hash(int32_t block, Hash hash) { blocks_[block].hash = hash; }
  Hash hash_of(int32_t block) const { return blocks_[block].hash; }

  std::vector<Hash> free_hashes() const {
    std::vector<Hash> hashes;
    for (int32_t b = blocks_[head_].next; b != tail_; b = blocks_[b].next) {
      hashes.push_back(blocks_[b].hash);
    }
    return hashes;
  }

 private:
  struct Block {
    int32_t ref_cnt = 0;
    Hash hash = 0;
    int32_t prev = 0;
    int32_t next = 0;
  };

  void link(int32_t a, int32_t b) {
    blocks_[a].next = b;
    blocks_[b].prev = a;
  }
  std::vector<int32_t> popleft_n(int32_t count) {
    std::vector<int32_t> blocks;
    int32_t b = blocks_[head_].next;
    for (; count > 0; --count) {
      blocks.push_back(b);
      b = blocks_[b].next;
    }
    link(head_, b);
    return blocks;
  }
  void remove(int32_t b) { link(blocks_[b].prev, blocks_[b].next); }
  void prepend_n(const std::vector<int32_t>& blocks) {
    const int32_t first = blocks_[head_].next;
    int32_t last = head_;
    for (const int32_t b : blocks) {
      link(last, b);
      last = b;
    }
    link(last, first);
  }
  void append_n(const std::vector<int32_t>& blocks) {
    int32_t last = blocks_[tail_].prev;
    for (const int32_t b : blocks) {
      link(last, b);
      last = b;
    }
    link(last, tail_);
  }
  void maybe_evict_cached_block(int32_t b, std::vector<Hash>* evicted) {
    if (blocks_[b].hash != 0) {
      evicted->push_back(blocks_[b].hash);
      blocks_[b].hash = 0;
    }
  }

  std::vector<Block> blocks_;
  int32_t head_;
  int32_t tail_;
};

class ResidencyTest : public testing::TestWithParam<int32_t> {
 protected:
  static constexpr int32_t kBlocks = 96;
  static constexpr int kOperations = 350'000;

  struct Request {
    RangeList list;
    std::vector<int32_t> blocks;  // Upstream's ids.
  };

  ResidencyTest() : requests_(6) {
    EXPECT_TRUE(pool_.attach(&index_).ok());
    index_.record_evicted(true);
    pool_.set_copy_bound(GetParam());
  }

  int random(int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(rng_);
  }

  static BlockKey key_of(const Hash& hash) {
    return {reinterpret_cast<const char*>(&hash), sizeof(hash)};
  }
  static Hash hash_of(BlockKey key) {
    Hash hash = 0;
    std::copy(key.begin(), key.end(), reinterpret_cast<char*>(&hash));
    return hash;
  }
  int32_t block_of(Hash hash) const { return index_.find(key_of(hash)); }

  void extend(Request* request) {
    const int32_t count = random(1, random(0, 4) == 0 ? 30 : 3);
    if (count > pool_.num_free_blocks()) {
      ASSERT_EQ(pool_.extend(&request->list, count).status,
                Status::kOutOfBlocks);
      return;
    }
    ASSERT_TRUE(pool_.extend(&request->list, count).ok());
    std::vector<Hash> expected;
    for (const int32_t b : upstream_.get_new_blocks(count, &expected)) {
      request->blocks.push_back(b);
    }
    std::vector<Hash> evicted;
    index_.for_each_evicted([&](BlockKey key) {
      evicted.push_back(hash_of(key));
      return true;
    });
    index_.clear_evicted();
    pool_.clear_evicted();
    ASSERT_EQ(evicted, expected);
  }

  void release(Request* request) {
    ASSERT_TRUE(pool_.release(&request->list).ok());
    upstream_.free_blocks({request->blocks.rbegin(), request->blocks.rend()});
    request->blocks.clear();
  }

  // Gives the first blocks without one a hash.
  void cache(Request* request) {
    const auto size = static_cast<int64_t>(request->blocks.size());
    int64_t start = 0;
    while (start < size && upstream_.hash_of(request->blocks[start]) != 0) {
      ++start;
    }
    std::vector<Hash> hashes;
    std::vector<BlockKey> keys;
    for (int64_t i = start; i < size && random(0, 9) > 0; ++i) {
      hashes.push_back(++last_hash_);
      upstream_.set_hash(request->blocks[i], last_hash_);
    }
    for (const Hash& hash : hashes) {
      keys.push_back(key_of(hash));
    }
    int64_t cached = 0;
    ASSERT_TRUE(pool_
                    .cache_prefix(request->list, start,
                                  start + static_cast<int64_t>(keys.size()),
                                  keys.data(), &cached)
                    .ok());
  }

  // A hit of what another request has, or what lies in the queue side by side.
  void hit(Request* request) {
    std::vector<int32_t> blocks;
    if (random(0, 1) == 0) {
      blocks = requests_[random(0, 5)].blocks;
    } else {
      for (int i = random(0, 8); i > 0; --i) {
        blocks.push_back(random(0, kBlocks - 1));
      }
      std::sort(blocks.begin(), blocks.end());
      blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
    }
    RangeList found;
    std::vector<int32_t> touched;
    for (const int32_t b : blocks) {
      if (upstream_.hash_of(b) != 0) {
        touched.push_back(b);
        found.append({block_of(upstream_.hash_of(b)), 1});
      }
    }
    ASSERT_TRUE(pool_.acquire(&request->list, found).ok());
    upstream_.touch(touched);
    request->blocks.insert(request->blocks.end(), touched.begin(),
                           touched.end());
  }

  // As `evict_blocks` does for blocks that were loaded badly.
  void evict() {
    const int32_t b = random(0, kBlocks - 1);
    if (const Hash hash = upstream_.hash_of(b); hash != 0) {
      ASSERT_TRUE(pool_.uncache(block_of(hash)).ok());
      upstream_.evict_block(b);
    }
  }

  void end_step() {
    std::vector<Copy> copies;
    pool_.take_copies(&copies);
    num_copies_ += static_cast<int64_t>(copies.size());
    const int32_t step = pool_.begin_step();
    pool_.process_step(step - random(1, 2));
  }

  void compare() {
    std::vector<Hash> order;
    pool_.for_each_free([&](int32_t b) {
      order.push_back(b == kNoBlock ? 0 : hash_of(index_.key_of(b)));
    });
    ASSERT_EQ(order, upstream_.free_hashes());
  }

  std::mt19937_64 rng_{14};
  PrefixIndex index_{kBlocks, secret_of_seed(1)};
  KVAllocator pool_{kBlocks, 0};
  UpstreamPool upstream_{kBlocks};
  std::vector<Request> requests_;
  Hash last_hash_ = 0;
  int64_t num_copies_ = 0;
};

TEST_P(ResidencyTest, IsThatOfUpstreamsPool) {
  for (int i = 0; i < kOperations; ++i) {
    Request* request = &requests_[random(0, 5)];
    const int kind = random(0, 99);
    if (kind < 40) {
      extend(request);
    } else if (kind < 55) {
      release(request);
    } else if (kind < 72) {
      cache(request);
    } else if (kind < 85) {
      if (request->blocks.empty()) {
        hit(request);
      }
    } else if (kind < 90) {
      evict();
    } else {
      end_step();
    }
    if (!HasFatalFailure()) {
      compare();
    }
    ASSERT_FALSE(HasFatalFailure()) << "at operation " << i;
  }
  EXPECT_EQ(pool_.check_invariants(), "");
  EXPECT_EQ(num_copies_ > kOperations / 100, GetParam() > 0);
}

// In total a million operations.
INSTANTIATE_TEST_SUITE_P(Copies, ResidencyTest,
                         testing::Values(0, 8, KVAllocator::kNoBound));

}  // namespace
}  // namespace vllm::tagma
