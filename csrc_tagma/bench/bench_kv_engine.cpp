// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vLLM project

// Host benchmark of the range engine beside its yardsticks.
//
//   bench_kv_engine [ROUNDS [SCENARIO]] > results.json
//
// A scenario runs in rounds. A round builds its state, makes one call that is
// not timed, then times the rest together. The implementations of a scenario
// take turns round by round, so that a slow phase of the machine hits them
// alike. Rounds last about a millisecond, less than a time slice, so that some
// are not interrupted even on a busy machine. Printed are nanoseconds per call
// over the rounds. SCENARIO is a part of the names of those to run.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kv_allocator.h"
#include "kv_coord_map.h"
#include "map_allocator.h"
#include "prefix_index.h"

namespace vllm::tagma::bench {
namespace {

// The layout of the reference run.
constexpr int64_t kLayers = 32;
constexpr int32_t kBlocks = 1 << 16;
constexpr int32_t kTokensPerBlock = 32;
constexpr int64_t kBytesPerToken = 2048;

constexpr int32_t kMaxRanges = 256;
constexpr int32_t kRequestBlocks = 64;  // Of a request that is alone.
constexpr int32_t kChainBlocks = 8;     // Of a prefix that is hit or evicted.

// Ends the program: a benchmark of wrong results is worth nothing.
void require(bool condition, const char* what) {
  if (!condition) {
    std::fprintf(stderr, "bench_kv_engine: %s\n", what);
    std::exit(1);
  }
}

// Makes the compiler believe that `value` is used, and memory read.
template <typename T>
void keep(const T& value) {
  asm volatile("" : : "r,m"(value) : "memory");
}

// ---- Timing. ----

// A call's implementation: `setup()` returns what is called with 0, 1, 2, …
template <typename Setup>
struct Contender {
  const char* name;
  Setup setup;
};

template <typename Setup>
Contender<Setup> contender(const char* name, Setup setup) {
  return {name, std::move(setup)};
}

class Report {
 public:
  // `filter` is a part of the names of the scenarios to run.
  Report(int rounds, std::string_view filter)
      : rounds_(rounds), filter_(filter) {}

  // Times each contender for `calls` calls a round. `live` is how many
  // requests are live, `blocks` how many blocks a call handles.
  template <typename... Setups>
  void compare(const char* scenario, int live, int blocks, int64_t calls,
               const Contender<Setups>&... contenders) {
    if (std::string_view(scenario).find(filter_) == std::string_view::npos) {
      return;
    }
    std::vector<std::vector<double>> samples(sizeof...(contenders));
    for (int round = 0; round < rounds_; ++round) {
      size_t i = 0;
      (samples[i++].push_back(time_round(contenders.setup, calls)), ...);
    }
    size_t i = 0;
    (add(scenario, live, blocks, calls, contenders.name, samples[i++]), ...);
  }

  void print() const {
    std::printf(
        "{\n\"layout\": {\"layers\": %lld, \"blocks\": %d, "
        "\"tokens_per_block\": %d, \"bytes_per_token\": %lld},\n"
        "\"results\": [\n%s\n]\n}\n",
        static_cast<long long>(kLayers), kBlocks, kTokensPerBlock,
        static_cast<long long>(kBytesPerToken), results_.c_str());
  }

 private:
  using Clock = std::chrono::steady_clock;

  template <typename Setup>
  static double time_round(const Setup& setup, int64_t calls) {
    auto call = setup();
    call(0);
    const Clock::time_point begin = Clock::now();
    for (int64_t i = 1; i <= calls; ++i) {
      call(i);
    }
    const std::chrono::duration<double, std::nano> passed =
        Clock::now() - begin;
    return passed.count() / static_cast<double>(calls);
  }

