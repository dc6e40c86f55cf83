// BatchSource: what a run learns from, as tensors. Samples are numbered; the trainer says which
// ones it wants, in the order of sample_order.h.
#pragma once

#include <torch/types.h>

#include <memory>
#include <span>
#include <string>

#include "weft/data/data.h"
#include "weft/torch/model.h"

namespace weft {

struct Batch {
  torch::Tensor inputs;   // [samples, ...]
  torch::Tensor targets;  // int64: [samples], or [samples, tokens]
};

class BatchSource {
 public:
  virtual ~BatchSource() = default;

  virtual ModelShape shape() const = 0;
  virtual int64_t train_samples() const = 0;
  virtual int64_t test_samples() const = 0;
  // The first of the samples is at `position` of the run: a source may show a sample in another way
  // each time, as a pure function of where it stands.
  virtual Batch train_batch(std::span<const int64_t> samples, int64_t position) const = 0;
  virtual Batch test_batch(std::span<const int64_t> samples) const = 0;

  // What a sample counts as in "per second": "images", "tokens"; and how many of them it is.
  virtual std::string unit() const = 0;
  virtual int64_t units_per_sample() const = 0;
  // A checksum of all samples: a run goes on only with the data that it began with.
  virtual uint32_t fingerprint() const = 0;
};

// The data that the options name. Throws Error that names a broken or missing file, or if there is
// less than the model needs.
std::shared_ptr<BatchSource> make_batch_source(const RunOptions& options);

}  // namespace weft
