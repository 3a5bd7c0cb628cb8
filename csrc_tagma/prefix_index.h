// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

// The prefix index of the tagma KV cache backend: block hash to cached block.
//
// A hash table whose nodes are the blocks: a block has at most one entry, so
// its key and links live in an array by block id, one cache line each, and
// neither look-up, insertion nor removal allocates memory. Keys are any bytes;
// those beyond kInlineKey bytes are kept aside and do allocate.
//
// Several blocks may have the same key, when requests computed the same prefix
// at the same time. The one inserted first is found; the others wait in a ring
// behind it, so that each operation stays O(1) however many there are.
//
// Not thread-safe: one caller at a time.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kv_ranges.h"

namespace vllm::tagma {

using BlockKey = std::string_view;

class PrefixIndex {
 public:
  // A 32-byte hash with a 4-byte KV cache group fits.
  static constexpr size_t kInlineKey = 40;

  explicit PrefixIndex(int32_t num_blocks)
      : num_blocks_(num_blocks),
        bucket_mask_(bucket_count(num_blocks) - 1),
        buckets_(bucket_count(num_blocks), kNoBlock),
        // Not initialised: a page is first touched when a block needs it.
        nodes_(new Node[num_blocks]),
        in_use_(num_blocks, 0) {}

  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  int32_t num_blocks() const { return num_blocks_; }
  // Number of blocks with an entry.
  int32_t size() const { return size_; }
  // Number of different keys that they have.
  int32_t num_keys() const { return num_keys_; }
  bool contains(int32_t block) const { return in_use_[block] != 0; }

  // The block's key; it must have an entry. Valid until that is erased.
  BlockKey key_of(int32_t block) const {
    const Node& node = nodes_[block];
    return {node.size <= kInlineKey ? node.key : long_keys_.at(block).data(),
            node.size};
  }

  // The number that the block's entry was inserted with; it must have one.
  int32_t position_of(int32_t block) const { return nodes_[block].position; }

  // The block that was inserted first under `key`, or kNoBlock.
  int32_t find(BlockKey key) const { return find(key, hash_of(key)); }

  // Replaces `blocks` by those of the longest prefix of `count` keys of which
  // every key is found. `key_at(i)` returns the key at `i`.
  template <typename KeyAt>
  void match(size_t count, KeyAt key_at, RangeList* blocks) const {
    blocks->clear();
    for (size_t i = 0; i < count; ++i) {
      const int32_t block = find(key_at(i));
      if (block == kNoBlock) {
        return;
      }
      blocks->append({block, 1});
    }
  }

  // Makes sure that the insertion of `count` keys allocates no memory.
  void reserve(const BlockKey* keys, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      longest_key_ = std::max(longest_key_, keys[i].size());
    }
    const auto is_long = [](BlockKey key) { return key.size() > kInlineKey; };
    const int64_t extra = std::count_if(keys, keys + count, is_long);
    if (extra == 0) {
      return;
    }
    // Nodes of a map cannot be reserved, so spare ones are kept.
    long_keys_.reserve(long_keys_.size() + extra);
    spare_keys_.reserve(extra);
    while (spare_keys_.size() < static_cast<size_t>(extra)) {
      LongKeys made;
      made.emplace(kNoBlock, std::string());
      spare_keys_.push_back(made.extract(kNoBlock));
    }
    for (LongKeys::node_type& spare : spare_keys_) {
      spare.mapped().reserve(longest_key_);
    }
  }

  // Adds an entry for `block`, which must have none. `position` is the caller's
  // to read back: the block's index in its prefix. Allocates nothing if the key
  // is short or was reserved for.
  void insert(int32_t block, BlockKey key, int32_t position = 0) {
    Node& node = nodes_[block];
    if (key.size() > kInlineKey) {
      insert_long_key(block, key);
    } else if (!key.empty()) {
      std::memcpy(node.key, key.data(), key.size());
    }
    node.hash = hash_of(key);
    node.size = static_cast<uint32_t>(key.size());
    node.position = position;
    const int32_t first = find(key, node.hash);
    if (first == kNoBlock) {
      node.ring_prev = node.ring_next = block;
      link(block);
      ++num_keys_;
    } else {
      // At the end of the ring, which is just before its first.
      node.chain_next = kInRing;
      node.ring_next = first;
      node.ring_prev = nodes_[first].ring_prev;
      nodes_[node.ring_prev].ring_next = block;
      nodes_[first].ring_prev = block;
    }
    in_use_[block] = 1;
    ++size_;
  }