  void add(const char* scenario, int live, int blocks, int64_t calls,
           const char* name, std::vector<double> ns) {
    const auto n = static_cast<double>(ns.size());
    const double mean = std::accumulate(ns.begin(), ns.end(), 0.0) / n;
    double squares = 0;
    for (const double sample : ns) {
      squares += (sample - mean) * (sample - mean);
    }
    std::sort(ns.begin(), ns.end());
    char line[512];
    std::snprintf(
        line, sizeof(line),
        "%s{\"scenario\": \"%s\", \"live\": %d, \"blocks\": %d, "
        "\"implementation\": \"%s\", \"calls\": %lld, \"rounds\": %zu, "
        "\"mean_ns\": %.3f, \"stddev_ns\": %.3f, \"median_ns\": %.3f, "
        "\"fastest_ns\": %.3f}",
        results_.empty() ? "" : ",\n", scenario, live, blocks, name,
        static_cast<long long>(calls), ns.size(), mean,
        std::sqrt(squares / std::max(n - 1, 1.0)), ns[ns.size() / 2],
        ns.front());
    results_ += line;
  }

  const int rounds_;
  const std::string_view filter_;
  std::string results_;
};

// ---- Workloads, the same for every contender. ----

RangeList list_of(Range range) {
  RangeList list;
  list.append(range);
  return list;
}

// A live request's replacement by one of another size.
struct Replacement {
  size_t request;
  int32_t count;
};

// Sizes of `live` requests that hold nine tenths of the pool together, and how
// they are replaced, over and over.
struct Churn {
  explicit Churn(int live) {
    std::mt19937 rng(1);
    const int32_t mean = kBlocks / 10 * 9 / live;
    const auto size = [&] {
      return static_cast<int32_t>(mean / 2 + rng() % mean);
    };
    for (int i = 0; i < live; ++i) {
      sizes.push_back(size());
    }
    for (int i = 0; i < kReplacements; ++i) {
      const size_t request = rng() % live;
      replacements.push_back({request, size()});
    }
  }

  const Replacement& at(int64_t i) const {
    return replacements[i % kReplacements];
  }

  static constexpr int kReplacements = 1 << 15;
  std::vector<int32_t> sizes;
  std::vector<Replacement> replacements;
};

// Requests of `count` blocks at the start of every `stride` blocks of a pool.
struct Grid {
  explicit Grid(int requests)
      : requests(requests), stride(kBlocks / requests) {}

  int32_t start(size_t request) const {
    return static_cast<int32_t>(request) * stride;
  }

  int requests;
  int32_t stride;
};

// A pool in which nothing but what `hold` acquires is in use.
class TagmaPool {
 public:
  explicit TagmaPool(int32_t max_ranges = kMaxRanges)
      : engine(kBlocks, 1, max_ranges) {
    require(engine.extend(&everything_, kBlocks, &view).ok(), "no full pool");
  }

  void hold(Range range, RangeList* request) {
    require(engine.acquire(request, list_of(range)).ok(), "cannot hold");
  }

  void cache(Range range) {
    for (int32_t block = range.start; block < range.end(); ++block) {
      require(engine.cache(block).ok(), "cannot cache");
    }
  }

  void free_the_rest() {
    require(engine.release(&everything_).ok(), "cannot free the rest");
  }

  void extend(RangeList* request, int32_t count) {
    require(engine.extend(request, count, &view).ok(), "cannot extend");
  }

  void release(RangeList* request) {
    require(engine.release(request).ok(), "cannot release");
  }

  KVAllocator engine;
  RangeList view;

