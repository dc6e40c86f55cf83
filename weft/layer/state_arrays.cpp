#include "weft/layer/state_arrays.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "weft/core/error.h"
#include "weft/recipe/permutation.h"

namespace weft {
namespace {

constexpr int64_t kStateVersion = 2;
constexpr size_t kCounters = 10;

// FNV-1a: the same on every machine.
int64_t hash_of(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return static_cast<int64_t>(hash);
}

const StateArray& array_named(std::span<const StateArray> arrays, std::string_view name,
                              const std::string& context) {
  const auto found =
      std::ranges::find_if(arrays, [&](const StateArray& array) { return array.name == name; });
  WEFT_CHECK(found != arrays.end(), "{}: has no array '{}'", context, name);
  return *found;
}

LayerState state_from_counters(const StateArray& array, std::string_view owner,
                               const std::string& context) {
  const std::vector<int64_t>& c = array.values;
  WEFT_CHECK(c.empty() || c[0] == kStateVersion, "{}: version {}: accepted is {}", context, c[0],
             kStateVersion);
  WEFT_CHECK(c.size() == kCounters, "{}: {} counters, not {}", context, c.size(), kCounters);
  WEFT_CHECK(c[8] == hash_of(owner), "{}: the state of another recipe or pattern than {}", context,
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
             "{}: impossible counters", context);
  return state;
}

}  // namespace

StateArray state_array(std::string name, const Mask& mask) {
  if (mask.rows() == 0) return {std::move(name), {0}, {}};
  StateArray array{std::move(name), {mask.rows(), (mask.cols() + 63) / 64}, {}};
  array.values.resize(static_cast<size_t>(array.shape[0] * array.shape[1]));
  std::memcpy(array.values.data(), mask.row_words(0), array.values.size() * sizeof(int64_t));
  return array;
}

StateArray state_array(std::string name, std::vector<int64_t> values) {
  const auto size = static_cast<int64_t>(values.size());
  return {std::move(name), {size}, std::move(values)};
}

namespace {

StateArray state_counters(const LayerState& state, std::string_view owner) {
  return state_array(
      "counters",
      std::vector<int64_t>{kStateVersion, state.begun, state.step, state.call,
                           static_cast<int64_t>(state.seed), state.layer, state.scaled,
                           std::bit_cast<int64_t>(state.beta), hash_of(owner), state.refreshed});
}

}  // namespace

std::vector<StateArray> state_arrays(const LayerState& state, std::string_view owner) {
  return {state_array("mask", state.forward),
          state_array("backward_mask", state.backward),
          state_array("permutation", state.permutation),
          state_array("row_order", state.row_order),
          state_array("alive", state.alive),
          state_counters(state, owner)};
}

bool is_dense_state(std::span<const StateArray> arrays) {
  const std::vector<int64_t>& c = array_named(arrays, "counters", "a saved state").values;
  return c.size() == kCounters && c[8] == hash_of(kDenseOwner);
}

Mask mask_from(const StateArray& array, int64_t rows, int64_t cols, const std::string& context) {
  if (array.values.empty()) return Mask();
  const int64_t per_row = (cols + 63) / 64;
  WEFT_CHECK(array.shape == (std::vector<int64_t>{rows, per_row}) &&
                 static_cast<int64_t>(array.values.size()) == rows * per_row,
             "{}: its shape is not {} x {}", context, rows, cols);
  Mask mask(rows, cols);
  std::memcpy(mask.row_words(0), array.values.data(), array.values.size() * sizeof(int64_t));
  if (cols % 64 != 0) {
    const uint64_t past = ~uint64_t{0} << (cols % 64);
    for (int64_t row = 0; row < rows; ++row) {
      WEFT_CHECK((mask.row_words(row)[per_row - 1] & past) == 0,
                 "{}: row {} has bits past its last column", context, row);
    }
  }
  return mask;
}

std::vector<int64_t> permutation_from(const StateArray& array, int64_t outs,
                                      const std::string& context) {
  WEFT_CHECK(array.values.empty() || (static_cast<int64_t>(array.values.size()) == outs &&
                                      is_permutation(array.values)),
             "{}: not a permutation of {} outputs", context, outs);
  return array.values;
}

LayerState state_from(std::span<const StateArray> arrays, const StateShape& shape,
                      std::string_view owner, const std::string& context) {
  const auto named = [&](std::string_view name) -> const StateArray& {
    return array_named(arrays, name, context);
  };
  const auto place = [&](const char* name) { return fmt::format("{}: {}", context, name); };
  const WeightShape& w = shape.weights;
  LayerState state = state_from_counters(named("counters"), owner, context);
  state.forward = mask_from(named("mask"), w.outs, w.cols(), place("mask"));
  state.backward = mask_from(named("backward_mask"), w.outs, w.cols(), place("backward_mask"));
  state.permutation = permutation_from(named("permutation"), w.outs, place("permutation"));
  state.row_order = permutation_from(named("row_order"), w.outs, place("row_order"));
  if (shape.alive_rows > 0) {
    state.alive = mask_from(named("alive"), shape.alive_rows, shape.alive_cols, place("alive"));
  }
  return state;
}

}  // namespace weft
