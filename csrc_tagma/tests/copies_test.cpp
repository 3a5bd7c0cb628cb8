// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

#include "copies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <ostream>
#include <random>
#include <vector>

namespace vllm::tagma {

void PrintTo(const Copy& copy, std::ostream* os) {
  *os << copy.from << "->" << copy.to;
}

namespace {

using List = std::vector<Copy>;

List taken(Copies* copies) {
  List list;
  const size_t ordered = copies->take(&list);
  EXPECT_EQ(ordered, list.size()) << "a cycle";
  return list;
}

TEST(Copies, MovesOfTheSameContentAreOneCopy) {
  Copies copies(8);
  copies.move(1, 2);
  copies.move(2, 3);
  EXPECT_EQ(copies.source_of(3), 1);
  EXPECT_EQ(taken(&copies), (List{{1, 3}}));
  EXPECT_EQ(taken(&copies), List{}) << "once";
}

TEST(Copies, WhatCameBackIsNotCopied) {
  Copies copies(8);
  copies.move(1, 2);
  copies.move(2, 1);
  EXPECT_EQ(taken(&copies), List{});
}

TEST(Copies, WhatWasEvictedIsNotCopiedButWhatCameThenIs) {
  Copies copies(8);
  copies.move(1, 2);
  copies.forget(2);
  copies.move(5, 2);
  EXPECT_EQ(taken(&copies), (List{{5, 2}}));
  copies.move(1, 2);
  copies.forget(2);
  EXPECT_EQ(taken(&copies), List{});
}

// A block that is a target is read before.
TEST(Copies, AChainIsCopiedFromItsEnd) {
  Copies copies(8);
  copies.move(3, 4);
  copies.move(2, 3);
  copies.move(1, 2);
  EXPECT_EQ(taken(&copies), (List{{3, 4}, {2, 3}, {1, 2}}));
}

TEST(Copies, BlocksThatChangePlacesAreACycleAtTheEnd) {
  Copies copies(9);  // The last one is for a content that waits.
  copies.move(1, 8);
  copies.move(2, 1);
  copies.move(8, 2);
  copies.move(5, 6);
  List list;
  EXPECT_EQ(copies.take(&list), 1u);
  EXPECT_EQ(list, (List{{5, 6}, {2, 1}, {1, 2}}));
}

// What memory comes to if all copies read before any writes, and if they are
// made in order.
TEST(CopyOrder, IsAsIfAllReadBeforeAnyWrites) {
  constexpr int32_t kBlocks = 24;
  std::mt19937 rng(1);
  CopyOrder order(kBlocks);
  int cycles = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::vector<int32_t> from(kBlocks);
    std::vector<int32_t> to(kBlocks);
    std::iota(from.begin(), from.end(), 0);
    std::iota(to.begin(), to.end(), 0);
    std::shuffle(from.begin(), from.end(), rng);
    std::shuffle(to.begin(), to.end(), rng);
    List copies;
    const size_t most = rng() % (kBlocks + 1);
    for (size_t i = 0; i < most; ++i) {
      if (from[i] != to[i]) {
        copies.push_back({from[i], to[i]});
      }
    }
    std::vector<int32_t> expected(kBlocks);
    std::iota(expected.begin(), expected.end(), 0);
    std::vector<int32_t> memory = expected;
    for (const Copy& copy : copies) {
      expected[copy.to] = copy.from;
    }
    const size_t count = copies.size();
    const size_t ordered = order.sort(&copies);
    ASSERT_EQ(copies.size(), count);
    for (size_t i = 0; i < ordered; ++i) {
      memory[copies[i].to] = memory[copies[i].from];
    }
    for (size_t i = ordered; i < count; ++i, ++cycles) {
      const int32_t first = copies[i].to;
      const int32_t saved = memory[first];
      for (; copies[i].from != first; ++i) {
        ASSERT_EQ(copies[i + 1].to, copies[i].from);
        memory[copies[i].to] = memory[copies[i].from];
      }
      memory[copies[i].to] = saved;
    }
    ASSERT_EQ(memory, expected);
  }
  EXPECT_GT(cycles, 1000);
}

}  // namespace
}  // namespace vllm::tagma