 private:
  RangeList everything_;
};

// ---- The four operations of a request. ----

void bench_alone(Report* report) {
  report->compare(
      "allocate+release", 0, kRequestBlocks, 5'000,
      contender("tagma",
                [] {
                  auto pool = std::make_unique<TagmaPool>();
                  pool->free_the_rest();
                  RangeList request;
                  return [pool = std::move(pool), request](int64_t) mutable {
                    pool->extend(&request, kRequestBlocks);
                    pool->release(&request);
                  };
                }),
      contender("std::map",
                [] {
                  MapAllocator pool(kBlocks);
                  std::vector<Range> ranges;
                  return [pool, ranges](int64_t) mutable {
                    ranges.clear();
                    pool.allocate(kRequestBlocks, &ranges);
                    pool.release(ranges.front());
                  };
                }),
      contender("malloc", [] {
        return [](int64_t) {
          void* memory = std::malloc(kRequestBlocks * sizeof(int32_t));
          keep(memory);
          std::free(memory);
        };
      }));
}

void bench_allocate(Report* report, int live) {
  const Churn churn(live);
  constexpr int64_t kWarmUp = 20'000;
  report->compare(
      "allocate+release", live, churn.sizes.front(), 2'000,
      contender("tagma",
                [&] {
                  auto pool = std::make_unique<TagmaPool>();
                  pool->free_the_rest();
                  std::vector<RangeList> requests(churn.sizes.size());
                  for (size_t i = 0; i < requests.size(); ++i) {
                    pool->extend(&requests[i], churn.sizes[i]);
                  }
                  auto call = [&churn, pool = std::move(pool),
                               requests](int64_t i) mutable {
                    const Replacement& next = churn.at(i);
                    pool->release(&requests[next.request]);
                    pool->extend(&requests[next.request], next.count);
                  };
                  for (int64_t i = 0; i < kWarmUp; ++i) {
                    call(i);
                  }
                  return call;
                }),
      contender("std::map", [&] {
        MapAllocator pool(kBlocks);
        std::vector<std::vector<Range>> requests(churn.sizes.size());
        for (size_t i = 0; i < requests.size(); ++i) {
          pool.allocate(churn.sizes[i], &requests[i]);
        }
        auto call = [&churn, pool, requests](int64_t i) mutable {
          const Replacement& next = churn.at(i);
          std::vector<Range>& ranges = requests[next.request];
          for (const Range& range : ranges) {
            pool.release(range);
          }
          ranges.clear();
          pool.allocate(next.count, &ranges);
        };
        for (int64_t i = 0; i < kWarmUp; ++i) {
          call(i);
        }
        return call;
      }));
}

// One request, or `live` in turns, each with free blocks behind it.
template <bool kEveryCall>
void bench_grow_as(Report* report, int live, const char* scenario) {
  const Grid grid(std::max(live, 1));
  constexpr int64_t kPeriod = kEveryCall ? 1 : kTokensPerBlock;
  // Which request a call grows, and whether by a block or within its last one.
  const auto grows = [](int64_t i) { return i % kPeriod == 0; };
  const auto turn = [n = grid.requests](int64_t i) {
    return static_cast<size_t>(i / kPeriod) & static_cast<size_t>(n - 1);
  };
  report->compare(
      scenario, live, 1, 10'000,
      contender("tagma",
                [&] {
                  auto pool = std::make_unique<TagmaPool>();
                  std::vector<RangeList> requests(grid.requests);
                  for (size_t i = 0; i < requests.size(); ++i) {
                    pool->hold({grid.start(i), 1}, &requests[i]);
                  }
                  pool->free_the_rest();
                  return [grows, turn, pool = std::move(pool), requests,
                          tokens = int64_t{0}](int64_t i) mutable {
                    keep(++tokens);
                    if (grows(i)) {
                      pool->extend(&requests[turn(i)], 1);
                    }
                  };
                }),
      contender("std::map", [&] {
        MapAllocator pool(kBlocks);
        std::vector<Range> everything;
        pool.allocate(kBlocks, &everything);
        std::vector<Range> requests(grid.requests);
        for (size_t i = 0; i < requests.size(); ++i) {
          requests[i] = {grid.start(i), 1};
          pool.release({grid.start(i) + 1, grid.stride - 1});
        }
        return [grows, turn, pool, requests,
                tokens = int64_t{0}](int64_t i) mutable {
          keep(++tokens);
          if (grows(i)) {
            require(pool.grow(&requests[turn(i)], 1), "cannot grow");
          }
        };
      }));
}

void bench_grow(Report* report, int live) {
  bench_grow_as<true>(report, live, "grow in place");
  bench_grow_as<false>(report, live, "decode step, rollover every 32");
}

void bench_prefix(Report* report, int live) {
  const Grid grid(std::max(live, 1));
  const int32_t chain = std::min(grid.stride, 2 * kRequestBlocks);
  std::mt19937 rng(2);
  std::vector<int32_t> hits(1 << 12);
  for (int32_t& start : hits) {
    start = grid.start(rng() % grid.requests);
  }
  const auto prefix_at = [&hits](int64_t i) {
    return Range{hits[i & (hits.size() - 1)], kChainBlocks};
  };
  report->compare("prefix acquire+release", live, kChainBlocks, 5'000,
                  contender("tagma",
                            [&] {
                              auto pool = std::make_unique<TagmaPool>();
                              std::vector<RangeList> owners(grid.requests);
                              for (size_t i = 0; i < owners.size(); ++i) {
                                pool->hold({grid.start(i), chain}, &owners[i]);
                                pool->cache({grid.start(i), chain});
                              }
                              pool->free_the_rest();
                              // The engine takes what its index finds as a
                              // RangeList.
                              std::vector<RangeList> prefixes;
                              for (size_t i = 0; i < hits.size(); ++i) {
                                prefixes.push_back(list_of(prefix_at(i)));
                              }
                              RangeList request;
                              return [pool = std::move(pool), owners, prefixes,
                                      request](int64_t i) mutable {
                                const RangeList& prefix =
                                    prefixes[i & (prefixes.size() - 1)];
                                require(
                                    pool->engine.acquire(&request, prefix).ok(),
                                    "cannot acquire");
                                pool->release(&request);
                              };
                            }),
                  contender("std::map", [&] {
                    auto pool = std::make_unique<MapAllocator>(kBlocks);
                    std::vector<Range> everything;
                    pool->allocate(kBlocks, &everything);
                    for (int i = 0; i < grid.requests; ++i) {
                      pool->cache({grid.start(i), chain});
                    }
                    return [prefix_at, pool = std::move(pool)](int64_t i) {
                      pool->acquire_cached(prefix_at(i));
                      pool->release_cached(prefix_at(i));
                    };
                  }));
}

// Nothing is free: half of the pool, or all of it without live requests, are
// cache-only chains.
void bench_evict(Report* report, int live) {
  const int32_t stride = live == 0 ? kBlocks : kBlocks / live;
  const int32_t held = live == 0 ? 0 : stride / 2;
  std::vector<Range> live_ranges;
  std::vector<Range> chains;
  for (int32_t at = 0; at < kBlocks; at += stride) {
    if (held > 0) {
      live_ranges.push_back({at, held});
    }
    for (int32_t b = at + held; b < at + stride; b += kChainBlocks) {
      chains.push_back({b, kChainBlocks});
    }
  }
  std::shuffle(chains.begin(), chains.end(), std::mt19937(3));
  constexpr int64_t kCalls = 1'000;
  require(chains.size() > kCalls, "too few chains to evict");
  report->compare("evict cache-only", live, kChainBlocks, kCalls,
                  contender("tagma",
                            [&] {
                              auto pool = std::make_unique<TagmaPool>();
                              std::vector<RangeList> owners(chains.size());
                              std::vector<RangeList> others(live_ranges.size());
                              for (size_t i = 0; i < others.size(); ++i) {
                                pool->hold(live_ranges[i], &others[i]);
                              }
                              for (size_t i = 0; i < chains.size(); ++i) {
                                pool->hold(chains[i], &owners[i]);
                                pool->cache(chains[i]);
                              }
                              pool->free_the_rest();
                              for (RangeList& owner : owners) {
                                pool->release(&owner);
                              }
                              std::vector<RangeList> requests(kCalls + 1);
                              return [pool = std::move(pool), others,
                                      requests](int64_t i) mutable {
                                pool->extend(&requests[i], kChainBlocks);
                                keep(pool->engine.evicted());
                                pool->engine.clear_evicted();
                              };
                            }),
                  contender("std::map", [&] {
                    auto pool = std::make_unique<MapAllocator>(kBlocks);
                    std::vector<Range> everything;
                    pool->allocate(kBlocks, &everything);
                    for (const Range& chain : chains) {
                      pool->cache(chain);
                    }
                    for (const Range& chain : chains) {
                      pool->release_cached(chain);
                    }
                    std::vector<std::vector<Range>> requests(kCalls + 1);
                    return
                        [pool = std::move(pool), requests](int64_t i) mutable {
                          pool->allocate(kChainBlocks, &requests[i]);
                        };
                  }));
}

// Every extent has eight blocks, so the request needs as many as the cap.
void bench_many_ranges(Report* report) {
  constexpr int32_t kExtent = 8;
  const Grid grid(kBlocks / (2 * kExtent));
  constexpr int32_t kCount = kMaxRanges * kExtent;
  report->compare(
      "allocate+release of 256 ranges", grid.requests, kCount, 50,
      contender(
          "tagma",
          [&] {
            auto pool = std::make_unique<TagmaPool>();
            std::vector<RangeList> others(grid.requests);
            for (size_t i = 0; i < others.size(); ++i) {
              pool->hold({grid.start(i), kExtent}, &others[i]);
            }
            pool->free_the_rest();
            RangeList request;
            return [pool = std::move(pool), others, request](int64_t) mutable {
              pool->extend(&request, kCount);
              require(request.num_ranges() == kMaxRanges, "not 256 ranges");
              pool->release(&request);
            };
          }),
      contender("std::map", [&] {
        auto pool = std::make_unique<MapAllocator>(kBlocks);
        std::vector<Range> request;
        pool->allocate(kBlocks, &request);
        for (int i = 0; i < grid.requests; ++i) {
          pool->release({grid.start(i) + kExtent, kExtent});
        }
        return [pool = std::move(pool), request](int64_t) mutable {
          request.clear();
          pool->allocate(kCount, &request);
          for (const Range& range : request) {
            pool->release(range);
          }
        };
      }));
}

// ---- Addresses. ----

constexpr KVCoordMap kCoordMap(kLayers, kBlocks, kTokensPerBlock,
                               kBytesPerToken);

void bench_offsets(Report* report) {
  std::mt19937 rng(4);
  std::vector<KVCoords> coords(1 << 12);
  for (KVCoords& coord : coords) {
    coord = {static_cast<int64_t>(rng() % kLayers),
             static_cast<int64_t>(rng() % kBlocks),
             static_cast<int64_t>(rng() % kTokensPerBlock)};
  }
  const auto at = [&coords](int64_t i) -> const KVCoords& {
    return coords[i & (coords.size() - 1)];
  };
  report->compare("offset single", 0, 1, 200'000, contender("tagma", [&] {
                    return [at](int64_t i) { keep(kCoordMap.offset(at(i))); };
                  }));
  report->compare(
      "decode walk, 32 layers", 0, 1, 50'000, contender("tagma", [&] {
        return [at](int64_t i) {
          KVCoords coord = at(i);
          for (coord.layer = 0; coord.layer < kLayers; ++coord.layer) {
            keep(kCoordMap.offset(coord));
          }
        };
      }));
  constexpr int64_t kContext = 4096;
  report->compare(
      "context walk, 4096 tokens", 0, kContext / kTokensPerBlock, 200,
      contender("tagma", [&] {
        return [at](int64_t i) {
          const KVCoords first = at(i);
          for (int64_t position = 0; position < kContext; ++position) {
            const int64_t block =
                (first.block + position / kTokensPerBlock) % kBlocks;
            keep(kCoordMap.offset(
                {first.layer, block, position % kTokensPerBlock}));
          }
        };
      }));
}

