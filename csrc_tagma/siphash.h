// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

// SipHash, a hash function with a secret: J.-P. Aumasson, D. J. Bernstein,
// "SipHash: a fast short-input PRF", INDOCRYPT 2012. What collides under one
// secret tells nothing about another, so who does not know the secret cannot
// choose keys that collide.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace vllm::tagma {

struct HashSecret {
  uint64_t k0;
  uint64_t k1;
};

inline bool operator==(const HashSecret& a, const HashSecret& b) {
  return a.k0 == b.k0 && a.k1 == b.k1;
}

// SipHash-c-d of `data`, with `c` rounds for each word and `d` at the end. The
// values are the published ones where words are little-endian.
template <int c, int d>
uint64_t sip_hash(std::string_view data, const HashSecret& secret) {
  uint64_t v0 = secret.k0 ^ 0x736f6d6570736575u;
  uint64_t v1 = secret.k1 ^ 0x646f72616e646f6du;
  uint64_t v2 = secret.k0 ^ 0x6c7967656e657261u;
  uint64_t v3 = secret.k1 ^ 0x7465646279746573u;
  const auto rotate = [](uint64_t word, int bits) {
    return word << bits | word >> (64 - bits);
  };
  const auto rounds = [&](int count) {
    for (int i = 0; i < count; ++i) {
      v0 += v1;
      v2 += v3;
      v1 = rotate(v1, 13) ^ v0;
      v3 = rotate(v3, 16) ^ v2;
      v0 = rotate(v0, 32);
      v2 += v1;
      v0 += v3;
      v1 = rotate(v1, 17) ^ v2;
      v3 = rotate(v3, 21) ^ v0;
      v2 = rotate(v2, 32);
    }
  };
  const auto absorb = [&](uint64_t word) {
    v3 ^= word;
    rounds(c);
    v0 ^= word;
  };
  const char* at = data.data();
  size_t left = data.size();
  for (; left >= sizeof(uint64_t); left -= 8, at += 8) {
    uint64_t word;
    std::memcpy(&word, at, sizeof(word));
    absorb(word);
  }
  uint64_t last = uint64_t{data.size()} << 56;
  for (size_t i = 0; i < left; ++i) {
    last |= uint64_t{static_cast<unsigned char>(at[i])} << (8 * i);
  }
  absorb(last);
  v2 ^= 0xff;
  rounds(d);
  return v0 ^ v1 ^ v2 ^ v3;
}

// The variant that Python and Rust key their hash tables with.
inline uint64_t sip_hash_13(std::string_view data, const HashSecret& secret) {
  return sip_hash<1, 3>(data, secret);
}

// The secret that Python makes of PYTHONHASHSEED. Seed 0 stands for none.
inline HashSecret secret_of_seed(uint32_t seed) {
  if (seed == 0) {
    return {0, 0};
  }
  unsigned char bytes[sizeof(HashSecret)];
  for (unsigned char& byte : bytes) {
    seed = seed * 214013 + 2531011;
    byte = static_cast<unsigned char>(seed >> 16);
  }
  HashSecret secret;
  std::memcpy(&secret, bytes, sizeof(secret));
  return secret;
}

}  // namespace vllm::tagma
