// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

// The copies of blocks that a step's moves come to.

#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "block_array.h"
#include "kv_ranges.h"

namespace vllm::tagma {

struct Copy {
  int32_t from;
  int32_t to;
};

inline bool operator==(const Copy& a, const Copy& b) {
  return a.from == b.from && a.to == b.to;
}

// Puts copies, which all are meant to read before any writes, in an order in
// which they may be made one after the other. A block is the source of at most
// one and the target of at most one. The copies of a chain follow each other,
// its last one first: `to` of a copy is `from` of the copy before. A cycle is a
// chain whose first target is its last source; one that is made step by step
// has to save that block first. Cycles come last.
class CopyOrder {
 public:
  explicit CopyOrder(int32_t num_blocks) : targets_(num_blocks) {
    sorted_targets_.reserve(num_blocks);
    sorted_.reserve(num_blocks);
  }

  // Returns how many copies are in front of the cycles.
  size_t sort(std::vector<Copy>* copies) {
    std::sort(copies->begin(), copies->end(),
              [](const Copy& a, const Copy& b) { return a.from < b.from; });
    for (const Copy& copy : *copies) {
      targets_[copy.from] = copy.to + 1;
      sorted_targets_.push_back(copy.to);
    }
    std::sort(sorted_targets_.begin(), sorted_targets_.end());
    for (const Copy& copy : *copies) {
      if (!std::binary_search(sorted_targets_.begin(), sorted_targets_.end(),
                              copy.from)) {
        append_chain(copy.from);
      }
    }
    const size_t num_ordered = sorted_.size();
    for (const Copy& copy : *copies) {
      if (targets_[copy.from] != 0) {
        append_chain(copy.from);
      }
    }
    std::copy(sorted_.begin(), sorted_.end(), copies->begin());
    sorted_.clear();
    sorted_targets_.clear();
    return num_ordered;
  }

 private:
  // Appends the chain that begins with the copy from `first`.
  void append_chain(int32_t first) {
    const size_t begin = sorted_.size();
    for (int32_t from = first; targets_[from] != 0;) {
      const int32_t to = targets_[from] - 1;
      targets_[from] = 0;
      sorted_.push_back({from, to});
      from = to;
    }
    std::reverse(sorted_.begin() + static_cast<int64_t>(begin), sorted_.end());
  }

  BlockArray<int32_t> targets_;  // Plus one, by source; zeros between calls.
  std::vector<int32_t> sorted_targets_;
  std::vector<Copy> sorted_;
};

// What was moved since the copies were last taken: for each block whose content
// lies elsewhere in the workers' memory still, where. Moves of the same content
// collapse.
class Copies {
 public:
  explicit Copies(int32_t num_blocks)
      : sources_(num_blocks), order_(num_blocks) {
    targets_.reserve(num_blocks);
  }

  // The content of `from` is now that of `to`.
  void move(int32_t from, int32_t to) {
    const int32_t source = source_of(from);
    forget(from);
    if (sources_[to] == 0) {
      targets_.push_back(to);
    }
    sources_[to] = source + 1;
  }

  // Nobody wants the content of `block` any more.
  void forget(int32_t block) {
    if (sources_[block] != 0) {
      sources_[block] = block + 1;
    }
  }

  // Where the content of `block` lies until the copies are made.
  int32_t source_of(int32_t block) const {
    return sources_[block] != 0 ? sources_[block] - 1 : block;
  }

  // Replaces `copies` by those to be made before the step's forward pass, one a
  // target, as CopyOrder has them. Returns how many are in front of the cycles.
  size_t take(std::vector<Copy>* copies) {
    copies->clear();
    for (const int32_t to : targets_) {
      if (const int32_t from = source_of(to); from != to) {
        copies->push_back({from, to});
      }
      sources_[to] = 0;
    }
    targets_.clear();
    return order_.sort(copies);
  }

  // Calls `put(data, count)` with what take() depends on.
  template <typename Put>
  void dump(int32_t num_blocks, Put put) const {
    for (int32_t b = 0; b < num_blocks; ++b) {
      const int32_t source = source_of(b);
      put(&source, 1);
    }
  }

 private:
  BlockArray<int32_t> sources_;   // Plus one, by target; 0 for what is in no
  std::vector<int32_t> targets_;  // list of targets.
  CopyOrder order_;
};

}  // namespace vllm::tagma