// ---- Prefix index. ----

constexpr int kHashes = 8192;

// 32-byte block hashes: those of a round's calls first, then those that are in
// the index all along.
struct Hashes {
  static constexpr size_t kSize = 32;

  Hashes() : bytes(kBlocks * kSize, 0) {
    std::mt19937_64 rng(6);
    for (size_t i = 0; i < bytes.size(); i += sizeof(uint64_t)) {
      const uint64_t word = rng();
      std::copy_n(reinterpret_cast<const char*>(&word), sizeof(word),
                  &bytes[i]);
    }
  }

  std::string_view at(int64_t i) const { return {&bytes[i * kSize], kSize}; }

  std::string bytes;
};

// The standard library's hash table. A hash needs no hashing.
struct FirstWord {
  size_t operator()(std::string_view key) const {
    size_t word;
    std::copy_n(key.data(), sizeof(word), reinterpret_cast<char*>(&word));
    return word;
  }
};
using HashMap = std::unordered_map<std::string_view, int32_t, FirstWord>;

std::unique_ptr<PrefixIndex> make_index(const Hashes& hashes, int32_t first) {
  auto index = std::make_unique<PrefixIndex>(kBlocks);
  for (int32_t block = first; block < kBlocks; ++block) {
    index->insert(block, hashes.at(block));
  }
  return index;
}

