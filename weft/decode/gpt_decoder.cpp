#include "weft/decode/gpt_decoder.h"

#include <algorithm>
#include <cmath>

#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/decode/activations.h"

namespace weft {
namespace {

size_t product(int64_t a, int64_t b) { return static_cast<size_t>(a) * static_cast<size_t>(b); }

void norm_rows(MatrixView<const float> x, const NormWeights& norm, MatrixView<float> y) {
  parallel_for(x.rows, [&](int64_t t) {
    layer_norm(x.row(t), norm.weight.data(), norm.bias.data(), x.cols, y.row(t));
  });
}

void gelu_rows(MatrixView<float> x) {
  parallel_for(x.rows, [&](int64_t t) { gelu(x.row(t), x.cols); });
}

}  // namespace

GptDecoder::GptDecoder(const Checkpoint& checkpoint, int64_t heads, const GptWeightOptions& options)
    : GptDecoder(read_gpt(checkpoint, heads, options)) {}

GptDecoder::GptDecoder(GptWeights weights) : weights_(std::move(weights)) {
  const GptShape& s = shape();
  const int64_t tokens = std::min(kTokensAtOnce, s.context);
  for (int64_t i = 0; i < s.depth; ++i) {
    keys_.emplace_back(product(s.context, s.width));
    values_.emplace_back(product(s.context, s.width));
  }
  x_ = AlignedBuffer<float>(product(tokens, s.width));
  normed_ = AlignedBuffer<float>(product(tokens, s.width));
  qkv_ = AlignedBuffer<float>(product(tokens, 3 * s.width));
  hidden_ = AlignedBuffer<float>(product(tokens, s.hidden));
  scores_ = AlignedBuffer<float>(product(s.heads, s.context));
  logits_.resize(GptShape::kTokens);
  taken_.reserve(static_cast<size_t>(s.context));
}

std::span<const float> GptDecoder::take(std::span<const uint8_t> tokens) {
  WEFT_CHECK(!tokens.empty(), "no tokens: accepted are one or more");
  const auto context = static_cast<size_t>(shape().context);
  // How many will be kept after the last token, and whether some of those before must go.
  size_t kept = taken_.size();
  bool slides = false;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (kept == context) {
      kept = context / 2;
      slides = true;
    }
    ++kept;
  }
  // Only what is kept in the end matters: a prompt of many contexts costs one.
  std::vector<uint8_t> joined;
  if (slides) {
    if (kept > tokens.size()) {
      joined.assign(taken_.end() - static_cast<int64_t>(kept - tokens.size()), taken_.end());
      joined.insert(joined.end(), tokens.begin(), tokens.end());
      tokens = joined;
    } else {
      tokens = tokens.last(kept);
    }
    taken_.clear();
  }
  for (size_t i = 0; i < tokens.size(); i += static_cast<size_t>(kTokensAtOnce)) {
    const size_t count = std::min(static_cast<size_t>(kTokensAtOnce), tokens.size() - i);
    encode(tokens.subspan(i, count));
  }
  return logits_;
}

// Takes tokens for which there is room, and leaves the logits of the last.
void GptDecoder::encode(std::span<const uint8_t> tokens) {
  const GptShape& s = shape();
  const auto first = static_cast<int64_t>(taken_.size());
  const auto count = static_cast<int64_t>(tokens.size());
  const MatrixView<float> x(x_.data(), count, s.width), normed(normed_.data(), count, s.width);
  const MatrixView<float> qkv(qkv_.data(), count, 3 * s.width);
  const MatrixView<float> hidden(hidden_.data(), count, s.hidden);

  for (int64_t t = 0; t < count; ++t) {
    const float* token = weights_.tokens.data() + tokens[static_cast<size_t>(t)] * s.width;
    const float* position = weights_.positions.data() + (first + t) * s.width;
    for (int64_t i = 0; i < s.width; ++i) x.row(t)[i] = token[i] + position[i];
  }
  for (int64_t i = 0; i < s.depth; ++i) {
    const GptBlock& block = weights_.blocks[static_cast<size_t>(i)];
    norm_rows(x, block.norm1, normed);
    block.qkv.forward(normed, 0, qkv);
    attend_all(i, first, count);
    block.proj.forward(normed, 1, x);
    norm_rows(x, block.norm2, normed);
    block.fc1.forward(normed, 0, hidden);
    gelu_rows(hidden);
    block.fc2.forward(hidden, 1, x);
  }
  const MatrixView<float> last = normed.rows_from(0, 1);
  norm_rows(x.rows_from(count - 1, 1), weights_.norm, last);
  weights_.head.forward(last, 0, {logits_.data(), 1, GptShape::kTokens});
  taken_.insert(taken_.end(), tokens.begin(), tokens.end());
}

// qkv_ -> the keys and values of the block, and what every token gets from them -> normed_.
void GptDecoder::attend_all(int64_t block, int64_t first, int64_t count) {
  const GptShape& s = shape();
  const int64_t dim = s.width / s.heads;
  float* keys = keys_[static_cast<size_t>(block)].data();
  float* values = values_[static_cast<size_t>(block)].data();
  for (int64_t t = 0; t < count; ++t) {
    const float* k = qkv_.data() + t * 3 * s.width + s.width;
    std::copy_n(k, s.width, keys + (first + t) * s.width);
    std::copy_n(k + s.width, s.width, values + (first + t) * s.width);
  }
  const auto one_head = [&](int64_t h) {
    HeadAttention head;
    head.k = keys + h * dim;
    head.v = values + h * dim;
    head.dim = dim;
    head.stride = s.width;
    head.scale = 1 / std::sqrt(static_cast<float>(dim));
    head.scores = scores_.data() + h * s.context;
    for (int64_t t = 0; t < count; ++t) {
      head.q = qkv_.data() + t * 3 * s.width + h * dim;
      head.positions = first + t + 1;
      head.out = normed_.data() + t * s.width + h * dim;
      attend(head);
    }
  };
  // Waking the threads takes 2 us on a Zen 3 with 2 cores; 64 positions 256 wide took 4.0 us on one
  // thread and 2.5 on two, 16 took 1.6 and 1.4.
  constexpr int64_t kSmall = 32 * 256;
  if (count * s.width <= kSmall / (first + count)) {
    for (int64_t h = 0; h < s.heads; ++h) one_head(h);
  } else {
    parallel_for(s.heads, one_head);
  }
}

}  // namespace weft
