// GptDecoder: what a byte-level GPT (gpt_weights.h) expects after the bytes that it was given.
//
//   x       = tokens[t] + positions[p]
//   x      += proj(attention(qkv(layer_norm(x))))      in every block
//   x      += fc2(gelu(fc1(layer_norm(x))))
//   logits  = head(layer_norm(x))
//
// Layer norm with ε = 1e-5 and the biased variance, GELU with erf, attention to the token itself
// and those before it, scaled by 1 / sqrt(width / heads).
//
// Keys and values are kept, so a token costs one pass over the weights. Positions are learned and
// absolute, so what is kept cannot be moved: when a token arrives and the context is full, the last
// context / 2 tokens are taken again from position 0, and the token follows them. The logits depend
// on all bytes since the last reset (on the last `context` at most), but in how many calls they
// came matters in the last bits only, and not at all if every matrix is packed. The number of
// threads does not matter.
//
// Memory: the weights, 2 · depth · context · width floats for keys and values, and activations of
// kTokensAtOnce tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "weft/decode/gpt_weights.h"

namespace weft {

class GptDecoder {
 public:
  // Reads everything from the checkpoint, which is not needed afterwards. Errors as of read_gpt.
  GptDecoder(const Checkpoint& checkpoint, int64_t heads, const GptWeightOptions& options = {});
  explicit GptDecoder(GptWeights weights);

  const GptWeights& weights() const { return weights_; }
  const GptShape& shape() const { return weights_.shape; }

  // Takes tokens that follow those taken before, at least one. Returns the logits of what comes
  // after the last: [256], valid until the next call.
  std::span<const float> take(std::span<const uint8_t> tokens);
  // Restarts, as if nothing had been taken.
  void reset() { taken_.clear(); }

  // The tokens that the next one sees besides itself, oldest first; never more than the context.
  std::span<const uint8_t> taken() const { return taken_; }

 private:
  // More than these are taken in pieces.
  static constexpr int64_t kTokensAtOnce = 64;

  void encode(std::span<const uint8_t> tokens);
  void attend_all(int64_t block, int64_t first, int64_t count);

  GptWeights weights_;
  std::vector<uint8_t> taken_;  // whose keys and values are kept
  // Of every block, [context, width].
  std::vector<AlignedBuffer<float>> keys_, values_;
  AlignedBuffer<float> x_, normed_, qkv_, hidden_;  // [kTokensAtOnce, ...]
  AlignedBuffer<float> scores_;                     // [heads, context]
  std::vector<float> logits_;
};

}  // namespace weft
