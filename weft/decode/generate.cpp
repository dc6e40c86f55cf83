#include "weft/decode/generate.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <numeric>

#include "weft/core/error.h"
#include "weft/core/rng.h"

namespace weft {
namespace {

constexpr size_t kTokens = GptShape::kTokens;

void check_options(const GenerateOptions& options) {
  WEFT_CHECK(options.max_bytes >= 0, "max_bytes {}: accepted is 0 or more", options.max_bytes);
  WEFT_CHECK(std::isfinite(options.temperature) && options.temperature >= 0,
             "temperature {}: accepted is 0 or more", options.temperature);
  WEFT_CHECK(options.top_k >= 0 && options.top_k <= static_cast<int>(kTokens),
             "top_k {}: accepted is 0 (all) to {}", options.top_k, kTokens);
}

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The `count` likeliest bytes, in order of likelihood.
std::vector<uint8_t> likeliest(std::span<const float> logits, size_t count) {
  std::vector<uint8_t> order(kTokens);
  std::iota(order.begin(), order.end(), uint8_t{0});
  std::partial_sort(
      order.begin(), order.begin() + static_cast<int64_t>(count), order.end(),
      [&](uint8_t a, uint8_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  order.resize(count);
  return order;
}

}  // namespace

uint8_t pick_byte(std::span<const float> logits, const GenerateOptions& options, uint64_t index) {
  check_options(options);
  WEFT_CHECK(logits.size() == kTokens, "{} logits: accepted are {}", logits.size(), kTokens);
  for (size_t i = 0; i < kTokens; ++i) {
    WEFT_CHECK(std::isfinite(logits[i]), "the logit of byte {} is {}: logits must be finite", i,
               logits[i]);
  }
  if (options.temperature == 0) return likeliest(logits, 1).front();
  const size_t count = options.top_k == 0 ? kTokens : static_cast<size_t>(options.top_k);
  const std::vector<uint8_t> order = likeliest(logits, count);
  std::array<double, kTokens> sums{};  // of probabilities, not yet divided by their sum
  double sum = 0;
  for (size_t i = 0; i < count; ++i) {
    sum += std::exp((double{logits[order[i]]} - double{logits[order[0]]}) / options.temperature);
    sums[i] = sum;
  }
  const double drawn = Rng(options.seed).uniform(index) * sum;
  const auto found =
      std::upper_bound(sums.begin(), sums.begin() + static_cast<int64_t>(count), drawn);
  // A draw that is rounded up to the sum belongs to the last.
  return order[std::min(static_cast<size_t>(found - sums.begin()), count - 1)];
}

GenerateResult generate(GptDecoder& decoder, std::string_view prompt,
                        const GenerateOptions& options,
                        const std::function<void(uint8_t)>& on_byte) {
  check_options(options);
  std::vector<uint8_t> tokens(prompt.begin(), prompt.end());
  if (tokens.empty()) tokens.push_back('\n');
  GenerateResult result;
  result.prompt_tokens = static_cast<int64_t>(tokens.size());
  decoder.reset();
  double begun = now_seconds();
  std::span<const float> logits = decoder.take(tokens);
  result.prompt_seconds = now_seconds() - begun;
  for (int64_t i = 0; i < options.max_bytes; ++i) {
    const uint8_t byte = pick_byte(logits, options, static_cast<uint64_t>(i));
    result.text.push_back(static_cast<char>(byte));
    if (on_byte) on_byte(byte);
    if (i + 1 == options.max_bytes) break;
    begun = now_seconds();
    logits = decoder.take({&byte, 1});
    result.generation_seconds += now_seconds() - begun;
    ++result.generation_tokens;
  }
  if (result.generation_seconds > 0) {
    result.tokens_per_second =
        static_cast<double>(result.generation_tokens) / result.generation_seconds;
  }
  return result;
}

}  // namespace weft
