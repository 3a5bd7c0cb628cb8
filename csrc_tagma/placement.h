// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

// Where a request's blocks go: the policy, apart from the allocator's
// mechanism.

#pragma once

#include <algorithm>
#include <cstdint>

// `replay --range-cost` compiles other values.
#ifndef TAGMA_RANGE_COST
  #define TAGMA_RANGE_COST 2048
#endif

namespace vllm::tagma {

// The cheapest window, with headroom for growth.
//
// A window costs what it evicts, each block by how recently it was used, and
// the headroom that it takes from the request in front of it or lacks itself.
// Windows are compared by their cost for each block, with a further range as
// part of it; so a small cheap window can win over a large one that is dear.
// Of free extents, and of runs beside the oldest blocks, the shortest that will
// do is looked at, so that long ones stay whole.
//
// A request wants as much headroom as others grew before it, and at least what
// it grew by itself: its ranges get longer as it grows. It gets no more than
// its fair share of what is left, of which cached blocks count half.
//
// Why these values, in mean ranges of a request. With a range worth 64, 256,
// 1024 or 2048 blocks, the first 2,500 requests of the Mooncake trace have 3.7,
// 2.9, 2.6 or 2.5 in a pool that is 70 % live, and find 0.99, 0.95, 0.96 or
// 0.94 of what LRU finds. Sessions have two thirds as many at 2048 as at 64 and
// find 7 % less, see tools/replay/range_cost.png; at 2048 those with long
// outputs have 3.0, at 1024 3.3. The same plot has three other policies of
// replacement, `replay --variant`: none finds clearly more at equal ranges.
// Without a cache, 512 chat requests have 1.3 at 70 % live, 2.3 at 90 % and 9
// at 98 %, and 10.5 at 98 % if the headroom of those in front is their fair
// share as well.
class GrowthHeadroom {
 public:
  // Blocks that a request is first expected to grow by.
  static constexpr float kInitial = 16;
  // Headroom wanted is at least this, and expected to be at most that.
  static constexpr int32_t kLeast = 4;
  static constexpr int32_t kMost = 1024;
  // A smaller pool has no headroom to give.
  static constexpr int32_t kSmallestPool = 64;
  // More blocks at once than this are a prompt's, not growth.
  static constexpr int32_t kGrowthStep = 2;
  // What a range more is worth, in blocks that were just used.
  static constexpr float kRangeCost = TAGMA_RANGE_COST;
  // What the oldest block is worth, likewise.
  static constexpr float kLeastBlockCost = 0.001f;
  // What a range more in the future is worth, likewise.
  static constexpr float kRoomCost = kRangeCost / 16;
  // With slack to spare, a request gets up to this many times its headroom.
  static constexpr int32_t kSpread = 4;
  // Headroom of another request counts this many times against an extent.
  static constexpr int32_t kReservedWeight = 4;
  // An extent that is nobody's headroom counts as this many times as long, if
  // only a part of the blocks fits into any.
  static constexpr int32_t kUnreservedWeight = 3;
  // A window that costs less is not improved on any more.
  static constexpr float kCheap = kRangeCost / 128;
  // A segment that is more recent is not old.
  static constexpr float kOld = 0.3f;
  // Most free extents looked at, from the shortest that will do upward, and
  // from the longest downward. Those of a size class are alike: after so many
  // the next class is gone on to.
  static constexpr int kShort = 256;
  static constexpr int kAlike = 16;
  static constexpr int kLong = 8;
  // Most old segments whose ends are looked at.
  static constexpr int kEnds = 4;
  // Most segments looked around, from the oldest on, most free extents, and
  // most runs.
  static constexpr int kSeeds = 4;
  static constexpr int kFreeSeeds = 1;
  static constexpr int kRunSeeds = 2;
  // Most pieces of a run looked at on each side.
  static constexpr int kHops = 12;
  // Most further ranges of a chain counted.
  static constexpr int kChain = 8;

  explicit GrowthHeadroom(int32_t num_blocks) : num_blocks_(num_blocks) {}

  // Blocks that may become headroom of a request that is placed, of those that
  // no request holds.
  static int32_t spare(int32_t free, int32_t cached) {
    return free + cached / 2;
  }
  // The same for the requests that it is placed behind. They grow on while
  // others end, and then want more than their share of now.
  static int32_t spare_of_others(int32_t free, int32_t cached) {
    return free / 2 * 3 + cached / 4;
  }

  // Headroom for a request that has grown by `grown` blocks, when `spare`
  // blocks are left to `requests` requests.
  int32_t headroom(int32_t grown, int32_t spare, int32_t requests) const {
    if (num_blocks_ < kSmallestPool) {
      return 0;
    }
    const auto expected = static_cast<int32_t>(expected_);
    const int32_t wanted = std::max({kLeast, expected - grown, grown});
    if (int64_t{wanted} * (requests + 1) <= spare) {
      return wanted;
    }
    return spare / (requests + 1);
  }

  // Learns from a request that ended: follows the value that a third of the
  // requests grow beyond, which for usual lengths of output is near the mean
  // but does not jump with the longest ones.
  void observe(int32_t grown) {
    const float step = expected_ / 64;
    expected_ += static_cast<float>(grown) > expected_ ? 2 * step : -step;
    expected_ = std::clamp(expected_, float{kLeast}, float{kMost});
  }
  float expected() const { return expected_; }

  // What it costs to evict a block whose recency is in [0, 1].
  static float block_cost(float recency) {
    return kLeastBlockCost + recency * recency;
  }

  // What it costs to have just `room` of the headroom `wanted`: about as many
  // ranges as the growth then needs.
  static float room_cost(int32_t room, int32_t wanted) {
    room = std::max(room, 0);
    return room >= wanted ? 0
                          : kRoomCost * static_cast<float>(wanted - room) /
                                static_cast<float>(room + 1);
  }

  // The figure by which windows are compared; the least wins.
  static float score(float cost, int32_t count) {
    return (cost + kRangeCost) / static_cast<float>(count);
  }

  // Where in a stretch of `length` blocks that all can be had: so that slack is
  // shared between `reserved`, which is for the request in front of it, and the
  // `own` headroom in proportion, up to kSpread times what is wanted.
  static int32_t offset(int32_t length, int32_t count, int32_t reserved,
                        int32_t own) {
    const int64_t slack = length - count;
    const int64_t wanted = int64_t{reserved} + std::max(own, 1);
    return static_cast<int32_t>(
        std::min(slack * reserved / wanted, int64_t{kSpread} * reserved));
  }

 private:
  int32_t num_blocks_;
  float expected_ = kInitial;
};

}  // namespace vllm::tagma
