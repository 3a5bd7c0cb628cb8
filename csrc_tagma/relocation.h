// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

// Moving cached blocks: out of the windows that requests take, and together.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "block_array.h"
#include "block_references.h"
#include "copies.h"
#include "fence.h"
#include "headroom.h"
#include "kv_ranges.h"
#include "placement.h"
#include "prefix_index.h"
#include "residency.h"
#include "runs.h"

namespace vllm::tagma {

// What is known of each block, as far as it moves with the content.
struct BlockStates {
  // One more than the pool has: a place for a content that waits.
  explicit BlockStates(int32_t num_blocks)
      : refs(num_blocks + 1),
        residency(num_blocks),
        fence(num_blocks + 1),
        copies(num_blocks + 1) {}

  // Moves the content of `from`, and whoever holds it, to `to`, which has none.
  void move(int32_t from, int32_t to) {
    const int32_t holders = refs.num_requests(from);
    refs.set({to, 1}, holders, true);
    refs.set({from, 1}, 0, false);
    if (holders == 0) {
      residency.move(from, to);
    }
    if (index != nullptr) {
      index->move(from, to);
    }
    fence.move(from, to);
    copies.move(from, to);
    if (records_moves) {
      moves.push_back({from, to});
    }
  }

  BlockReferences refs;
  Residency residency;
  Fence fence;
  Copies copies;
  PrefixIndex* index = nullptr;
  bool records_moves = false;
  std::vector<Copy> moves;  // In order, for who asked for them.
};

// The moves of one allocation. First the windows are taken: from then on what
// was cached in them is displaced and what is gathered lies nowhere. Then
// displaced blocks are given other places, and everything moves at once. Up to
// then all can be undone.
class Relocation {
 public:
  Relocation(int32_t num_blocks, BlockStates* states, Runs* runs,
             const Headroom& headroom)
      : spare_(num_blocks),
        states_(*states),
        runs_(*runs),
        headroom_(headroom),
        landings_(num_blocks),
        order_(num_blocks + 1) {
    taken_.reserve(num_blocks);
    placed_.reserve(num_blocks);
    lifted_.reserve(num_blocks);
    displaced_.reserve(num_blocks);
    moves_.reserve(num_blocks);
  }

  // Takes the blocks of a run for a request. Returns how many were cached.
  int32_t take(Range window) {
    const size_t before = displaced_.size();
    taken_.push_back(window);
    runs_.take(window, [this](Range cached) { split_chains(cached); });
    int32_t count = 0;
    for (size_t i = before; i < displaced_.size(); ++i) {
      count += displaced_[i].count;
    }
    return count;
  }

  // Takes blocks that only the request to be admitted holds from where they
  // are. They land() in blocks that it takes.
  void lift(Range range) {
    lifted_.push_back(range);
    runs_.add_empty(range);
  }
  void land(Range from, int32_t to) {
    if (from.start != to) {
      may_land_ &= num_open({to, from.count}) == from.count;
      add_move(from, to);
    }
  }

  // Gives displaced blocks other places. Returns whether there are enough that
  // may be copied to; num_unplaced() tells how many lack.
  bool place_displaced() {
    num_unplaced_ = 0;
    if (displaced_.empty()) {
      return may_land_;
    }
    std::sort(displaced_.begin(), displaced_.end(),
              [](const Range& a, const Range& b) {
                return a.count != b.count ? a.count > b.count
                                          : a.start < b.start;
              });
    for (const Range& piece : displaced_) {
      num_unplaced_ +=
          num_unplaced_ == 0 ? piece.count - place(piece) : piece.count;
    }
    return may_land_ && num_unplaced_ == 0;
  }
  int32_t num_unplaced() const { return num_unplaced_; }

  // How many blocks stay cached since they were moved out of a window.
  int32_t num_displaced() const {
    int32_t count = 0;
    for (const Range& piece : displaced_) {
      count += piece.count;
    }
    return count;
  }

  // Makes all moves. Returns how many.
  int32_t settle() {
    clear_landings();
    make_moves();
    const auto count = static_cast<int32_t>(moves_.size());
    forget();
    return count;
  }

  // Undoes everything since the last settle().
  void cancel() {
    for (const Range& range : placed_) {
      runs_.clear(range);
    }
    for (const Range& window : taken_) {
      runs_.add_empty(window);
    }
    for (const Range& piece : displaced_) {
      runs_.fill(piece);
    }
    for (const Range& range : lifted_) {
      runs_.take(range, [](Range) {});
    }
    clear_landings();
    forget();
  }

 private:
  void clear_landings() {
    for (const Copy& move : moves_) {
      landings_[move.from] = 0;
    }
  }

  void forget() {
    may_land_ = true;
    placed_.clear();
    taken_.clear();
    lifted_.clear();
    displaced_.clear();
    moves_.clear();
  }

  // A part of a chain lies in the order in which it was computed, and leaves in
  // the opposite one.
  void split_chains(Range cached) {
    Range piece{cached.start, 1};
    for (int32_t b = cached.start + 1; b < cached.end(); ++b, ++piece.count) {
      if (states_.residency.after(b) != b - 1) {
        displaced_.push_back(piece);
        piece = {b, 0};
      }
    }
    displaced_.push_back(piece);
  }

