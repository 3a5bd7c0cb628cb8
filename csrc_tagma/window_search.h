// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

// The search for the window that a request's new blocks go to.

#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "fence.h"
#include "headroom.h"
#include "kv_ranges.h"
#include "placement.h"
#include "runs.h"

namespace vllm::tagma {

// What a window is wanted for.
struct Wish {
  int32_t count;                         // Blocks to be taken now,
  int32_t later = 0;                     // and right behind them.
  int32_t own = 0;                       // Headroom behind these.
  int32_t copies = Placement::kNoBound;  // At most, now.
};

struct Window {
  Range range{0, 0};  // With the blocks for later, if it has room for them.
  float cost = 0;     // Without the range itself.
};

// Looks at windows at the ends of runs and beside holes, which are as good as
// any: between them the copies are the same wherever a window begins. Of runs
// and of holes the longest are looked at, Placement::kRuns and kHoles of them,
// up to those that cannot have a better window than the best so far. So a
// search looks at kMostLooks windows, runs and holes at most; the cached blocks
// of those that may win are counted, see CountedBlockSet.
class WindowSearch {
 public:
  // A hole with its run and windows beside it, or a run with windows in it.
  static constexpr int64_t kMostLooks =
      8 * Placement::kHoles + 5 * Placement::kRuns;

  WindowSearch(const Runs& runs, const Headroom& headroom, const Fence& fence)
      : runs_(runs), headroom_(headroom), fence_(fence) {}

  // The best window for all of the wish, or the best for a part of it: then its
  // range is shorter. Length 0 if there is none with so few copies.
  Window find(const Wish& wish) {
    ++num_searches_;
    best_ = Window();
    score_ = std::numeric_limits<float>::infinity();
    const bool nothing_is_cached =
        runs_.num_cached() == 0 && wish.copies >= wish.count;
    if (!fence_.has_hashed()) {
      if (!look_at_shortest_holes(wish)) {
        look_at_holes(wish);
      }
    } else if (wish.copies <= 0 || nothing_is_cached) {
      look_at_holes(wish);
    } else {
      look_at_runs(wish, look_around_holes(wish));
    }
    return best_;
  }

  // The cost of a window that is given, or infinity if it cannot be had. With
  // `is_own`, it goes on behind blocks of the same request.
  float cost_of(Range range, const Wish& wish, bool is_own) const {
    const float never = std::numeric_limits<float>::infinity();
    if (range.start < 0) {
      return never;
    }
    const Range run = runs_.run_of(range.start);
    if (range.end() > run.end()) {
      return never;
    }
    const int32_t reserved = is_own ? 0 : headroom_.reserved_before(run.start);
    return cost_in(run, range, wish, reserved);
  }

  // Windows, runs and holes looked at, and searches, since the beginning.
  int64_t num_looks() const { return num_looks_; }
  int64_t num_searches() const { return num_searches_; }

 private:
  static int32_t length_of(const Wish& wish) { return wish.count + wish.later; }

  // Without a prefix cache, holes are runs. Chooses the shortest with all the
  // room that is wanted, or a vast one, in which requests lie far apart.
  // Returns whether there is one.
  bool look_at_shortest_holes(const Wish& wish) {
    const ExtentSet& holes = runs_.holes();
    if (take_share(holes.longest(1), Placement::kVast, wish)) {
      return true;
    }
    ExtentSet::Cursor at = holes.bottom(length_of(wish) + wish.own);
    for (int i = 1; i <= Placement::kShortest && !at.at_end(); ++i) {
      if (take_share(holes.at(at), 1, wish)) {
        return true;
      }
      at = i % Placement::kAlike == 0 ? holes.above_class(at) : holes.above(at);
    }
    return false;
  }

  // Chooses a window in a hole if that has the room of both requests `times`
  // times. Returns whether it has.
  bool take_share(Range hole, int32_t times, const Wish& wish) {
    ++num_looks_;
    const int32_t length = length_of(wish);
    const int32_t reserved =
        Placement::later_headroom(headroom_.reserved_before(hole.start));
    if (hole.count / times < int64_t{length} + wish.own + reserved) {
      return false;
    }
    int32_t before =
        Placement::share_in_front(hole.count - length, reserved, wish.own);
    if (times < Placement::kVast) {
      // What is left stays whole, for a prompt as long as what came before.
      before = std::min(before, Placement::kPlenty * reserved);
    }
    consider(hole, {hole.start + before, length}, reserved, wish);
    return true;
  }

  // Whatever lies between holes is out of reach, or there is nothing.
  void look_at_holes(const Wish& wish) {
    ExtentSet::Cursor at = runs_.holes().top();
    for (int i = 0; i < Placement::kHoles && !at.at_end();
         ++i, at = runs_.holes().after(at)) {
      if (is_good(wish, Placement::kCheap) || !may_win(at, wish, 0)) {
        return;
      }
      ++num_looks_;
      const Range hole = runs_.holes().at(at);
      const bool begins_run = runs_.run_from(hole.start) > 0;
      look_at_stretch(
          hole, begins_run ? headroom_.reserved_before(hole.start) : 0, wish);
    }
  }

