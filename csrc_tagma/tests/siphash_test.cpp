// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

#include "siphash.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace vllm::tagma {
namespace {

// Published values: the hash of the bytes 0, 1, 2, ... under the secret 0, 1,
// ..., 15. SipHash-2-4 is what its authors give values of, the one of 15 bytes
// in the paper's appendix A, all in `vectors_sip64` of their reference
// implementation (github.com/veorq/SipHash, vectors.h). Those of SipHash-1-3
// are of `test_siphash_1_3` of Rust's standard library
// (library/coretests/tests/hash/sip.rs).
struct Vector {
  int size;
  uint64_t sip_2_4;
  uint64_t sip_1_3;
};

constexpr Vector kVectors[] = {
    {0, 0x726fdb47dd0e0e31, 0xabac0158050fc4dc},
    {1, 0x74f839c593dc67fd, 0xc9f49bf37d57ca93},
    {7, 0xab0200f58b01d137, 0xd3927d989bb11140},
    {8, 0x93f5f5799a932462, 0x369095118d299a8e},
    {15, 0xa129ca6149be45e5, 0xd320d86d2a519956},
    {16, 0x3f2acc7f57c29bdb, 0xcc4fdd1a7d908b66},
    {31, 0x32d892fad841c342, 0x2370dd1f8c21d1bc},
    {32, 0x7127512f72f27cce, 0x81157b6c16a7b60d},
    {36, 0x314dffbe0815a3b4, 0x2cf508d3ada26206},
    {63, 0x958a324ceb064572, 0x9d199062b7bbb3a8},
};

TEST(SipHash, HasThePublishedValues) {
  const HashSecret secret{0x0706050403020100, 0x0f0e0d0c0b0a0908};
  for (const auto& [size, sip_2_4, sip_1_3] : kVectors) {
    std::string data;
    for (int i = 0; i < size; ++i) {
      data += static_cast<char>(i);
    }
    EXPECT_EQ((sip_hash<2, 4>(data, secret)), sip_2_4) << size << " bytes";
    EXPECT_EQ(sip_hash_13(data, secret), sip_1_3) << size << " bytes";
  }
}

TEST(SipHash, EveryByteOfKeyAndSecretCounts) {
  const HashSecret secret{1, 2};
  const std::string data(36, 'a');
  const uint64_t hash = sip_hash_13(data, secret);
  for (size_t i = 0; i < data.size(); ++i) {
    std::string other = data;
    other[i] = 'b';
    EXPECT_NE(sip_hash_13(other, secret), hash);
  }
  for (int bit = 0; bit < 64; ++bit) {
    const uint64_t flip = uint64_t{1} << bit;
    EXPECT_NE(sip_hash_13(data, {1 ^ flip, 2}), hash);
    EXPECT_NE(sip_hash_13(data, {1, 2 ^ flip}), hash);
  }
}

TEST(SecretOfSeed, IsNoneForZeroAndElseOfTheSeed) {
  EXPECT_EQ(secret_of_seed(0), (HashSecret{0, 0}));
  EXPECT_EQ(secret_of_seed(1), secret_of_seed(1));
  EXPECT_FALSE(secret_of_seed(1) == secret_of_seed(2));
}

TEST(SecretOfSeed, IsPythons) {
  // hash(b"vllm.tagma") of CPython 3.11 with these values of PYTHONHASHSEED.
  EXPECT_EQ(sip_hash_13("vllm.tagma", secret_of_seed(7)), 0x03ff8211d0eb1212u);
  EXPECT_EQ(sip_hash_13("vllm.tagma", secret_of_seed(4294967295)),
            0x9f8538bac4a5b2ceu);
}

}  // namespace
}  // namespace vllm::tagma
