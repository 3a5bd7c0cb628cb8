// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

// One allocation, from the choice of blocks until a request holds them.

#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "gather.h"
#include "headroom.h"
#include "kv_ranges.h"
#include "placement.h"
#include "relocation.h"
#include "runs.h"
#include "window_search.h"

namespace vllm::tagma {

// begin() lets the order of eviction give blocks away. Then as many are taken,
// elsewhere perhaps: what is cached there will have room in those. Up to then
// cancel() undoes all. finish() evicts and moves. What is needed for that is
// allocated with the pool: only reserve() can run out of memory.
class Allocation {
 public:
  Allocation(int32_t num_blocks, BlockStates* states, Runs* runs,
             const Headroom& headroom, WindowSearch* search)
      : states_(*states),
        runs_(*runs),
        search_(*search),
        relocation_(num_blocks, states, runs, headroom),
        gather_(num_blocks) {
    evicted_.reserve(num_blocks);
    pieces_.reserve(num_blocks);
    groups_.reserve(num_blocks);
    for (std::vector<Range>* ranges : {&fresh_, &targets_, &last_, &hit_}) {
      ranges->reserve(num_blocks);
    }
  }

  void begin(int32_t count) {
    evicted_.clear();
    hit_.clear();
    fresh_.clear();
    is_gathered_ = false;
    Range part{0, 0};  // Mostly a chain's blocks go one after the other.
    states_.residency.take(count, [&](int32_t block) {
      evicted_.push_back(block);
      if (block == kNoBlock) {
        return;
      }
      if (part.count > 0 && block == part.start - 1 &&
          runs_.is_cached(block) == runs_.is_cached(part.start)) {
        part = {block, part.count + 1};
      } else {
        make_empty(part);
        part = {block, 1};
      }
    });
    make_empty(part);
    in_front_ = count - static_cast<int32_t>(evicted_.size());
  }

  // After all is taken: finds places for what has to leave. Returns whether
  // there are enough; without moves there always are.
  bool place_displaced() { return relocation_.place_displaced(); }
  int32_t num_unplaced() const { return relocation_.num_unplaced(); }
  int32_t num_displaced() const { return relocation_.num_displaced(); }
  const Gather& gather() const { return gather_; }

  // Takes one range, or returns the longest that there is.
  Range take_one(int32_t count, int32_t copies) {
    Range range = search_.find({count, 0, 0, copies}).range;
    if (range.count < count) {
      range = longest(copies >= count, Placement::kNoBound);
    }
    if (range.count < count) {
      return range;
    }
    range.count = count;
    take(range, &fresh_);
    return range;
  }

  // Takes the blocks from `end` on as far as it goes, and windows.
  void take_behind(int32_t end, Wish wish) {
    const int32_t room = room_at(end, wish.count, wish.copies);
    if (room > 0) {
      wish.copies -= take({end, room}, &fresh_);
      wish.count -= room;
    }
    take_windows(wish);
  }

  void take_windows(const Wish& wish) { take_windows(wish, &fresh_); }

  // The same with as few ranges as there can be.
  void take_fewest(const RangeList& request, int32_t count, int32_t copies) {
    if (!request.empty()) {
      const int32_t end = request.ranges().back().end();
      const int32_t room = room_at(end, count, copies);
      if (room > 0) {
        take({end, room}, &fresh_);
        count -= room;
      }
    }
    while (count > 0) {
      Range range = longest(copies >= count, ExtentSet::kFew);
      range.count = std::min(range.count, count);
      take(range, &fresh_);
      count -= range.count;
    }
  }

  // Takes empty blocks that may not be copied to yet, as many as there are or
  // `count`. Returns how many.
  int32_t take_closed(int32_t count) {
    int32_t left = count;
    states_.fence.for_each_freed([this, &left](Range freed) {
      for (int32_t b = freed.start; b < freed.end() && left > 0; ++b) {
        int32_t end = b;
        while (end < freed.end() && end - b < left && is_closed(end)) {
          ++end;
        }
        if (end > b) {
          take({b, end - b}, &fresh_);
          left -= end - b;
          b = end;
        }
      }
    });
    return count - left;
  }

