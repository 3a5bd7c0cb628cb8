// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

// The cache-only blocks of a pool, least recently used first.

#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "extent_set.h"
#include "kv_ranges.h"

namespace vllm::tagma {

// Blocks that became cache-only together and lie side by side are one segment,
// a part of a chain: its first block is the one that the others build on. So
// the list has an element for each segment instead of each block, and taking a
// chain's head out or back in is O(1).
class EvictionQueue {
 public:
  explicit EvictionQueue(int32_t num_blocks)
      : tags_(num_blocks), starts_(num_blocks), nodes_(num_blocks) {}

  int32_t num_blocks() const { return num_blocks_; }
  int32_t num_segments() const { return num_segments_; }

  // Start of the least recently used segment, or kNoBlock.
  int32_t oldest() const { return head_; }
  // Start of the next more recently used one, or kNoBlock.
  int32_t after(int32_t start) const { return nodes_[start].links.next; }

  int32_t length_from(int32_t block) const { return tags_.length_from(block); }
  int32_t length_to(int32_t block) const { return tags_.length_to(block); }

  // The segment that `block`, which must be in one, is in.
  Range segment_of(int32_t block) const {
    const int32_t start =
        length_from(block) > 0 ? block : starts_.at_or_before(block);
    return {start, length_from(start)};
  }

  // How recently a segment was used, from 0 for the oldest to 1. Time goes on
  // with the blocks that become cache-only.
  float recency(int32_t start) const {
    const int64_t oldest = nodes_[head_].stamp;
    const int64_t age = nodes_[start].stamp - oldest;
    return static_cast<float>(age) / static_cast<float>(now_ - oldest + 1);
  }

  // Adds a segment as the most recently used one.
  void append(Range segment) {
    now_ += segment.count;
    add(segment, now_, kNoBlock);
    num_blocks_ += segment.count;
  }

  // Removes blocks, all of which must be in segments. What is left of a segment
  // stays as old as it was.
  void remove(Range range) {
    num_blocks_ -= range.count;
    while (range.count > 0) {
      const Range segment = segment_of(range.start);
      const int32_t end = std::min(segment.end(), range.end());
      remove_part(segment, {range.start, end - range.start});
      range = {end, range.end() - end};
    }
  }

  std::string check(int32_t num_blocks) const;

  // Calls `visit(segment, stamp)` for each, the oldest first.
  template <typename Visit>
  void for_each(Visit visit) const {
    for (int32_t s = head_; s != kNoBlock; s = nodes_[s].links.next) {
      visit(Range{s, length_from(s)}, nodes_[s].stamp);
    }
  }

 private:
  // Adds `segment` before that at `successor`, or as the last if kNoBlock.
  void add(Range segment, int64_t stamp, int32_t successor) {
    const int32_t start = segment.start;
    const int32_t prev =
        successor == kNoBlock ? tail_ : nodes_[successor].links.prev;
    tags_.set(segment);
    starts_.insert(start);
    nodes_[start] = {stamp, {prev, successor}};
    (prev == kNoBlock ? head_ : nodes_[prev].links.next) = start;
    (successor == kNoBlock ? tail_ : nodes_[successor].links.prev) = start;
    ++num_segments_;
  }

  void drop(Range segment) {
    const auto [prev, next] = nodes_[segment.start].links;
    tags_.clear(segment);
    starts_.erase(segment.start);
    (prev == kNoBlock ? head_ : nodes_[prev].links.next) = next;
    (next == kNoBlock ? tail_ : nodes_[next].links.prev) = prev;
    --num_segments_;
  }

  void remove_part(Range segment, Range part) {
    const Range left{segment.start, part.start - segment.start};
    const Range right{part.end(), segment.end() - part.end()};
    const int64_t stamp = nodes_[segment.start].stamp;
    int32_t successor = nodes_[segment.start].links.next;
    if (left.count > 0) {
      tags_.clear(segment);
      tags_.set(left);
      successor = left.start;  // The tail of a chain goes before its head.
    } else {
      drop(segment);
    }
    if (right.count > 0) {
      add(right, stamp, successor);
    }
  }

  struct Node {
    int64_t stamp;  // When its blocks became cache-only.
    Links links;
  };

  BoundaryTags tags_;
  BlockSet starts_;
  BlockArray<Node> nodes_;  // Of a segment, at its first block.
  int32_t head_ = kNoBlock;
  int32_t tail_ = kNoBlock;
  int32_t num_segments_ = 0;
  int32_t num_blocks_ = 0;
  int64_t now_ = 0;
};

inline std::string EvictionQueue::check(int32_t num_blocks) const {
  int32_t segments = 0;
  int32_t blocks = 0;
  int32_t prev = kNoBlock;
  for (int32_t s = head_; s != kNoBlock; prev = s, s = nodes_[s].links.next) {
    const int32_t count = length_from(s);
    if (count == 0 || length_to(s + count) != count ||
        nodes_[s].links.prev != prev || !starts_.contains(s) ||
        nodes_[s].stamp > now_ ||
        (prev != kNoBlock && nodes_[s].stamp < nodes_[prev].stamp) ||
        ++segments > num_segments_) {
      return "eviction queue is broken at block " + std::to_string(s);
    }
    blocks += count;
  }
  int32_t starts = 0;
  for (int32_t b = 0; b < num_blocks; ++b) {
    starts += starts_.contains(b);
    if (starts_.contains(b) != (length_from(b) > 0)) {
      return "segment start " + std::to_string(b) + " is not marked";
    }
  }
  if (segments != num_segments_ || starts != segments ||
      blocks != num_blocks_ || tail_ != prev) {
    return "eviction queue does not hold every segment";
  }
  return {};
}

}  // namespace vllm::tagma
