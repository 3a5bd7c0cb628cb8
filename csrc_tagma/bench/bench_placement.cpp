// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

// Replays what upstream's block pool decided in a run, and measures where the
// engine puts the blocks and what it copies for that.
//
//   bench_placement RECORDING [copies=N] [check=1]
//
// RECORDING is of little-endian int32: the number of blocks, the number of
// values that follow, then events as numbered below. `copies` bounds those of a
// step's admissions (-1: no bound, 0: no moves); `check` carries contents along
// and compares every victim. Prints JSON; exits with 1 if a check fails.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kv_allocator.h"
#include "prefix_index.h"

namespace {

using namespace vllm::tagma;

enum Event : int32_t {
  kStep = 1,  // step
  kWarm,      // Figures count from here.
  kAdmit,     // request, number of blocks of its hit, these
  kGrow,      // request, number of blocks, blocks that will follow, these
  kCache,     // request, start, stop
  kRelease,   // request, whether it is finished
  kSample,    // number of requests, these: their ranges count
};

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::exit(1);
}

class Counts {
 public:
  void add(int64_t value) { ++counts_[value]; }
  double mean() const {
    double sum = 0;
    double n = 0;
    for (const auto& [value, count] : counts_) {
      sum += static_cast<double>(value) * static_cast<double>(count);
      n += static_cast<double>(count);
    }
    return n > 0 ? sum / n : 0;
  }
  int64_t quantile(double share) const {
    double left = 0;
    for (const auto& [value, count] : counts_) {
      left += static_cast<double>(count) * share;
    }
    for (const auto& [value, count] : counts_) {
      left -= static_cast<double>(count);
      if (left <= 0) {
        return value;
      }
    }
    return 0;
  }
  int64_t most() const { return counts_.empty() ? 0 : counts_.rbegin()->first; }

 private:
  std::map<int64_t, int64_t> counts_;
};

class Replay {
 public:
  Replay(int32_t num_blocks, int32_t copies, bool checks)
      : checks_(checks),
        index_(num_blocks, secret_of_seed(1)),
        pool_(num_blocks, 0),
        keys_(num_blocks, 0),
        contents_(num_blocks, 0) {
    if (const Result attached = pool_.attach(&index_); !attached.ok()) {
      fail("no index");
    }
    pool_.set_copy_bound(copies < 0 ? KVAllocator::kNoBound : copies);
    index_.record_evicted(checks);
    pool_.begin_step();
  }

  void run(const std::vector<int32_t>& events) {
    const int32_t* at = events.data();
    const int32_t* const end = at + events.size();
    while (at < end) {
      switch (*at++) {
        case kStep:
          step();
          at += 1;
          break;
        case kWarm:
          warm();
          break;
        case kAdmit:
          admit(at[0], at + 2, at[1]);
          at += 2 + at[1];
          break;
        case kGrow:
          grow(at[0], at + 3, at[1], at[2]);
          at += 3 + at[1];
          break;
        case kCache:
          cache(at[0], at[1], at[2]);
          at += 3;
          break;
        case kRelease:
          release(at[0], at[1] != 0);
          at += 2;
          break;
        case kSample:
          for (int32_t i = 0; i < at[0]; ++i) {
            live_.add(
                static_cast<int64_t>(requests_[at[1 + i]]->list.num_ranges()));
          }
          at += 1 + at[0];
          break;
        default:
          fail("not a recording");
      }
    }
    step();
    if (checks_) {
      check();
    }
  }

  void print() const {
    const double blocks = static_cast<double>(std::max<int64_t>(allocated_, 1));
    std::printf(
        "{\"runs_mean\": %.3f, \"runs_p99\": %lld, \"runs_max\": %lld, "
        "\"live_mean\": %.3f, \"copies_per_block\": %.3f, \"step_mean\": %.2f, "
        "\"step_p99\": %lld, \"step_max\": %lld, \"allocated\": %lld, "
        "\"evicted\": %lld, \"searches\": %lld, \"looks\": %lld}\n",
        runs_.mean(), as_ll(runs_.quantile(0.99)), as_ll(runs_.most()),
        live_.mean(), static_cast<double>(copied_) / blocks,
        step_copies_.mean(), as_ll(step_copies_.quantile(0.99)),
        as_ll(step_copies_.most()), as_ll(allocated_),
        as_ll(pool_.stats().evicted_blocks),
        as_ll(pool_.search().num_searches()),
        as_ll(pool_.search().num_looks()));
  }

 private:
  struct Request {
    RangeList list;
    std::vector<int32_t> ids;  // What upstream calls its blocks.
  };

  static long long as_ll(int64_t value) {
    return static_cast<long long>(value);
  }

  static BlockKey key_of(const int64_t& key) {
    return {reinterpret_cast<const char*>(&key), sizeof(key)};
  }

  void require(const Result& result, const char* what) const {
    if (!result.ok()) {
      fail(std::string(what) + " failed");
    }
  }

  // The step's copies, then its computation.
  void step() {
    pool_.take_copies(&copies_);
    copied_ += static_cast<int64_t>(copies_.size());
    step_copies_.add(static_cast<int64_t>(copies_.size()));
    if (checks_) {
      std::vector<int64_t> read;
      for (const Copy& copy : copies_) {
        read.push_back(contents_[copy.from]);
      }
      for (size_t i = 0; i < copies_.size(); ++i) {
        contents_[copies_[i].to] = read[i];
      }
      for (const int64_t key : written_) {
        if (const int32_t block = index_.find(key_of(key)); block != kNoBlock) {
          contents_[block] = key;
        }
      }
      written_.clear();
      if (++num_steps_ % 64 == 0) {
        check();
      }
    }
    pool_.process_step(step_);
    step_ = pool_.begin_step();
  }

