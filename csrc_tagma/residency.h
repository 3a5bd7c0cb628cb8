// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

// Which cached blocks leave the cache, and when: upstream's order.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "block_array.h"
#include "kv_ranges.h"

namespace vllm::tagma {

// The order of `FreeKVCacheBlockQueue`, from the block that is given away next.
//
// Empty blocks are alike, so the order holds places instead of naming them: how
// many lie in front of every cached block, where `free_blocks` puts what has no
// hash, and one place for each block that lost its hash while it was in the
// queue. Which empty block is meant by a place is decided by who takes it. A
// cached block that is moved keeps its place. Every operation is O(1) a block.
class Residency {
 public:
  explicit Residency(int32_t num_blocks)
      : num_blocks_(num_blocks),
        in_front_(num_blocks),
        links_(2 * static_cast<size_t>(num_blocks) + 2) {}

  // Blocks that no request holds, and those of them that are cached.
  int32_t num_free() const { return in_front_ + num_stripped_ + num_cached_; }
  int32_t num_cached() const { return num_cached_; }
  // Empty blocks that are given away before any cached one.
  int32_t num_in_front() const { return in_front_; }
  // Those that are given away among cached ones.
  int32_t num_stripped() const { return num_stripped_; }

  // A request gave back `count` blocks without a hash, or took them.
  void add_empty(int32_t count) { in_front_ += count; }
  void take_empty(int32_t count) { in_front_ -= count; }

  // Somebody took `count` empty blocks, wherever they are in the order. Walks
  // it if not enough are in front.
  void take_nameless(int32_t count) {
    const int32_t front = count < in_front_ ? count : in_front_;
    in_front_ -= front;
    count -= front;
    for (int32_t id = links_[kEnds].next; count > 0;) {
      const int32_t next = links_[id].next;
      if (!is_block(id)) {
        unlink(id);
        give_place(id);
        --num_stripped_;
        --count;
      }
      id = next;
    }
  }

  // A request gave back a cached block: it is the last to go.
  void append(int32_t block) {
    link_before(kEnds, id_of(block));
    ++num_cached_;
  }

  // A request took a cached block.
  void remove(int32_t block) {
    unlink(id_of(block));
    --num_cached_;
  }

  // A cached block lost its hash, and keeps its place as an empty one.
  void strip(int32_t block) {
    exchange(id_of(block), take_place());
    --num_cached_;
    ++num_stripped_;
  }

  // What is cached in `from` is now in `to`. The number of blocks stands for a
  // place where it may wait.
  void move(int32_t from, int32_t to) { exchange(id_of(from), id_of(to)); }

  // Gives away `count` blocks, of which there must be as many. Calls
  // `visit(block)` in order for those that were not in front, with kNoBlock for
  // an empty one.
  template <typename Visit>
  void take(int32_t count, Visit visit) {
    const int32_t front = count < in_front_ ? count : in_front_;
    in_front_ -= front;
    count -= front;
    int32_t id = links_[kEnds].next;
    for (; count > 0; --count) {
      const int32_t next = links_[id].next;
      if (is_block(id)) {
        --num_cached_;
        visit(block_of(id));
      } else {
        --num_stripped_;
        give_place(id);
        visit(kNoBlock);
      }
      id = next;
    }
    links_[kEnds].next = id;
    links_[id].prev = kEnds;
  }

  // Takes back what take() gave away: `in_front` blocks and those visited.
  void put_back(int32_t in_front, const std::vector<int32_t>& blocks) {
    for (size_t i = blocks.size(); i-- > 0;) {
      const bool is_cached = blocks[i] != kNoBlock;
      link_before(links_[kEnds].next,
                  is_cached ? id_of(blocks[i]) : take_place());
      (is_cached ? num_cached_ : num_stripped_) += 1;
    }
    in_front_ += in_front;
  }

  // The cached block that goes right after `block`, or kNoBlock: of a chain
  // that was freed at once, the block that `block` builds on.
  int32_t after(int32_t block) const {
    const int32_t next = links_[id_of(block)].next;
    return is_block(next) ? block_of(next) : kNoBlock;
  }

  // Calls `visit(block)` in order, with kNoBlock for an empty block.
  template <typename Visit>
  void for_each(Visit visit) const {
    walk([&visit](int32_t block) {
      visit(block);
      return true;
    });
  }
  // The same while it returns true.
  template <typename Visit>
  void walk(Visit visit) const {
    for (int32_t i = 0; i < in_front_; ++i) {
      if (!visit(kNoBlock)) {
        return;
      }
    }
    walk_behind(block_of(kEnds), visit);
  }

  // The same behind a cached block, or behind the empty ones in front.
  template <typename Visit>
  void walk_behind(int32_t block, Visit visit) const {
    for (int32_t id = links_[id_of(block)].next;
         id != kEnds && visit(is_block(id) ? block_of(id) : kNoBlock);
         id = links_[id].next) {
    }
  }

  // The first broken invariant in words, or nothing.
  std::string check() const {
    int32_t cached = 0;
    int32_t stripped = 0;
    int32_t prev = kEnds;
    for (int32_t id = links_[kEnds].next; id != kEnds; id = links_[id].next) {
      if (links_[id].prev != prev || cached + stripped > num_free()) {
        return "the order of eviction is broken";
      }
      (is_block(id) ? cached : stripped) += 1;
      prev = id;
    }
    const bool is_right = links_[kEnds].prev == prev && cached == num_cached_ &&
                          stripped == num_stripped_ && in_front_ >= 0;
    return is_right ? "" : "the order of eviction miscounts its blocks";
  }

 private:
  // Ids: the ends of the list, a block plus one, then what waits, then places.
  static constexpr int32_t kEnds = 0;

  struct Link {
    int32_t prev;
    int32_t next;
  };

  static int32_t id_of(int32_t block) { return block + 1; }
  static int32_t block_of(int32_t id) { return id - 1; }
  bool is_block(int32_t id) const {
    return id != kEnds && id <= num_blocks_ + 1;
  }

  void link_before(int32_t next, int32_t id) {
    const int32_t prev = links_[next].prev;
    links_[id] = {prev, next};
    links_[prev].next = id;
    links_[next].prev = id;
  }

  void unlink(int32_t id) {
    const Link link = links_[id];
    links_[link.prev].next = link.next;
    links_[link.next].prev = link.prev;
  }

  // Puts `to` where `from` is.
  void exchange(int32_t from, int32_t to) {
    const Link link = links_[from];
    links_[to] = link;
    links_[link.prev].next = to;
    links_[link.next].prev = to;
  }

  int32_t take_place() {
    if (spare_ == kEnds) {
      return num_blocks_ + 1 + ++num_places_;
    }
    const int32_t id = spare_;
    spare_ = links_[id].next;
    return id;
  }
  void give_place(int32_t id) {
    links_[id].next = spare_;
    spare_ = id;
  }

  const int32_t num_blocks_;
  int32_t in_front_;
  int32_t num_stripped_ = 0;
  int32_t num_cached_ = 0;
  int32_t num_places_ = 0;  // Ever used,
  int32_t spare_ = kEnds;   // and the first that is not in use.
  BlockArray<Link> links_;
};

}  // namespace vllm::tagma
