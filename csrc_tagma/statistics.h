// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

// What operators watch.

#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace vllm::tagma {

// Counts are of blocks unless said otherwise.
struct KVStats {
  // Ranges of a request: 1, 2, 3-4, 5-8, and so on to 129-256, and more.
  static constexpr int kNumBuckets = 10;

  int32_t free_blocks = 0;  // Neither held nor cached.
  int32_t held_blocks = 0;  // With a request reference.
  int32_t cache_only_blocks = 0;
  int32_t extents = 0;         // Stretches of free blocks.
  int32_t largest_extent = 0;  // Length of the longest of them.
  int32_t requests = 0;        // Requests that hold ranges.
  std::array<int32_t, kNumBuckets> ranges_per_request{};  // Of those.
  // Since the pool was made.
  int64_t spills = 0;  // Growths that needed a further range.
  int64_t evicted_blocks = 0;
  int64_t kept_blocks = 0;   // Moved out of a window, so still cached.
  int64_t block_copies = 0;  // That take_copies() returned.
  int64_t cap_events = 0;    // Calls that failed for max_ranges.

  // Counts a request in the bucket of its ranges, and no longer in `bucket`,
  // the one that it was counted in; a negative one is none.
  void count_request(size_t num_ranges, int8_t* bucket) {
    const auto now = static_cast<int8_t>(bucket_of(num_ranges));
    if (now == *bucket) {
      return;
    }
    if (*bucket < 0) {
      ++requests;
    } else {
      --ranges_per_request[*bucket];
    }
    ++ranges_per_request[now];
    *bucket = now;
  }

  static int bucket_of(size_t num_ranges) {
    const auto ranges = static_cast<uint32_t>(num_ranges);
    const int log2_ceil = ranges <= 1 ? 0 : 32 - __builtin_clz(ranges - 1);
    return std::min(log2_ceil, kNumBuckets - 1);
  }
};

}  // namespace vllm::tagma
