#include "weft/torch/state_tensors.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "weft/core/error.h"
#include "weft/recipe/permutation.h"

namespace weft {
namespace {

constexpr int64_t kStateVersion = 2;
constexpr int64_t kCounters = 10;

// FNV-1a: the same on every machine.
int64_t hash_of(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return static_cast<int64_t>(hash);
}

void check_words(const torch::Tensor& words, const std::string& context) {
  WEFT_CHECK(words.defined() && words.scalar_type() == torch::kLong && words.device().is_cpu() &&
                 words.is_contiguous(),
             "{}: not 64-bit integers on the CPU", context);
}

}  // namespace

torch::Tensor empty_words() { return torch::zeros({0}, torch::kLong); }

torch::Tensor words_of(const Mask& mask) {
  if (mask.rows() == 0) return empty_words();
  torch::Tensor words = torch::empty({mask.rows(), (mask.cols() + 63) / 64}, torch::kLong);
  std::memcpy(words.data_ptr<int64_t>(), mask.row_words(0),
              static_cast<size_t>(words.numel()) * sizeof(int64_t));
  return words;
}

torch::Tensor words_of(const std::vector<int64_t>& values) {
  torch::Tensor words = torch::empty({static_cast<int64_t>(values.size())}, torch::kLong);
  std::copy(values.begin(), values.end(), words.data_ptr<int64_t>());
  return words;
}

torch::Tensor counters_of(const LayerState& state, std::string_view owner) {
  return words_of(std::vector<int64_t>{kStateVersion, state.begun, state.step, state.call,
                                       static_cast<int64_t>(state.seed), state.layer, state.scaled,
                                       std::bit_cast<int64_t>(state.beta), hash_of(owner),
                                       state.refreshed});
}

Mask mask_from(const torch::Tensor& words, int64_t rows, int64_t cols, const std::string& context) {
  check_words(words, context);
  if (words.numel() == 0) return Mask();
  const int64_t per_row = (cols + 63) / 64;
  WEFT_CHECK(words.dim() == 2 && words.size(0) == rows && words.size(1) == per_row,
             "{}: words for another shape than {} x {}", context, rows, cols);
  Mask mask(rows, cols);
  std::memcpy(mask.row_words(0), words.data_ptr<int64_t>(),
              static_cast<size_t>(words.numel()) * sizeof(int64_t));
  if (cols % 64 != 0) {
    const uint64_t past = ~uint64_t{0} << (cols % 64);
    for (int64_t row = 0; row < rows; ++row) {
      WEFT_CHECK((mask.row_words(row)[per_row - 1] & past) == 0,
                 "{}: row {} has bits past its last column", context, row);
    }
  }
  return mask;
}

std::vector<int64_t> permutation_from(const torch::Tensor& words, int64_t outs,
                                      const std::string& context) {
  check_words(words, context);
  const int64_t* first = words.data_ptr<int64_t>();
  std::vector<int64_t> permutation(first, first + words.numel());
  WEFT_CHECK(permutation.empty() ||
                 (static_cast<int64_t>(permutation.size()) == outs && is_permutation(permutation)),
             "{}: no permutation of {} outputs", context, outs);
  return permutation;
}

LayerState state_from_counters(const torch::Tensor& counters, std::string_view owner,
                               const std::string& context) {
  check_words(counters, context + ": counters");
  const int64_t* c = counters.data_ptr<int64_t>();
  WEFT_CHECK(counters.numel() == 0 || c[0] == kStateVersion,
             "{}: version {}, and this weft reads {}", context, c[0], kStateVersion);
  WEFT_CHECK(counters.numel() == kCounters, "{}: {} counters, not {}", context, counters.numel(),
             kCounters);
  WEFT_CHECK(c[8] == hash_of(owner), "{}: it is of another recipe or pattern than {}", context,
             owner);
  LayerState state;
  state.begun = c[1] != 0;
  state.step = c[2];
  state.call = c[3];
  state.seed = static_cast<uint64_t>(c[4]);
  state.layer = c[5];
  state.scaled = c[6] != 0;
  state.beta = std::bit_cast<double>(c[7]);
  state.refreshed = c[9];
  WEFT_CHECK(state.step >= 0 && state.call >= 0 && std::isfinite(state.beta) &&
                 state.refreshed >= 0 && state.refreshed <= state.step,
             "{}: counters that no run can have", context);
  return state;
}

}  // namespace weft
