// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

// The copies of blocks that a step's moves come to.

#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "block_array.h"
#include "block_set.h"
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
  explicit CopyOrder(int32_t num_blocks)
      : num_blocks_(num_blocks),
        targets_(num_blocks),
        from_(num_blocks),
        to_(num_blocks) {
    sorted_.reserve(num_blocks);
  }

  // Returns how many copies are in front of the cycles. Chains come in the
  // order of their first sources, and so do cycles. O(1) a copy but for the
  // 64-ary search for the next source.
  size_t sort(std::vector<Copy>* copies) {
    for (const Copy& copy : *copies) {
      targets_[copy.from] = copy.to;
      from_.insert(copy.from);
      to_.insert(copy.to);
    }
    append_chains([this](int32_t from) { return !to_.contains(from); });
    const size_t num_ordered = sorted_.size();
    append_chains([](int32_t) { return true; });
    for (const Copy& copy : *copies) {
      to_.erase(copy.to);
    }
    std::copy(sorted_.begin(), sorted_.end(), copies->begin());
    sorted_.clear();
    return num_ordered;
  }

 private:
  // Appends the chains that begin with a source for which `begins(source)`.
  template <typename Begins>
  void append_chains(Begins begins) {
    for (int32_t from = from_.at_or_after(0); from < num_blocks_;
         from = from_.at_or_after(from + 1)) {
      if (begins(from)) {
        append_chain(from);
      }
    }
  }

  // Appends the chain that begins with the copy from `first`.
  void append_chain(int32_t first) {
    const size_t begin = sorted_.size();
    for (int32_t from = first; from_.contains(from);) {
      const int32_t to = targets_[from];
      from_.erase(from);
      sorted_.push_back({from, to});
      from = to;
    }
    std::reverse(sorted_.begin() + static_cast<int64_t>(begin), sorted_.end());
  }

  const int32_t num_blocks_;
  BlockArray<int32_t> targets_;  // By source.
  BlockSet from_;                // Empty between calls, as is the next.
  BlockSet to_;
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