  // Where the content of `block` will be.
  int32_t landing_of(int32_t block) const {
    return landings_[block] != 0 ? landings_[block] - 1 : block;
  }

  void add_move(Range from, int32_t to) {
    for (int32_t i = 0; i < from.count; ++i) {
      moves_.push_back({from.start + i, to + i});
      landings_[from.start + i] = to + i + 1;
    }
  }

  // Returns how many blocks of the piece have got a place.
  int32_t place(Range piece) {
    const int32_t count = piece.count;
    while (piece.count > 0) {
      Range place = place_behind(piece);
      if (place.count == 0) {
        place = place_for(piece.count);
      }
      if (place.count == 0) {
        break;
      }
      runs_.fill(place);
      placed_.push_back(place);
      add_move({piece.start, place.count}, place.start);
      piece = {piece.start + place.count, piece.count - place.count};
    }
    return count - piece.count;
  }

  // How many blocks at the begin of `range` may be copied to.
  int32_t num_open(Range range) const {
    if (!states_.fence.watches_freed()) {
      return range.count;
    }
    int32_t count = 0;
    while (count < range.count &&
           states_.fence.may_be_copied_to(range.start + count)) {
      ++count;
    }
    return count;
  }

  // The first `count` blocks of `hole` that follow each other and may be copied
  // to, or the most that do.
  Range open_in(Range hole, int32_t count) const {
    Range most{0, 0};
    for (int32_t b = hole.start; b < hole.end() && most.count < count; ++b) {
      const Range open{b, num_open({b, std::min(count, hole.end() - b)})};
      if (open.count > most.count) {
        most = open;
      }
      b = open.end();
    }
    return most;
  }

  // Empty blocks right behind what the piece builds on, if there are any.
  Range place_behind(Range piece) const {
    const int32_t before = states_.residency.after(piece.start);
    const int32_t start = before == kNoBlock ? spare_ : landing_of(before) + 1;
    if (start >= spare_ || runs_.run_of(start).count == 0 ||
        runs_.is_cached(start)) {
      return {0, 0};
    }
    const int32_t room = runs_.hole_of(start).end() - start;
    return {start, num_open({start, std::min(piece.count, room)})};
  }

  // The shortest hole that holds `count` blocks, or else the longest; if there
  // is a choice, none that is the headroom of a request.
  Range place_for(int32_t count) const {
    if (states_.fence.watches_freed()) {
      return open_place_for(count);
    }
    const ExtentSet& holes = runs_.holes();
    Range fit{0, 0};
    ExtentSet::Cursor at = holes.bottom(count);
    for (int i = 0; i < Placement::kPlaces && !at.at_end();
         ++i, at = holes.above(at)) {
      const Range hole = holes.at(at);
      if (hole.count < count) {
        continue;
      }
      const int32_t run_start = runs_.run_of(hole.start).start;
      const int32_t from = run_start + headroom_.reserved_before(run_start);
      if (hole.start >= from) {
        return {hole.start, count};
      }
      const Range end{hole.end() - count, count};
      if (end.start >= from) {
        return end;
      }
      if (fit.count == 0) {
        fit = end;
      }
    }
    if (fit.count > 0) {
      return fit;
    }
    const Range hole = holes.longest();
    return {hole.start, std::min(hole.count, count)};
  }

  // The same among blocks that may be copied to, whosever headroom they are.
  Range open_place_for(int32_t count) const {
    const ExtentSet& holes = runs_.holes();
    Range most{0, 0};
    ExtentSet::Cursor at = holes.top();
    for (int i = 0; i < Placement::kPlaces && !at.at_end();
         ++i, at = holes.after(at)) {
      const Range open = open_in(holes.at(at), count);
      if (open.count > most.count) {
        most = open;
      }
      if (most.count == count) {
        break;
      }
    }
    return most;
  }

  void make_moves() {
    size_t ordered = moves_.size();
    if (!lifted_.empty()) {
      // Blocks may change places.
      ordered = order_.sort(&moves_);
    }
    for (size_t i = 0; i < ordered; ++i) {
      states_.move(moves_[i].from, moves_[i].to);
    }
    for (size_t i = ordered; i < moves_.size();) {
      const int32_t first = moves_[i].to;
      states_.move(first, spare_);
      for (; moves_[i].from != first; ++i) {
        states_.move(moves_[i].from, moves_[i].to);
      }
      states_.move(spare_, moves_[i].to);
      ++i;
    }
  }

  const int32_t spare_;
  BlockStates& states_;
  Runs& runs_;
  const Headroom& headroom_;
  std::vector<Range> taken_;
  std::vector<Range> placed_;
  std::vector<Range> lifted_;
  std::vector<Range> displaced_;
  std::vector<Copy> moves_;
  BlockArray<int32_t> landings_;  // Plus one, by where the content was.
  CopyOrder order_;
  int32_t num_unplaced_ = 0;
  bool may_land_ = true;
};

}  // namespace vllm::tagma