  void warm() {
    if (is_warm_) {
      return;
    }
    is_warm_ = true;
    runs_ = live_ = step_copies_ = Counts();
    copied_ = allocated_ = 0;
  }

  void admit(int32_t request, const int32_t* ids, int32_t count) {
    if (static_cast<size_t>(request) != requests_.size()) {
      fail("not a recording");
    }
    requests_.push_back(std::make_unique<Request>());
    Request& admitted = *requests_.back();
    admitted.ids.assign(ids, ids + count);
    RangeList hit;
    for (int32_t i = 0; i < count; ++i) {
      const int32_t block = index_.find(key_of(keys_[ids[i]]));
      if (block == kNoBlock) {
        fail("a hit of upstream's is none");
      }
      hit.append({block, 1});
    }
    require(pool_.acquire(&admitted.list, hit), "acquire");
  }

  void grow(int32_t id, const int32_t* ids, int32_t count, int32_t later) {
    Request& request = *requests_[id];
    pool_.expect(&request.list, later);
    index_.clear_evicted();
    require(pool_.extend(&request.list, count), "extend");
    pool_.clear_evicted();
    if (checks_) {
      int32_t next = 0;
      index_.for_each_evicted([&](BlockKey key) {
        while (next < count && keys_[ids[next]] == 0) {
          ++next;
        }
        if (next == count || key != key_of(keys_[ids[next]])) {
          fail("another block is evicted than upstream evicts");
        }
        ++next;
        return true;
      });
      while (next < count && keys_[ids[next]] == 0) {
        ++next;
      }
      if (next != count) {
        fail("a block is not evicted that upstream evicts");
      }
    }
    for (int32_t i = 0; i < count; ++i) {
      keys_[ids[i]] = 0;
    }
    request.ids.insert(request.ids.end(), ids, ids + count);
    allocated_ += count;
  }

  void cache(int32_t id, int32_t start, int32_t stop) {
    Request& request = *requests_[id];
    std::vector<BlockKey> names;
    for (int32_t i = start; i < stop; ++i) {
      keys_[request.ids[i]] = ++next_key_;
      names.push_back(key_of(keys_[request.ids[i]]));
      written_.push_back(next_key_);
    }
    int64_t cached = 0;
    require(
        pool_.cache_prefix(request.list, start, stop, names.data(), &cached),
        "cache_prefix");
  }

  void release(int32_t id, bool is_finished) {
    Request& request = *requests_[id];
    if (is_finished) {
      runs_.add(static_cast<int64_t>(request.list.num_ranges()));
    }
    require(pool_.release(&request.list), "release");
    request.ids = {};
  }

  // Every content is where the index has it.
  void check() const {
    for (const int64_t key : keys_) {
      if (key == 0) {
        continue;
      }
      const int32_t block = index_.find(key_of(key));
      const bool is_written =
          std::find(written_.begin(), written_.end(), key) == written_.end();
      if (block == kNoBlock || (is_written && contents_[block] != key)) {
        fail("a wrong block is under a hash");
      }
    }
    if (const std::string broken = pool_.check_invariants(); !broken.empty()) {
      fail(broken);
    }
  }

  const bool checks_;
  PrefixIndex index_;
  KVAllocator pool_;
  std::vector<std::unique_ptr<Request>> requests_;
  std::vector<int64_t> keys_;  // By upstream's ids; 0 is none.
  int64_t next_key_ = 0;
  std::vector<int64_t> contents_;  // By block, as on the device.
  std::vector<int64_t> written_;   // Keys of what this step computes.
  std::vector<Copy> copies_;
  int32_t step_ = 1;
  int64_t num_steps_ = 0;

  bool is_warm_ = false;
  Counts runs_;
  Counts live_;
  Counts step_copies_;
  int64_t copied_ = 0;
  int64_t allocated_ = 0;
};

std::vector<int32_t> read_recording(const char* path) {
  std::FILE* file = std::fopen(path, "rb");
  int32_t head[2] = {0, 0};
  if (file == nullptr || std::fread(head, sizeof(head), 1, file) != 1) {
    fail("no recording");
  }
  std::vector<int32_t> values(1 + static_cast<size_t>(head[1]));
  values[0] = head[0];
  if (std::fread(&values[1], sizeof(int32_t), values.size() - 1, file) !=
      values.size() - 1) {
    fail("the recording is cut off");
  }
  std::fclose(file);
  return values;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fail("usage: bench_placement RECORDING [copies=N] [check=1]");
  }
  int32_t copies = Placement::kCopies;
  bool checks = false;
  for (int i = 2; i < argc; ++i) {
    if (std::strncmp(argv[i], "copies=", 7) == 0) {
      copies = std::atoi(argv[i] + 7);
    } else if (std::strcmp(argv[i], "check=1") == 0) {
      checks = true;
    } else {
      fail(std::string("unknown option ") + argv[i]);
    }
  }
  std::vector<int32_t> events = read_recording(argv[1]);
  Replay replay(events.front(), copies, checks);
  events.erase(events.begin());
  replay.run(events);
  replay.print();
  return 0;
}
