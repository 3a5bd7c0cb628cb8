// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

// Which pieces of a prefix hit are put together when a request is admitted.

#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "kv_ranges.h"
#include "placement.h"

namespace vllm::tagma {

// A stretch of a hit as it lies in the pool.
struct Piece {
  Range range;
  bool moves;  // Whether it is copied to other blocks.
};

// Chooses by dynamic programming over the pieces. One that stays costs a range,
// unless it lies right behind the one before; one that moves costs its copies,
// and a range if the one before stays.
class Gather {
 public:
  explicit Gather(int32_t num_blocks) {
    costs_.reserve(num_blocks + 1);
    chosen_.reserve(num_blocks + 1);
  }

  // Sets `moves` of each piece, of which those from `first` on may move, so
  // that at most `copies` blocks are copied. `has_room`: the new blocks can go
  // on behind the last piece where it is.
  void choose(std::vector<Piece>* pieces, size_t first, bool has_room,
              int32_t copies) {
    if (copies <= 0 || first >= pieces->size()) {
      return;
    }
    // If too many would be copied, copies are made dearer: that keeps the
    // pieces that are joined by the fewest. The dearer they are, the fewer are
    // chosen.
    const auto copies_at = [&](int price) {
      return choose_at(kPrices[price], pieces, first, has_room);
    };
    if (copies_at(0) <= copies) {
      return;
    }
    int low = 1;
    int high = kNumPrices;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (copies_at(middle) <= copies) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    // Where the pieces are alike, a little dearer is from all of them to none:
    // as many as may be are taken of those that the next lower price chooses.
    copies_at(low - 1);
    chosen_.clear();
    for (Piece& piece : *pieces) {
      chosen_.push_back(piece.moves);
      piece.moves = false;
    }
    const double copied = low < kNumPrices ? copies_at(low) : 0;
    choose_more(pieces, first, copies - copied);
  }

  // Pieces looked at since the beginning, and how often one is for a choice at
  // most: at the least price, while the right one is found, and at it and the
  // one below.
  int64_t num_looks() const { return num_looks_; }
  static constexpr int64_t most_looks() {
    int64_t looks = 3;
    for (int prices = 1; prices < kNumPrices; prices *= 2) {
      ++looks;
    }
    return looks;
  }

 private:
  struct Costs {
    float stay;
    float move;
    bool stay_after_move;  // How the lesser costs came about.
    bool move_after_move;
  };

  // Of a copy, from what it is worth up to where hardly any is.
  static constexpr float kDearest = 3 * Placement::kRangeCost;
  static constexpr float kDearer = 1.1f;
  static constexpr int kNumPrices = [] {
    int count = 0;
    for (float price = Placement::kGatherCost; price < kDearest;
         price *= kDearer) {
      ++count;
    }
    return count;
  }();
  static constexpr std::array<float, kNumPrices> kPrices = [] {
    std::array<float, kNumPrices> prices{};
    float price = Placement::kGatherCost;
    for (float& next : prices) {
      next = price;
      price *= kDearer;
    }
    return prices;
  }();

  // Returns what the choice costs in copies, with what has to make room.
  double choose_at(float price, std::vector<Piece>* pieces, size_t first,
                   bool has_room) {
    constexpr float kNever = std::numeric_limits<float>::infinity();
    constexpr float kRange = Placement::kRangeCost;
    const size_t n = pieces->size();
    costs_.resize(n + 1);
    costs_[first] = {0, kNever, false, false};
    num_looks_ += static_cast<int64_t>(n - first);
    for (size_t i = first; i < n; ++i) {
      const Costs before = costs_[i];
      const Range range = (*pieces)[i].range;
      const bool joins = i > 0 && (*pieces)[i - 1].range.end() == range.start;
      const float staying = before.stay + (joins ? 0 : kRange);
      costs_[i + 1].stay_after_move = before.move + kRange < staying;
      costs_[i + 1].stay = std::min(staying, before.move + kRange);
      const float moving = before.stay + kRange;
      costs_[i + 1].move_after_move = before.move < moving;
      costs_[i + 1].move = std::min(moving, before.move) +
                           price * static_cast<float>(range.count);
    }
    bool moves = costs_[n].move < costs_[n].stay + (has_room ? 0 : kRange);
    double copies = 0;
    for (size_t i = n; i-- > first;) {
      Piece& piece = (*pieces)[i];
      piece.moves = moves;
      copies += moves ? Placement::kGatherCost * piece.range.count : 0;
      const Costs& costs = costs_[i + 1];
      moves = moves ? costs.move_after_move : costs.stay_after_move;
    }
    return copies;
  }

  // Lets more of the chosen pieces move, the first ones, for `copies` at most.
  void choose_more(std::vector<Piece>* pieces, size_t first, double copies) {
    for (size_t i = first; i < pieces->size(); ++i) {
      Piece& piece = (*pieces)[i];
      if (!chosen_[i] || piece.moves) {
        continue;
      }
      copies -= double{Placement::kGatherCost} * piece.range.count;
      if (copies < 0) {
        return;
      }
      piece.moves = true;
    }
  }

  std::vector<Costs> costs_;
  std::vector<uint8_t> chosen_;  // By a price that is too low.
  int64_t num_looks_ = 0;
};

}  // namespace vllm::tagma