HashMap make_map(const Hashes& hashes, int32_t first) {
  HashMap map;
  map.reserve(2 * kBlocks);
  for (int32_t block = first; block < kBlocks; ++block) {
    map.emplace(hashes.at(block), block);
  }
  return map;
}

void bench_index(Report* report) {
  const Hashes hashes;
  // The call that is not timed takes one more.
  constexpr int32_t kResident = kHashes + 1;
  report->compare(
      "index insert", 0, 1, kHashes,
      contender("tagma",
                [&] {
                  return [&, index = make_index(hashes, kResident)](int64_t i) {
                    index->insert(static_cast<int32_t>(i), hashes.at(i));
                  };
                }),
      contender("std::unordered_map", [&] {
        return [&, map = make_map(hashes, kResident)](int64_t i) mutable {
          map.emplace(hashes.at(i), static_cast<int32_t>(i));
        };
      }));
  report->compare(
      "index look-up", 0, 1, kHashes,
      contender("tagma",
                [&] {
                  return [&, index = make_index(hashes, 0)](int64_t i) {
                    keep(index->find(hashes.at(i)));
                  };
                }),
      contender("std::unordered_map", [&] {
        return [&, map = make_map(hashes, 0)](int64_t i) {
          keep(map.find(hashes.at(i))->second);
        };
      }));
  report->compare(
      "index erase", 0, 1, kHashes,
      contender("tagma",
                [&] {
                  return [&, index = make_index(hashes, 0)](int64_t i) {
                    index->erase(static_cast<int32_t>(i));
                  };
                }),
      contender("std::unordered_map", [&] {
        return [&, map = make_map(hashes, 0)](int64_t i) mutable {
          map.erase(hashes.at(i));
        };
      }));
}

