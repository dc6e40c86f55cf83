#include "weft/kernel/conv/masked_conv.h"

#include <algorithm>
#include <vector>

#include "weft/core/aligned_buffer.h"
#include "weft/core/ceil_div.h"
#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/kernel/bf16_rows.h"
#include "weft/kernel/conv/gather.h"
#include "weft/kernel/masked/masked_rows.h"
#include "weft/kernel/operand_check.h"

namespace weft {
namespace {

// The output positions of all images, cut into stripes of about `most`.
class Stripes {
 public:
  // In one image, where images make stripes of whole sums that are not too short: then g is read in
  // place. Elsewhere images follow each other.
  Stripes(const ConvShape& shape, int64_t most) : positions_(shape.positions()) {
    in_image_ = positions_ % kPartialSums == 0 && 2 * positions_ >= most;
    run_ = in_image_ ? positions_ : shape.images * positions_;
    const int64_t per_run = std::max<int64_t>(1, ceil_div(run_, most));
    width_ = std::max(kPartialSums, whole_sums(ceil_div(run_, per_run)));
    per_run_ = ceil_div(run_, width_);
    count_ = in_image_ ? shape.images * per_run_ : per_run_;
  }

  int64_t count() const { return count_; }
  int64_t width() const { return width_; }  // of the widest
  bool in_image() const { return in_image_; }
  int64_t first(int64_t stripe) const {
    return stripe / per_run_ * run_ + stripe % per_run_ * width_;
  }
  int64_t cols(int64_t stripe) const { return std::min(width_, run_ - stripe % per_run_ * width_); }

 private:
  int64_t positions_, run_ = 0, width_ = 0, per_run_ = 0, count_ = 0;
  bool in_image_ = false;
};

// Some of the rows of one group of channels, and some blocks of its inputs.
struct Part {
  int64_t group = 0;
  int64_t first_row = 0, rows = 0;
  int64_t first_block = 0, blocks = 0;  // of inputs, each at all taps
};

class MaskedConv {
 public:
  MaskedConv(const ConvShape& shape, const float* g, const float* x, const KeptEntries& kept)
      : shape_(shape), g_(g), kept_(kept), stripes_(shape, kept.tokens()) {
    for (int64_t group = 0; group < shape.groups; ++group) {
      gathers_.push_back(gather_of_inputs(shape, x, group));
    }
    // Chunks give threads work where a part alone would be all; their sums stay in the caches.
    constexpr int64_t kSums = (1 << 20) / sizeof(float), kMostChunks = 8;
    chunks_ = std::clamp<int64_t>(kSums / std::max<int64_t>(1, kept.size()), 1,
                                  std::clamp<int64_t>(stripes_.count(), 1, kMostChunks));
    cut();
  }

  int64_t chunks() const { return chunks_; }

  // values: [chunks, kept.size()]
  void run(float* values) const {
    if (stripes_.count() == 0) std::fill_n(values, chunks_ * kept_.size(), 0.0f);
    const auto parts = static_cast<int64_t>(parts_.size());
    parallel_for(chunks_ * parts, [&](int64_t item) {
      const int64_t chunk = item / parts;
      run_part(parts_[static_cast<size_t>(item % parts)], chunk, values + chunk * kept_.size());
    });
  }

 private:
  // Rows whose stripe of g stays in L2 while panels go by; and enough parts for the threads, of
  // fewer blocks each.
  void cut() {
    constexpr int64_t kRows = 256;
    const int64_t outs = shape_.group_outs(), blocks = kept_.blocks() / kept_.taps();
    const int64_t row_parts = ceil_div(outs, kRows), rows = ceil_div(outs, row_parts);
    const int64_t wanted = threads() == 1 ? 1 : 4 * threads();
    const int64_t block_parts =
        std::clamp<int64_t>(wanted / (chunks_ * shape_.groups * row_parts), 1, blocks);
    const int64_t of_part = ceil_div(blocks, block_parts);
    for (int64_t group = 0; group < shape_.groups; ++group) {
      for (int64_t row = 0; row < outs; row += rows) {
        for (int64_t block = 0; block < blocks; block += of_part) {
          parts_.push_back({group, group * outs + row, std::min(rows, outs - row), block,
                            std::min(of_part, blocks - block)});
        }
      }
    }
  }

  void run_part(const Part& part, int64_t chunk, float* values) const {
    thread_local AlignedBuffer<float> panel, rows_of_g;
    const int64_t width = stripes_.width();
    panel.reserve(static_cast<size_t>(kept_.block() * width));
    if (!stripes_.in_image()) rows_of_g.reserve(static_cast<size_t>(part.rows * width));
    MaskedJob job;
    job.x = panel.data();
    job.x_stride = width;
    job.rows = part.rows;
    job.index = kept_.index();
    job.values = values;
    const int64_t first = chunk * stripes_.count() / chunks_;
    const int64_t end = (chunk + 1) * stripes_.count() / chunks_;
    for (int64_t stripe = first; stripe < end; ++stripe) {
      const int64_t cols = stripes_.cols(stripe);
      const StripeProgram program(gathers_[static_cast<size_t>(part.group)], stripes_.first(stripe),
                                  cols);
      job.tokens = whole_sums(cols);
      job.first = stripe == first;
      find_gradient(part, stripe, rows_of_g.data(), job);
      for (int64_t block = part.first_block; block < part.first_block + part.blocks; ++block) {
        run_block(block, part.first_row, program, cols, panel.data(), job);
      }
    }
  }