  // Removes the entry of `block`, which must have one.
  void erase(int32_t block) {
    Node& node = nodes_[block];
    const bool is_first = node.chain_next != kInRing;
    if (is_first) {
      int32_t* link = &buckets_[node.hash & bucket_mask_];
      while (*link != block) {
        link = &nodes_[*link].chain_next;
      }
      if (node.ring_next == block) {
        *link = node.chain_next;
        --num_keys_;
      } else {
        *link = node.ring_next;
        nodes_[node.ring_next].chain_next = node.chain_next;
      }
    }
    nodes_[node.ring_prev].ring_next = node.ring_next;
    nodes_[node.ring_next].ring_prev = node.ring_prev;
    if (node.size > kInlineKey) {
      long_keys_.erase(block);
    }
    in_use_[block] = 0;
    --size_;
  }

  // ---- Keys of evicted blocks, recorded for those who ask for them. ----

  void record_evicted(bool record) { records_evicted_ = record; }
  bool records_evicted() const { return records_evicted_; }

  // Makes sure that `count` more records allocate no memory.
  void reserve_evicted(int64_t count) {
    if (records_evicted_) {
      reserve_more(evicted_sizes_, count);
      reserve_more(evicted_keys_, count * longest_key_);
    }
  }

  // Erases the entry of `block`, which must have one, as evicted.
  void evict(int32_t block) {
    if (records_evicted_) {
      const BlockKey key = key_of(block);
      evicted_sizes_.push_back(key.size());
      evicted_keys_.insert(evicted_keys_.end(), key.begin(), key.end());
    }
    erase(block);
  }

  // Calls `visit(key)` for each recorded key, oldest first, until one call
  // returns false. Returns whether all returned true.
  template <typename Visit>
  bool for_each_evicted(Visit visit) const {
    const char* key = evicted_keys_.data();
    for (const size_t size : evicted_sizes_) {
      if (!visit(BlockKey{key, size})) {
        return false;
      }
      key += size;
    }
    return true;
  }
  size_t num_evicted() const { return evicted_sizes_.size(); }
  void clear_evicted() {
    evicted_sizes_.clear();
    evicted_keys_.clear();
  }

  // The first broken invariant in words, or an empty string.
  std::string check_invariants() const;

  // Every entry with its order, as bytes to compare.
  std::string dump() const;

 private:
  using LongKeys = std::unordered_map<int32_t, std::string>;

  static constexpr int32_t kInRing = -2;  // Not the first of its key.

  struct Node {
    uint32_t hash;
    uint32_t size;       // Of the key, in bytes.
    int32_t chain_next;  // Next key in the bucket, kNoBlock or kInRing.
    int32_t ring_prev;   // Blocks of the same key, in order of insertion.
    int32_t ring_next;
    int32_t position;  // In its prefix.
    char key[kInlineKey];
  };
  static_assert(sizeof(Node) <= 64);

  static size_t bucket_count(int32_t num_blocks) {
    size_t count = 1;
    while (count < static_cast<size_t>(num_blocks)) {
      count *= 2;
    }
    return count;
  }

