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

// Some of the rows of one group of channels, and some blocks of its inputs.
struct Part {
  int64_t group = 0;
  int64_t first_row = 0, rows = 0;
  int64_t first_block = 0, blocks = 0;  // of inputs, each at all taps
};

class MaskedConv {
 public:
  MaskedConv(const ConvShape& shape, const float* g, const float* x, const KeptEntries& kept)
      : shape_(shape), g_(g), kept_(kept), tokens_(shape.images * shape.positions()) {
    const int64_t most = kept.tokens();
    width_ = whole_sums(ceil_div(tokens_, std::max<int64_t>(1, ceil_div(tokens_, most))));
    stripes_ = tokens_ == 0 ? 0 : ceil_div(tokens_, width_);
    for (int64_t group = 0; group < shape.groups; ++group) {
      gathers_.push_back(gather_of_inputs(shape, x, group));
    }
    // Chunks give threads work where a part alone would be all; their sums stay in the caches.
    constexpr int64_t kSums = (1 << 20) / sizeof(float), kMostChunks = 8;
    chunks_ = std::clamp<int64_t>(kSums / std::max<int64_t>(1, kept.size()), 1,
                                  std::clamp<int64_t>(stripes_, 1, kMostChunks));
    cut();
  }

  int64_t chunks() const { return chunks_; }

  // values: [chunks, kept.size()]
  void run(float* values) const {
    if (stripes_ == 0) std::fill_n(values, chunks_ * kept_.size(), 0.0f);
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
    thread_local AlignedBuffer<float> panel, gradient;
    panel.reserve(static_cast<size_t>(kept_.block() * width_));
    gradient.reserve(static_cast<size_t>(part.rows * width_));
    MaskedJob job;
    job.g = gradient.data();
    job.x = panel.data();
    job.g_stride = job.x_stride = width_;
    job.rows = part.rows;
    job.index = kept_.index();
    job.values = values;
    const int64_t first = chunk * stripes_ / chunks_, end = (chunk + 1) * stripes_ / chunks_;
    for (int64_t stripe = first; stripe < end; ++stripe) {
      const int64_t token = stripe * width_, tokens = std::min(width_, tokens_ - token);
      const StripeProgram program(gathers_[static_cast<size_t>(part.group)], token, tokens);
      job.tokens = whole_sums(tokens);
      job.first = stripe == first;
      copy_gradient(part, token, tokens, gradient.data());
      for (int64_t block = part.first_block; block < part.first_block + part.blocks; ++block) {
        run_block(block, part.first_row, program, tokens, panel.data(), job);
      }
    }
  }

  // [rows of the part, width_], with zeros up to whole sums.
  void copy_gradient(const Part& part, int64_t token, int64_t tokens, float* copy) const {
    const int64_t positions = shape_.positions();
    for (int64_t done = 0; done < tokens;) {
      const int64_t image = (token + done) / positions, position = (token + done) % positions;
      const int64_t count = std::min(positions - position, tokens - done);
      const float* from = g_ + (image * shape_.outs + part.first_row) * positions + position;
      for (int64_t r = 0; r < part.rows; ++r) {
        std::copy_n(from + r * positions, count, copy + r * width_ + done);
      }
      done += count;
    }
    fill_up(copy, part.rows, tokens);
  }

  void fill_up(float* rows, int64_t count, int64_t tokens) const {
    const int64_t missing = whole_sums(tokens) - tokens;
    for (int64_t r = 0; r < count && missing > 0; ++r) {
      std::fill_n(rows + r * width_ + tokens, missing, 0.0f);
    }
  }

  // A block of inputs at all taps: `panel` is made for one after the other.
  void run_block(int64_t block, int64_t first_row, const StripeProgram& program, int64_t tokens,
                 float* panel, MaskedJob& job) const {
    const int64_t channel = block * kept_.block();
    const int64_t channels = std::min(kept_.block(), kept_.ins() - channel);
    for (int64_t tap = 0; tap < kept_.taps(); ++tap) {
      job.starts = kept_.starts(block * kept_.taps() + tap) + first_row;
      if (job.starts[0] == job.starts[job.rows]) continue;
      program.run_tap(tap, channel, channels, panel, job.x_stride);
      fill_up(panel, channels, tokens);
      run_masked_rows(job);
    }
  }

  const ConvShape& shape_;
  const float* g_;
  const KeptEntries& kept_;
  int64_t tokens_;                   // output positions of all images
  int64_t width_ = 0, stripes_ = 0;  // tokens of a stripe; the last one may have fewer
  std::vector<Gather> gathers_;      // of the groups
  int64_t chunks_ = 1;
  std::vector<Part> parts_;
};

// Rows [first, last) of dw, from the sums of all chunks. Block by block: sums of a block are next to
// each other for these rows, but for one row a power of two apart, where outputs are.
void put_filters(const KeptEntries& kept, const float* values, int64_t chunks, int64_t first,
                 int64_t last, float beta, float* dw) {
  const uint16_t* index = kept.index();
  const int64_t taps = kept.taps(), cols = kept.cols();
  if (beta == 0.0f) std::fill_n(dw + first * cols, (last - first) * cols, 0.0f);
  for (int64_t b = 0; b < kept.blocks(); ++b) {
    const uint32_t* starts = kept.starts(b);
    float* block = dw + b / taps * kept.block() * taps + b % taps;
    for (int64_t r = first; r < last; ++r) {
      for (uint32_t e = starts[r]; e < starts[r + 1]; ++e) {
        if (e > starts[r] && index[e] == index[e - 1]) break;  // the last one, repeated
        float sum = values[e];
        for (int64_t c = 1; c < chunks; ++c) sum += values[c * kept.size() + e];
        block[r * cols + index[e] * taps] += sum;
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