  // Takes blocks for a request that holds a hit and nothing else. Pieces of it
  // that only this request holds are moved together, and with the new blocks,
  // if that is worth it and takes `most_gathered` copies or so at most.
  void admit(const RangeList& request, const Wish& wish, int32_t most_gathered);

  // How many ranges the request will have.
  size_t num_ranges(const RangeList& request) const {
    const RangeVector& ranges = request.ranges();
    size_t count = is_gathered_ ? hit_.size() : ranges.size();
    int32_t end = kNoBlock;
    if (count > 0) {
      end = is_gathered_ ? hit_.back().end() : ranges.back().end();
    }
    for (const Range& range : fresh_) {
      count += range.start != end;
      end = range.end();
    }
    return count;
  }

  // Makes sure that hand_over() allocates no memory.
  void reserve(RangeList* request, RangeList* appended) const {
    request->reserve(hit_.size() + fresh_.size());
    if (appended != nullptr) {
      appended->reserve(fresh_.size());
    }
  }

  // Gives the blocks to `request`, and the new ones to `appended`, if not null.
  void hand_over(RangeList* request, RangeList* appended) const {
    if (is_gathered_) {
      request->rebuild(hit_);
    }
    for (const Range& range : fresh_) {
      request->append(range);
      if (appended != nullptr) {
        appended->append(range);
      }
    }
  }

  // Evicts, appending to `evicted` what was, and moves. Returns how many blocks
  // were moved.
  int32_t finish(std::vector<int32_t>* evicted) {
    for (const int32_t block : evicted_) {
      if (block == kNoBlock) {
        continue;
      }
      states_.refs.uncache(block);
      states_.copies.forget(block);
      evicted->push_back(block);
      if (states_.index != nullptr) {
        states_.index->evict(block);
      }
    }
    const int32_t moves = relocation_.settle();
    for (const Range& range : fresh_) {
      states_.refs.set(range, 1, false);
    }
    return moves;
  }

  void cancel() {
    relocation_.cancel();
    for (const int32_t block : evicted_) {
      if (block == kNoBlock) {
        continue;
      }
      if (states_.fence.may_be_copied(block)) {
        runs_.fill({block, 1});
      } else {
        runs_.take({block, 1}, [](Range) {});
      }
    }
    states_.residency.put_back(in_front_, evicted_);
  }

 private:
  // Pieces of the hit that move together, and where to.
  struct Group {
    size_t first;
    size_t end;
    int32_t count;
    size_t targets;      // Index of the first,
    size_t num_targets;  // in targets_.
  };

  void make_empty(Range range) {
    if (range.count > 0) {
      runs_.make_empty(range);
    }
  }

  // How many of `count` blocks can be had from `end` on, where held ones end,
  // with so many copies at most.
  int32_t room_at(int32_t end, int32_t count, int32_t copies) const {
    const int32_t run = std::min(runs_.run_from(end), count);
    return copies >= run ? run : std::min(runs_.hole_from(end), count);
  }

  Range longest(bool moves, int most_looked_at) const {
    return (moves ? runs_.runs() : runs_.holes()).longest(most_looked_at);
  }

  // Returns how many blocks have to be moved for it.
  int32_t take(Range range, std::vector<Range>* out) {
    out->push_back(range);
    return relocation_.take(range);
  }

  int32_t take_windows(Wish wish, std::vector<Range>* out) {
    const int32_t copies = wish.copies;
    for (int i = 0; wish.count > 0; ++i) {
      Range range{0, 0};
      if (i < Placement::kSearches) {
        range = search_.find(wish).range;
      }
      if (range.count == 0) {
        range = longest(wish.copies >= wish.count, ExtentSet::kFew);
      }
      range.count = std::min(range.count, wish.count);
      wish.copies -= take(range, out);
      wish.count -= range.count;
    }
    return copies - wish.copies;
  }

  void find_pieces(const RangeList& request);
  void find_groups();
  int32_t take_for(Group* group, int32_t copies);
  void take_last(Group* last, Wish wish);
  void land(const Group& group);
  void note_hit();
  void add_to_hit(Range range) {
    if (!hit_.empty() && hit_.back().end() == range.start) {
      hit_.back().count += range.count;
    } else {
      hit_.push_back(range);
    }
  }

