#include "weft/data/sample_order.h"

#include <limits>
#include <numeric>
#include <utility>

#include "weft/core/error.h"
#include "weft/core/rng.h"

namespace weft {
namespace {

// Tells these draws from those of layers and of weights with the same seed.
constexpr uint64_t kOrderStreams = uint64_t{0x6f726465} << 32;  // "orde"

}  // namespace

std::vector<int64_t> epoch_order(uint64_t seed, int64_t epoch, int64_t count) {
  WEFT_CHECK(epoch >= 0 && count >= 1, "order of epoch {} of {} samples: at least 0 and 1", epoch,
             count);
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), int64_t{0});
  const Rng rng(seed, kOrderStreams ^ static_cast<uint64_t>(epoch));
  for (size_t last = order.size() - 1; last > 0; --last) {
    std::swap(order[last], order[rng.below(last, last + 1)]);
  }
  return order;
}

SampleOrder::SampleOrder(uint64_t seed, int64_t count) : seed_(seed), count_(count) {
  WEFT_CHECK(count >= 1, "an order of {} samples: at least one", count);
}

void SampleOrder::fill(int64_t position, std::span<int64_t> samples) {
  WEFT_CHECK(position >= 0 && static_cast<uint64_t>(std::numeric_limits<int64_t>::max() -
                                                    position) >= samples.size(),
             "position {} of the data: at least 0", position);
  for (int64_t& sample : samples) {
    const int64_t epoch = position / count_;
    if (epoch != epoch_) {
      order_ = epoch_order(seed_, epoch, count_);
      epoch_ = epoch;
    }
    sample = order_[static_cast<size_t>(position % count_)];
    ++position;
  }
}

std::vector<int64_t> SampleOrder::batch(int64_t position, int64_t size) {
  WEFT_CHECK(size >= 0, "a batch of {} samples", size);
  std::vector<int64_t> samples(static_cast<size_t>(size));
  fill(position, samples);
  return samples;
}

}  // namespace weft
