// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

// The references of every block of a pool.

#pragma once

#include <cstdint>
#include <cstring>

#include "block_array.h"
#include "kv_ranges.h"

namespace vllm::tagma {

// A block's request references are counted in 15 bits, and the cache's is the
// bit above them. Blocks of a range mostly have the same references, so that
// one pass of eight at a time both looks at them and changes them: that is the
// price of a long range, and compilers do not vectorise it at every level.
class BlockReferences {
 public:
  static constexpr int32_t kMostRequests = 0x7fff;

  explicit BlockReferences(int32_t num_blocks) : states_(num_blocks) {}

  int32_t num_requests(int32_t block) const {
    return states_[block] & kMostRequests;
  }
  bool is_held(int32_t block) const { return num_requests(block) > 0; }
  bool is_cached(int32_t block) const { return states_[block] >= kCached; }
  bool is_idle(int32_t block) const { return states_[block] == 0; }

  void cache(int32_t block) { states_[block] |= kCached; }
  void uncache(int32_t block) { states_[block] &= kMostRequests; }

  // Adds `change` request references to each block of a range.
  void add(Range range, int32_t change) {
    const auto by = static_cast<State>(change);
    visit(range, [by](auto lanes, State* at) { store(at, lanes + by); });
  }

  // The same if all of them have the references of the first one. Returns
  // whether they do.
  bool add_if_alike(Range range, int32_t change) {
    const auto by = static_cast<State>(change);
    const State first = states_[range.start];
    Eight differ{};
    uint64_t rest = 0;
    visit(range, [&](auto lanes, State* at) {
      store(at, lanes + by);
      note(lanes ^ first, &differ, &rest);
    });
    if ((rest | fold(differ)) == 0) {
      return true;
    }
    add(range, -change);
    return false;
  }

  // Sets the references of each block.
  void set(Range range, int32_t requests, bool cached) {
    const auto state = static_cast<State>(requests | (cached ? kCached : 0));
    State* at = &states_[range.start];
    const Eight eight = Eight{} + state;
    int32_t count = range.count;
    for (; count >= 16; count -= 16, at += 16) {
      store(at, eight);
      store(at + 8, eight);
    }
    if (count >= 8) {
      store(at, eight);
      at += 8;
      count -= 8;
    }
    for (; count > 0; --count, ++at) {
      *at = state;
    }
  }

  // Whether a request holds each block.
  bool are_held(Range range) const {
    Eight free{};
    uint64_t rest = 0;
    visit(range, [&](auto lanes, const State*) {
      // Borrows from the bit above if there are none.
      note(((lanes & kMostRequests) - 1) & kCached, &free, &rest);
    });
    return (rest | fold(free)) == 0;
  }

  // How many blocks at the range's begin have the references of its first.
  int32_t alike_from(Range range) const {
    const State* at = &states_[range.start];
    const State first = *at;
    int32_t left = range.count;
    while (left >= 8 && are(at, first)) {
      left -= 8;
      at += 8;
    }
    for (; left > 0 && *at == first; --left) {
      ++at;
    }
    return range.count - left;
  }

  // How many blocks at the range's end have the references of its last.
  int32_t alike_to(Range range) const {
    const State* at = &states_[range.start] + range.count;
    const State last = at[-1];
    int32_t left = range.count;
    while (left >= 8 && are(at - 8, last)) {
      left -= 8;
      at -= 8;
    }
    for (; left > 0 && at[-1] == last; --left) {
      --at;
    }
    return range.count - left;
  }

  // Calls `put(data, count)` with all of them, to be compared.
  template <typename Put>
  void dump(int32_t num_blocks, Put put) const {
    put(&states_[0], num_blocks);
  }

 private:
  using State = uint16_t;
  using Eight = State __attribute__((vector_size(16)));
  using Four = State __attribute__((vector_size(8)));

  static constexpr State kCached = 0x8000;

  static Eight load(const State* at) {
    Eight eight;
    std::memcpy(&eight, at, sizeof(eight));
    return eight;
  }
  template <typename Lanes>
  static void store(State* at, Lanes lanes) {
    std::memcpy(at, &lanes, sizeof(lanes));
  }
  static void store(State* at, int lane) { *at = static_cast<State>(lane); }

  // Whether the eight states from `at` on are `state`.
  static bool are(const State* at, State state) {
    uint64_t halves[2];
    std::memcpy(halves, at, sizeof(halves));
    const uint64_t four = state * uint64_t{0x0001000100010001};
    return ((halves[0] ^ four) | (halves[1] ^ four)) == 0;
  }

  // Collects bits, those of eight lanes apart.
  static void note(Eight lanes, Eight* eight, uint64_t*) { *eight |= lanes; }
  static void note(Four lanes, Eight*, uint64_t* rest) {
    uint64_t bits;
    std::memcpy(&bits, &lanes, sizeof(bits));
    *rest |= bits;
  }
  static void note(int lane, Eight*, uint64_t* rest) {
    *rest |= static_cast<State>(lane);
  }
  static uint64_t fold(Eight lanes) {
    uint64_t halves[2];
    std::memcpy(halves, &lanes, sizeof(lanes));
    return halves[0] | halves[1];
  }

  // Calls `visit(lanes, at)` for eight states at a time, then for four, then
  // for one as an int.
  template <typename Visit>
  [[gnu::always_inline]] inline void visit(Range range, Visit visit) {
    visit_at(&states_[range.start], range.count, visit);
  }
  template <typename Visit>
  [[gnu::always_inline]] inline void visit(Range range, Visit visit) const {
    visit_at(&states_[range.start], range.count, visit);
  }
  template <typename At, typename Visit>
  [[gnu::always_inline]] static inline void visit_at(At* at, int32_t count,
                                                     Visit visit) {
    for (; count >= 8; count -= 8, at += 8) {
      visit(load(at), at);
    }
    if (count >= 4) {
      Four four;
      std::memcpy(&four, at, sizeof(four));
      visit(four, at);
      count -= 4;
      at += 4;
    }
    for (; count > 0; --count, ++at) {
      visit(int{*at}, at);
    }
  }

  BlockArray<State> states_;
};

}  // namespace vllm::tagma