  // Where the rows of g are: in place, or copied together, with zeros up to whole sums.
  void find_gradient(const Part& part, int64_t stripe, float* copy, MaskedJob& job) const {
    const int64_t positions = shape_.positions(), first = stripes_.first(stripe);
    const float* plane = g_ + part.first_row * positions;
    if (stripes_.in_image()) {
      job.g = plane + first / positions * shape_.outs * positions + first % positions;
      job.g_stride = positions;
      return;
    }
    const int64_t end = first + stripes_.cols(stripe);
    job.g = copy;
    job.g_stride = stripes_.width();
    for (int64_t col = first; col < end;) {
      const int64_t image = col / positions, position = col % positions;
      const int64_t count = std::min(positions - position, end - col);
      const float* from = plane + image * shape_.outs * positions + position;
      for (int64_t r = 0; r < part.rows; ++r) {
        std::copy_n(from + r * positions, count, copy + r * job.g_stride + col - first);
      }
      col += count;
    }
    const int64_t cols = end - first;
    for (int64_t r = 0; r < part.rows && cols < job.tokens; ++r) {
      std::fill_n(copy + r * job.g_stride + cols, job.tokens - cols, 0.0f);
    }
  }

  // A block of inputs at all taps: `panel` is made for one after the other.
  void run_block(int64_t block, int64_t first_row, const StripeProgram& program, int64_t cols,
                 float* panel, MaskedJob& job) const {
    const int64_t channel = block * kept_.block();
    const int64_t channels = std::min(kept_.block(), kept_.ins() - channel);
    for (int64_t tap = 0; tap < kept_.taps(); ++tap) {
      job.starts = kept_.starts(block * kept_.taps() + tap) + first_row;
      if (job.starts[0] == job.starts[job.rows]) continue;
      program.run_tap(tap, channel, channels, panel, job.x_stride);
      for (int64_t c = 0; c < channels && cols < job.tokens; ++c) {
        std::fill_n(panel + c * job.x_stride + cols, job.tokens - cols, 0.0f);
      }
      run_masked_rows(job);
    }
  }

  const ConvShape& shape_;
  const float* g_;
  const KeptEntries& kept_;
  Stripes stripes_;
  std::vector<Gather> gathers_;  // of the groups
  int64_t chunks_ = 1;
  std::vector<Part> parts_;
};

// Rows [first, last) of dw, from the sums of all chunks.
void put_filters(const KeptEntries& kept, const float* values, int64_t chunks, int64_t first,
                 int64_t last, float beta, float* dw) {
  const uint16_t* index = kept.index();
  const int64_t taps = kept.taps();
  for (int64_t r = first; r < last; ++r) {
    float* row = dw + r * kept.cols();
    if (beta == 0.0f) std::fill_n(row, kept.cols(), 0.0f);
    for (int64_t b = 0; b < kept.blocks(); ++b) {
      float* to = row + b / taps * kept.block() * taps + b % taps;
      const uint32_t begin = kept.starts(b)[r], end = kept.starts(b)[r + 1];
      for (uint32_t e = begin; e < end; ++e) {
        if (e > begin && index[e] == index[e - 1]) break;  // the last one, repeated
        float sum = values[e];
        for (int64_t c = 1; c < chunks; ++c) sum += values[c * kept.size() + e];
        to[index[e] * taps] += sum;
      }
    }
  }
}

}  // namespace

void masked_conv_backward_weight(const ConvShape& shape, const float* g, const float* x,
                                 const KeptEntries& kept, float beta, float* dw) {
  shape.check();
  check_beta(beta);
  const WeightShape weights = shape.weight_shape();
  WEFT_CHECK(
      kept.rows() == weights.outs && kept.cols() == weights.cols() && kept.taps() == weights.taps,
      "entries of {} x {} weights of {} taps for a convolution {}", kept.rows(), kept.cols(),
      kept.taps(), shape.str());
  check_data("g", g, shape.y_size());
  check_data("x", x, shape.x_size());
  check_data("dw", dw, shape.w_size());
  const MaskedConv conv(shape, g, x, kept);
  thread_local AlignedBuffer<float> sums;
  sums.reserve(static_cast<size_t>(conv.chunks() * kept.size()));
  float* const values = sums.data();
  conv.run(values);
  constexpr int64_t kRows = 16;
  parallel_for(ceil_div(shape.outs, kRows), [&](int64_t item) {
    put_filters(kept, values, conv.chunks(), item * kRows, std::min(shape.outs, (item + 1) * kRows),
                beta, dw);
  });
}

void masked_conv_backward_weight(const ConvShape& shape, const Bf16* g, const Bf16* x,
                                 const KeptEntries& kept, float beta, float* dw) {
  shape.check();
  check_data("g", g, shape.y_size());
  check_data("x", x, shape.x_size());
  const float* wide_g = expanded(CopyOf::kFirst, g, shape.y_size());
  const float* wide_x = expanded(CopyOf::kSecond, x, shape.x_size());
  masked_conv_backward_weight(shape, wide_g, wide_x, kept, beta, dw);
}

}  // namespace weft
