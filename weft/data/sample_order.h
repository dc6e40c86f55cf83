// The order in which a run sees its samples: a pure function of (seed, position).
//
//   position p is sample  order(seed, p / count)[p % count]
//
// where order(seed, epoch) is a permutation of the samples, drawn by Fisher-Yates from core/rng.h.
// So every epoch sees each sample once, and a run resumes from its position alone. Batches are
// consecutive positions and may span two epochs.
//
// Cost: O(count) when a position enters another epoch than the last one did, else O(1).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace weft {

std::vector<int64_t> epoch_order(uint64_t seed, int64_t epoch, int64_t count);

// The i-th of `count` samples that are spread evenly over `all`, i * all / count, without a product
// that could overflow.
constexpr int64_t spread_sample(int64_t i, int64_t count, int64_t all) {
  return i * (all / count) + i * (all % count) / count;
}

class SampleOrder {
 public:
  SampleOrder(uint64_t seed, int64_t count);  // count >= 1

  int64_t count() const { return count_; }

  // The samples of positions position, position + 1, ...
  void fill(int64_t position, std::span<int64_t> samples);
  std::vector<int64_t> batch(int64_t position, int64_t size);

 private:
  uint64_t seed_;
  int64_t count_;
  int64_t epoch_ = -1;          // whose order is kept
  std::vector<int64_t> order_;  // [count]
};

}  // namespace weft