  // Returns whether these were all holes.
  bool look_around_holes(const Wish& wish) {
    const int32_t length = length_of(wish);
    Range run{0, 0};
    int32_t reserved = 0;
    ExtentSet::Cursor at = runs_.holes().top();
    for (int i = 0; i < Placement::kHoles && !at.at_end();
         ++i, at = runs_.holes().after(at)) {
      if (is_good(wish, Placement::kCheap)) {
        return false;
      }
      ++num_looks_;
      const Range hole = runs_.holes().at(at);
      if (hole.start < run.start || hole.start >= run.end()) {
        run = runs_.run_of(hole.start);
        reserved = headroom_.reserved_before(run.start);
        look_at_stretch(run, reserved, wish);
      }
      if (run.count >= length && hole.count < run.count) {
        consider(run, {hole.start, length}, reserved, wish);
        consider(run, {hole.end() - length, length}, reserved, wish);
      }
      if (wish.copies < wish.count) {
        // As much as may be copied for.
        const int32_t most =
            std::min(run.end() - hole.start, hole.count + wish.copies);
        consider(run, {hole.start, std::min(most, wish.count)}, reserved, wish);
      }
    }
    return at.at_end();
  }

  // Those without a hole, in which all has to be copied: the first one with
  // room for all is as good as any. What has a hole may be passed over if such
  // runs have been looked at.
  void look_at_runs(const Wish& wish, bool holes_are_done) {
    const int32_t length = length_of(wish);
    const int32_t copies = holes_are_done ? length : 0;
    ExtentSet::Cursor at = runs_.runs().top();
    for (int i = 0; i < Placement::kRuns && !at.at_end();
         ++i, at = runs_.runs().after(at)) {
      if (is_good(wish, static_cast<float>(length) + Placement::kCheap) ||
          !may_win(at, wish, copies)) {
        return;
      }
      ++num_looks_;
      const Range run = runs_.runs().at(at);
      look_at_stretch(run, headroom_.reserved_before(run.start), wish);
    }
  }

  // Whether the best window has room for all and costs less than `most`.
  bool is_good(const Wish& wish, float most) const {
    return best_.range.count == length_of(wish) && best_.cost < most;
  }

  // Whether a run or hole at `at`, or behind it in the walk, may have a better
  // window than the best, if a block of that takes `copies` / length copies.
  bool may_win(ExtentSet::Cursor at, const Wish& wish, int32_t copies) const {
    const int32_t length = length_of(wish);
    const int32_t longest = ExtentSet::max_length(at.size_class);
    const int32_t count = std::min(longest, length);
    const float cost = Placement::least_room_cost(longest - count, wish.own);
    return Placement::score(static_cast<float>(std::min(copies, count)) + cost,
                            count) < score_;
  }

  // Windows at the ends of a run or hole, and so that its slack is shared.
  void look_at_stretch(Range run, int32_t reserved, const Wish& wish) {
    const int32_t length = length_of(wish);
    const int32_t slack = run.count - length;
    if (slack < 0) {
      consider(run, run, reserved, wish);
      for (const int32_t before : {reserved, reserved / 2}) {
        if (before > 0 && before < run.count) {
          const Range rest{run.start + before, run.count - before};
          consider(run, rest, reserved, wish);
        }
      }
      return;
    }
    if (Placement::score(Placement::least_room_cost(slack, reserved) +
                             Placement::least_room_cost(slack, wish.own),
                         length) >= score_) {
      return;
    }
    // Where plenty is empty, the requests on both sides share it.
    const int64_t wanted = int64_t{reserved} + wish.own;
    if (wanted > 0 && slack >= Placement::kPlenty * wanted &&
        runs_.hole_from(run.start) == run.count) {
      const auto before = static_cast<int32_t>(slack * reserved / wanted);
      consider(run, {run.start + before, length}, reserved, wish);
      return;
    }
    const int32_t before = std::min(reserved, slack);
    const int32_t behind = slack - std::min(wish.own, slack);
    consider(run, {run.start, length}, reserved, wish);
    if (slack > 0) {
      consider(run, {run.start + slack, length}, reserved, wish);
    }
    if (before > 0 && before < slack) {
      consider(run, {run.start + before, length}, reserved, wish);
    }
    if (behind > 0 && behind < slack && behind != before) {
      consider(run, {run.start + behind, length}, reserved, wish);
    }
  }

  void consider(Range run, Range range, int32_t reserved, const Wish& wish) {
    ++num_looks_;
    if (range.start < run.start || range.end() > run.end()) {
      return;
    }
    const float room = Placement::room_cost(range.start - run.start, reserved) +
                       Placement::room_cost(run.end() - range.end(), wish.own);
    if (Placement::score(room, range.count) >= score_) {
      return;
    }
    const float cost = cost_in(run, range, wish, reserved);
    const float score = Placement::score(cost, range.count);
    if (score < score_) {
      score_ = score;
      best_ = {range, cost};
    }
  }

  float cost_in(Range run, Range range, const Wish& wish,
                int32_t reserved) const {
    const Range now{range.start, std::min(range.count, wish.count)};
    const int32_t copies = runs_.num_cached(now);
    if (copies > wish.copies) {
      return std::numeric_limits<float>::infinity();
    }
    const int32_t later =
        runs_.num_cached({now.end(), range.end() - now.end()});
    return static_cast<float>(copies) + static_cast<float>(later) +
           Placement::room_cost(range.start - run.start, reserved) +
           Placement::room_cost(run.end() - range.end(), wish.own);
  }

  const Runs& runs_;
  const Headroom& headroom_;
  const Fence& fence_;
  Window best_;
  float score_ = 0;
  int64_t num_looks_ = 0;
  int64_t num_searches_ = 0;
};

}  // namespace vllm::tagma