// ---- Slot mapping. ----

// Requests with four ranges each, and the same as rows of a block table.
struct Batch {
  Batch(int requests, int32_t blocks) : row(blocks) {
    constexpr int32_t kRanges = 4;
    const int32_t part = blocks / kRanges;
    std::vector<int32_t> starts(kBlocks / (2 * part));
    for (size_t i = 0; i < starts.size(); ++i) {
      starts[i] = static_cast<int32_t>(i) * 2 * part;
    }
    std::shuffle(starts.begin(), starts.end(), std::mt19937(5));
    lists.resize(requests);
    size_t next = 0;
    for (RangeList& list : lists) {
      for (int32_t i = 0; i < kRanges; ++i, ++next) {
        list.append({starts[next % starts.size()], part});
      }
      list.for_each(0, list.num_blocks(), [this](int32_t block) {
        table.push_back(block);
        return true;
      });
    }
  }

  int64_t last_position() const { return int64_t{row} * kTokensPerBlock - 1; }

  int32_t row;
  std::vector<RangeList> lists;
  std::vector<int32_t> table;
};

void prefill_slots(const int32_t* row, int64_t* slots, int64_t count) {
  for (int64_t position = 0; position < count; ++position) {
    slots[position] =
        int64_t{row[position / kTokensPerBlock]} * kTokensPerBlock +
        position % kTokensPerBlock;
  }
}