  // Whether a block is empty and may not be copied to.
  bool is_closed(int32_t block) const {
    return !states_.fence.may_be_copied_to(block) && !runs_.is_cached(block) &&
           runs_.run_of(block).count > 0;
  }

  // Whether the request to be admitted may move a block of its hit.
  bool may_move(int32_t block) const {
    return states_.refs.num_requests(block) == 1 &&
           states_.refs.is_cached(block) && states_.fence.may_be_copied(block);
  }

  BlockStates& states_;
  Runs& runs_;
  WindowSearch& search_;
  Relocation relocation_;
  Gather gather_;

  // What begin() was given: blocks in front, and those behind them.
  int32_t in_front_ = 0;
  std::vector<int32_t> evicted_;
  std::vector<Range> fresh_;  // What was taken for new blocks.

  // Of admit().
  std::vector<Piece> pieces_;
  size_t first_that_moves_ = 0;  // Of the pieces.
  std::vector<Group> groups_;
  std::vector<Range> targets_;
  std::vector<Range> last_;
  std::vector<Range> hit_;  // Where the hit will lie, if it is gathered.
  bool is_gathered_ = false;
};

inline void Allocation::admit(const RangeList& request, const Wish& wish,
                              int32_t most_gathered) {
  find_pieces(request);
  const int32_t end = request.ranges().back().end();
  const bool has_room = runs_.run_from(end) >= wish.count + wish.later;
  gather_.choose(&pieces_, first_that_moves_, has_room, most_gathered);
  find_groups();
  Wish left = wish;
  for (const Group& group : groups_) {
    for (size_t i = group.first; i < group.end; ++i) {
      relocation_.lift(pieces_[i].range);
    }
    left.copies -= group.count;
  }
  targets_.clear();
  Group nothing{pieces_.size(), pieces_.size(), 0, 0, 0};
  Group* last = &nothing;
  for (Group& group : groups_) {
    if (group.end == pieces_.size()) {
      last = &group;
    } else {
      left.copies -= take_for(&group, std::max(left.copies, 0));
    }
  }
  left.copies = std::max(left.copies, 0);
  take_last(last, left);
  for (const Group& group : groups_) {
    land(group);
  }
  note_hit();
}

// Those behind the last block that another request holds, too, may move.
inline void Allocation::find_pieces(const RangeList& request) {
  pieces_.clear();
  for (const Range& range : request.ranges()) {
    pieces_.push_back({range, false});
  }
  first_that_moves_ = pieces_.size();
  for (size_t i = pieces_.size();
       i-- > 0 && pieces_.size() - i <= Placement::kPieces;) {
    const Range range = pieces_[i].range;
    int32_t own = 0;
    while (own < range.count && may_move(range.end() - 1 - own)) {
      ++own;
    }
    if (own == range.count) {
      first_that_moves_ = i;
      continue;
    }
    if (own > 0) {
      pieces_[i].range.count -= own;
      pieces_.insert(pieces_.begin() + static_cast<int64_t>(i) + 1,
                     {{range.end() - own, own}, false});
      first_that_moves_ = i + 1;
    }
    break;
  }
}

// Pieces that move and follow each other are one group. Each needs a search:
// only the longest may move, and the last.
inline void Allocation::find_groups() {
  groups_.clear();
  for (size_t i = first_that_moves_; i < pieces_.size(); ++i) {
    if (!pieces_[i].moves) {
      continue;
    }
    if (groups_.empty() || groups_.back().end != i) {
      groups_.push_back({i, i, 0, 0, 0});
    }
    groups_.back().end = i + 1;
    groups_.back().count += pieces_[i].range.count;
  }
  std::sort(groups_.begin(), groups_.end(),
            [this](const Group& a, const Group& b) {
              const bool a_is_last = a.end == pieces_.size();
              const bool b_is_last = b.end == pieces_.size();
              if (a_is_last != b_is_last) {
                return a_is_last;
              }
              return a.count != b.count ? a.count > b.count : a.first < b.first;
            });
  while (groups_.size() > Placement::kGroups) {
    for (size_t i = groups_.back().first; i < groups_.back().end; ++i) {
      pieces_[i].moves = false;
    }
    groups_.pop_back();
  }
}

// Takes blocks for a group that is not the last: behind the piece before it, in
// front of the piece behind it, or anywhere. Returns the moves for that.
inline int32_t Allocation::take_for(Group* group, int32_t copies) {
  Wish wish{group->count};
  wish.copies = copies;
  float least = std::numeric_limits<float>::infinity();
  Range best{0, 0};
  const auto consider = [&](int32_t start, bool is_own) {
    const Range range{start, group->count};
    if (const float cost = search_.cost_of(range, wish, is_own); cost < least) {
      least = cost;
      best = range;
    }
  };
  if (group->first > 0) {
    consider(pieces_[group->first - 1].range.end(), true);
  }
  consider(pieces_[group->end].range.start - group->count, false);
  if (least > Placement::kRangeCost) {
    const Window window = search_.find(wish);
    if (window.range.count == group->count &&
        window.cost + Placement::kRangeCost < least) {
      best = window.range;
    }
  }
  group->targets = targets_.size();
  const int32_t moves =
      best.count > 0 ? take(best, &targets_) : take_windows(wish, &targets_);
  group->num_targets = targets_.size() - group->targets;
  return moves;
}

// Takes blocks for the last group and the new blocks behind it.
inline void Allocation::take_last(Group* last, Wish wish) {
  wish.count += last->count;
  const int32_t length = wish.count + wish.later;
  float cost_in_place = std::numeric_limits<float>::infinity();
  int32_t end = kNoBlock;
  if (last->first > 0) {
    end = pieces_[last->first - 1].range.end();
    cost_in_place = search_.cost_of({end, length}, wish, true);
  }
  last_.clear();
  Window window;
  if (cost_in_place > Placement::kRangeCost) {
    window = search_.find(wish);
  }
  if (window.range.count == length &&
      window.cost + Placement::kRangeCost < cost_in_place) {
    take({window.range.start, wish.count}, &last_);
  } else if (cost_in_place < std::numeric_limits<float>::infinity()) {
    take({end, wish.count}, &last_);
  } else {
    const int32_t room =
        end == kNoBlock ? 0 : room_at(end, wish.count, wish.copies);
    if (room > 0 && room >= std::min(Placement::kLeastPart, wish.count)) {
      wish.copies -= take({end, room}, &last_);
      wish.count -= room;
    }
    take_windows(wish, &last_);
  }
  last->targets = targets_.size();
  int32_t left = last->count;
  for (const Range& range : last_) {
    const int32_t count = std::min(left, range.count);
    if (count > 0) {
      targets_.push_back({range.start, count});
    }
    if (count < range.count) {
      fresh_.push_back({range.start + count, range.count - count});
    }
    left -= count;
  }
  last->num_targets = targets_.size() - last->targets;
}

inline void Allocation::land(const Group& group) {
  const Range* target = &targets_[group.targets];
  int32_t used = 0;  // Of the target.
  for (size_t i = group.first; i < group.end; ++i) {
    Range from = pieces_[i].range;
    while (from.count > 0) {
      const int32_t count = std::min(from.count, target->count - used);
      relocation_.land({from.start, count}, target->start + used);
      from = {from.start + count, from.count - count};
      used += count;
      if (used == target->count) {
        ++target;
        used = 0;
      }
    }
  }
}

inline void Allocation::note_hit() {
  is_gathered_ = !groups_.empty();
  if (!is_gathered_) {
    return;
  }
  std::sort(groups_.begin(), groups_.end(),
            [](const Group& a, const Group& b) { return a.first < b.first; });
  auto group = groups_.begin();
  for (size_t i = 0; i < pieces_.size();) {
    if (group == groups_.end() || i < group->first) {
      add_to_hit(pieces_[i++].range);
      continue;
    }
    for (size_t t = 0; t < group->num_targets; ++t) {
      add_to_hit(targets_[group->targets + t]);
    }
    i = group++->end;
  }
}

}  // namespace vllm::tagma