  static uint32_t hash_of(BlockKey key) {
    // Multiply and fold, eight bytes at a time. Keys are hashes already, but
    // which of their bytes differ is not known.
    uint64_t h = key.size() * 0x9E3779B97F4A7C15u;
    const auto mix = [&h](uint64_t word) {
      const auto product =
          static_cast<unsigned __int128>(h ^ word) * 0xD6E8FEB86659FD93u;
      h = static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
    };
    const char* data = key.data();
    size_t left = key.size();
    for (; left >= sizeof(uint64_t); left -= 8, data += 8) {
      uint64_t word;
      std::memcpy(&word, data, sizeof(word));
      mix(word);
    }
    if (left > 0) {
      uint64_t word = 0;
      std::memcpy(&word, data, left);
      mix(word);
    }
    return static_cast<uint32_t>(h ^ (h >> 32));
  }

  int32_t find(BlockKey key, uint32_t hash) const {
    int32_t block = buckets_[hash & bucket_mask_];
    while (block != kNoBlock) {
      const Node& node = nodes_[block];
      if (node.hash == hash && node.size == key.size() &&
          key_of(block) == key) {
        return block;
      }
      block = node.chain_next;
    }
    return kNoBlock;
  }

  void link(int32_t block) {
    int32_t& head = buckets_[nodes_[block].hash & bucket_mask_];
    nodes_[block].chain_next = head;
    head = block;
  }

  void insert_long_key(int32_t block, BlockKey key) {
    if (spare_keys_.empty()) {
      long_keys_.emplace(block, key);
      return;
    }
    LongKeys::node_type node = std::move(spare_keys_.back());
    spare_keys_.pop_back();
    node.key() = block;
    node.mapped().assign(key);
    long_keys_.insert(std::move(node));
  }

  const int32_t num_blocks_;
  const uint32_t bucket_mask_;
  std::vector<int32_t> buckets_;  // First block of each chain of keys.
  std::unique_ptr<Node[]> nodes_;
  std::vector<uint8_t> in_use_;
  int32_t size_ = 0;
  int32_t num_keys_ = 0;
  size_t longest_key_ = 0;  // Ever seen, in bytes.
  LongKeys long_keys_;
  std::vector<LongKeys::node_type> spare_keys_;
  bool records_evicted_ = false;
  std::vector<size_t> evicted_sizes_;
  std::vector<char> evicted_keys_;
};

inline std::string PrefixIndex::check_invariants() const {
  int32_t entries = 0;
  int32_t keys = 0;
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    for (int32_t first = buckets_[bucket]; first != kNoBlock;
         first = nodes_[first].chain_next) {
      ++keys;
      int32_t block = first;
      do {
        const Node& node = nodes_[block];
        if (!contains(block) || (node.hash & bucket_mask_) != bucket ||
            node.hash != hash_of(key_of(block)) ||
            key_of(block) != key_of(first) ||
            (block == first) != (node.chain_next != kInRing) ||
            nodes_[node.ring_next].ring_prev != block ||
            ++entries > num_blocks_) {
          return "index entry of block " + std::to_string(block) + " is broken";
        }
        block = node.ring_next;
      } while (block != first);
      if (find(key_of(first)) != first) {
        return "block " + std::to_string(first) +
               " has a key that is another's";
      }
    }
  }
  const auto in_use = std::count(in_use_.begin(), in_use_.end(), 1);
  if (keys != num_keys_) {
    return "the index counts " + std::to_string(num_keys_) +
           " keys, there are " + std::to_string(keys);
  }
  if (entries != size_ || in_use != size_) {
    return "the index counts " + std::to_string(size_) +
           " entries, there are " + std::to_string(entries) + " in its buckets";
  }
  return {};
}

inline std::string PrefixIndex::dump() const {
  std::string bytes;
  const auto put = [&bytes](int32_t value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  for (int32_t first = 0; first < num_blocks_; ++first) {
    if (!contains(first) || nodes_[first].chain_next == kInRing) {
      continue;
    }
    put(static_cast<int32_t>(nodes_[first].size));
    bytes += key_of(first);
    int32_t block = first;
    do {
      put(block);
      put(nodes_[block].position);
      block = nodes_[block].ring_next;
    } while (block != first);
  }
  bytes.append(evicted_keys_.data(), evicted_keys_.size());
  return bytes;
}

}  // namespace vllm::tagma