void prefill_slots(const RangeList& list, int64_t* slots) {
  for (const Range& range : list.ranges()) {
    const int64_t first = int64_t{range.start} * kTokensPerBlock;
    const int64_t count = int64_t{range.count} * kTokensPerBlock;
    std::iota(slots, slots + count, first);
    slots += count;
  }
}

int64_t decode_slot(int32_t block, int64_t position) {
  return int64_t{block} * kTokensPerBlock + position % kTokensPerBlock;
}

void bench_slots(Report* report) {
  constexpr int64_t kPrefill = 4096;
  const Batch prefill(1, kPrefill / kTokensPerBlock);
  std::vector<int64_t> gathered(kPrefill);
  std::vector<int64_t> computed(kPrefill);
  prefill_slots(prefill.table.data(), gathered.data(), kPrefill);
  prefill_slots(prefill.lists.front(), computed.data());
  require(gathered == computed, "slot ids of the prefill differ");
  report->compare(
      "slot mapping, prefill of 4096", 1, prefill.row, 500,
      contender("tagma",
                [&] {
                  return [&](int64_t) {
                    prefill_slots(prefill.lists.front(), computed.data());
                    keep(computed.data());
                  };
                }),
      contender("paged gather", [&] {
        return [&](int64_t) {
          prefill_slots(prefill.table.data(), gathered.data(), kPrefill);
          keep(gathered.data());
        };
      }));

  constexpr int kDecodes = 512;
  const Batch decode(kDecodes, 128);
  const int64_t position = decode.last_position();
  gathered.resize(kDecodes);
  computed.resize(kDecodes);
  const auto gather = [&] {
    for (size_t i = 0; i < kDecodes; ++i) {
      gathered[i] = decode_slot(
          decode.table[i * decode.row + position / kTokensPerBlock], position);
    }
  };
  const auto compute = [&] {
    for (size_t i = 0; i < kDecodes; ++i) {
      computed[i] =
          decode_slot(decode.lists[i].at(position / kTokensPerBlock), position);
    }
  };
  gather();
  compute();
  require(gathered == computed, "slot ids of the decodes differ");
  report->compare("slot mapping, 512 decodes", kDecodes, 1, 1'000,
                  contender("tagma",
                            [&] {
                              return [&](int64_t) {
                                compute();
                                keep(computed.data());
                              };
                            }),
                  contender("paged gather", [&] {
                    return [&](int64_t) {
                      gather();
                      keep(gathered.data());
                    };
                  }));
}

// The cheapest call there is, for what a call from Python costs beside it.
void bench_read(Report* report) {
  report->compare(
      "read a block's references", 0, 1, 200'000, contender("tagma", [] {
        auto pool = std::make_unique<TagmaPool>();
        return [pool = std::move(pool)](int64_t i) {
          keep(pool->engine.ref_count(static_cast<int32_t>(i & (kBlocks - 1))));
        };
      }));
}

void run(int rounds, std::string_view filter) {
  Report report(rounds, filter);
  bench_offsets(&report);
  bench_alone(&report);
  for (const int live : {512, 4096}) {
    bench_allocate(&report, live);
  }
  for (const auto bench : {bench_grow, bench_prefix, bench_evict}) {
    for (const int live : {0, 512, 4096}) {
      bench(&report, live);
    }
  }
  bench_many_ranges(&report);
  bench_index(&report);
  bench_slots(&report);
  bench_read(&report);
  report.print();
}

}  // namespace
}  // namespace vllm::tagma::bench

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 30;
  if (argc > 3 || rounds < 2) {
    std::fprintf(stderr, "usage: bench_kv_engine [ROUNDS >= 2 [SCENARIO]]\n");
    return 2;
  }
  vllm::tagma::bench::run(rounds, argc > 2 ? argv[2] : "");
  return 0;
}
