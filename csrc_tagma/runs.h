// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

// Where the blocks lie that requests can get.

#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "block_set.h"
#include "counted_block_set.h"
#include "extent_set.h"
#include "kv_ranges.h"

namespace vllm::tagma {

// Between what is held lie runs. A block of a run is empty or cached; maximal
// stretches of empty blocks are holes. Every operation is O(1) a range and hole
// but for the 64-ary search for a run's or hole's first block.
class Runs {
 public:
  explicit Runs(int32_t num_blocks)
      : runs_(num_blocks),
        holes_(num_blocks),
        starts_(num_blocks),
        cached_(num_blocks) {}

  const ExtentSet& runs() const { return runs_; }
  const ExtentSet& holes() const { return holes_; }
  bool is_cached(int32_t block) const { return cached_.contains(block); }
  int32_t num_cached() const { return cached_.size(); }
  int32_t num_cached(Range range) const {
    return cached_.size() == 0 ? 0 : cached_.count(range);
  }

  // How many blocks from `block` on are in its run or hole, which must begin
  // there; 0 if none does.
  int32_t run_from(int32_t block) const { return runs_.length_from(block); }
  int32_t hole_from(int32_t block) const { return holes_.length_from(block); }

  // The run of a block, of length 0 if it is in none.
  Range run_of(int32_t block) const {
    const int32_t start = starts_.at_or_before(block);
    if (start != kNoBlock) {
      const Range run{start, runs_.length_from(start)};
      if (run.end() > block) {
        return run;
      }
    }
    return {block, 0};
  }

  // The hole of an empty block.
  Range hole_of(int32_t block) const {
    return hole_in(starts_.at_or_before(block), block);
  }

  // Held blocks become empty, or cached.
  void add_empty(Range range) {
    join(range);
    holes_.merge(range);
  }
  void add_cached(Range range) {
    join(range);
    cached_.insert(range);
  }

  // Cached blocks become empty, and empty ones cached.
  void clear(Range range) {
    cached_.erase(range);
    holes_.merge(range);
  }
  void fill(Range range) {
    holes_.cut(hole_of(range.start), range);
    cached_.insert(range);
  }

  // Cached blocks become empty, whether or not they are in a run.
  void make_empty(Range range) {
    if (cached_.contains(range.start)) {
      clear(range);
    } else {
      add_empty(range);
    }
  }

  // Cached blocks of a run become held.
  void hold_cached(Range range) {
    split(run_of(range.start), range);
    cached_.erase(range);
  }

  // Blocks of a run become held. Calls `visit(stretch)` for the cached ones.
  template <typename Visit>
  void take(Range range, Visit visit) {
    const Range run = run_of(range.start);
    split(run, range);
    if (cached_.size() == 0) {
      holes_.cut(run, range);
      return;
    }
    int32_t run_start = run.start;
    for (int32_t b = range.start; b < range.end();) {
      const int32_t cached = std::min(cached_.at_or_after(b), range.end());
      if (cached > b) {
        holes_.cut(hole_in(run_start, b), {b, cached - b});
      }
      const int32_t end = cached_.first_missing(cached, range.end());
      if (end > cached) {
        cached_.erase({cached, end - cached});
        visit(Range{cached, end - cached});
      }
      b = end;
      run_start = end;  // The next hole begins there.
    }
  }

  // The same for the first `count` blocks of a run that begin a hole.
  void take_front(int32_t start, int32_t count) {
    holes_.cut_front({start, holes_.length_from(start)}, count);
    split_front({start, runs_.length_from(start)}, count);
  }

  // The first broken invariant in words, or nothing.
  std::string check(int32_t num_blocks) const;

 private:
  Range hole_in(int32_t run_start, int32_t block) const {
    const int32_t start = std::max(cached_.at_or_before(block) + 1, run_start);
    return {start, holes_.length_from(start)};
  }

  void join(Range range) {
    const bool is_start = runs_.length_to(range.start) == 0;
    const bool is_end = runs_.length_from(range.end()) == 0;
    if (is_start && !is_end) {
      starts_.replace(range.end(), range.start);
    } else if (is_start) {
      starts_.insert(range.start);
    } else if (!is_end) {
      starts_.erase(range.end());
    }
    runs_.merge(range);
  }

  void split_front(Range run, int32_t count) {
    runs_.cut_front(run, count);
    if (count < run.count) {
      starts_.replace(run.start, run.start + count);
    } else {
      starts_.erase(run.start);
    }
  }

  void split(Range run, Range range) {
    if (run.start == range.start) {
      split_front(run, range.count);
      return;
    }
    runs_.cut(run, range);
    if (range.end() < run.end()) {
      starts_.insert(range.end());
    }
  }

  ExtentSet runs_;
  ExtentSet holes_;
  BlockSet starts_;         // First blocks of runs.
  CountedBlockSet cached_;  // Cached blocks of runs.
};

inline std::string Runs::check(int32_t num_blocks) const {
  for (const std::string& broken :
       {runs_.check(num_blocks), holes_.check(num_blocks)}) {
    if (!broken.empty()) {
      return broken;
    }
  }
  std::string broken;
  int32_t starts = 0;
  int32_t cached = 0;
  int32_t empty = 0;
  runs_.for_each([&](Range run) {
    starts += starts_.contains(run.start);
    for (int32_t b = run.start; b < run.end();) {
      if (cached_.contains(b)) {
        ++cached;
        ++b;
        continue;
      }
      const int32_t hole = holes_.length_from(b);
      if (hole == 0 || b + hole > run.end() || hole_of(b).count != hole) {
        broken = "block " + std::to_string(b) + " of a run is in no hole";
        return;
      }
      empty += hole;
      b += hole;
    }
  });
  int32_t num_starts = 0;
  for (int32_t b = starts_.at_or_after(0); b < num_blocks;
       b = starts_.at_or_after(b + 1)) {
    ++num_starts;
  }
  if (broken.empty() &&
      (starts != runs_.num_extents() || starts != num_starts ||
       cached != cached_.size() || empty != holes_.num_blocks())) {
    return "a run's start, cached block or hole is in no run";
  }
  return broken;
}

}  // namespace vllm::tagma
