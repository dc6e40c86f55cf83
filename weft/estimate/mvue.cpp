#include "weft/estimate/mvue.h"

#include <algorithm>
#include <limits>

#include "weft/core/aligned_buffer.h"
#include "weft/core/ceil_div.h"
#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/core/rng.h"
#include "weft/estimate/sample_columns.h"

namespace weft {
namespace {

constexpr int64_t kMaxCells = int64_t{1} << 32;

// A tile of sample_scales: a few lines of cache in every row, whole blocks, and whole draws.
constexpr int64_t kTileOuts = 64;
constexpr int64_t kTileGroups = 64;

// scales of cells -> scales of their members
void spread(MatrixView<const float> cells, const Pattern& pattern, MatrixView<float> scales) {
  for (int64_t t = 0; t < scales.rows; ++t) {
    const float* from = cells.row(t);
    for (int64_t first = 0; first < scales.cols; first += pattern.group()) {
      if (first > 0 && first % pattern.block() == 0) from += pattern.group();
      std::copy_n(from, std::min<int64_t>(pattern.group(), scales.cols - first),
                  scales.row(t) + first);
    }
  }
}

void check_view(const char* name, int64_t rows, int64_t cols, int64_t want_rows, int64_t want_cols,
                const float* data, int64_t stride) {
  WEFT_CHECK(rows == want_rows && cols == want_cols, "{} of {} x {}, accepted is {} x {}", name,
             rows, cols, want_rows, want_cols);
  WEFT_CHECK(data != nullptr || rows == 0 || cols == 0, "{} is null", name);
  WEFT_CHECK(stride >= cols, "{} has {} columns, but only {} elements from row to row", name, cols,
             stride);
}

void check_group(std::span<const float> group, int keep) {
  WEFT_CHECK(group.size() <= Pattern::kMaxGroup && keep >= 1,
             "a group of {} with {} to keep, accepted are at most {} and at least 1", group.size(),
             keep, Pattern::kMaxGroup);
}

}  // namespace

uint64_t philox_key(const SampleKey& key) {
  return Rng(key.seed, key.step).bits((uint64_t{key.layer} << 32) | key.call);
}

Sampler parse_sampler(std::string_view name) {
  for (const Sampler sampler : {Sampler::kExact, Sampler::kTwoDraw}) {
    if (name == sampler_name(sampler)) return sampler;
  }
  throw Error(fmt::format("sampler '{}': accepted are {} and {}", name,
                          sampler_name(Sampler::kExact), sampler_name(Sampler::kTwoDraw)));
}

std::string_view sampler_name(Sampler sampler) {
  return sampler == Sampler::kExact ? "mvue" : "mvue-two-draw";
}

int64_t sampled_cells(int64_t outs, const Pattern& pattern) {
  if (pattern.share() == 1) return outs;
  return outs / pattern.block() * pattern.group() +
         std::min<int64_t>(outs % pattern.block(), pattern.group());
}

void check_sampling(const SampleOptions& options, int64_t tokens, int64_t outs) {
  const Pattern& p = options.pattern;
  WEFT_CHECK(options.sampler != Sampler::kTwoDraw || (p.keep() == 2 && p.group() == 4),
             "{} is for 2:4 only, not {}; {} takes any pattern", sampler_name(Sampler::kTwoDraw),
             p.str(), sampler_name(Sampler::kExact));
  WEFT_CHECK(tokens >= 0 && outs >= 0, "a gradient of {} x {}", tokens, outs);
  WEFT_CHECK(options.first_group >= 0 &&
                 options.first_group <= std::numeric_limits<int64_t>::max() - tokens,
             "first group {}: accepted are 0 and more", options.first_group);
  WEFT_CHECK(options.first_cell >= 0 && outs <= kMaxCells &&
                 options.first_cell <= kMaxCells - sampled_cells(outs, p),
             "{} outputs from cell {} on, accepted are cells below 2^32", outs, options.first_cell);
}

void sample_cells(MatrixView<const float> g, const SampleOptions& options,
                  MatrixView<float> scales) {
  check_sampling(options, g.rows, g.cols);
  const Pattern& pattern = options.pattern;
  check_view("g", g.rows, g.cols, g.rows, g.cols, g.data, g.row_stride);
  check_view("scales", scales.rows, scales.cols, g.rows, sampled_cells(g.cols, pattern),
             scales.data, scales.row_stride);
  if (pattern.keep() == pattern.group()) {
    for (int64_t t = 0; t < g.rows; ++t) std::fill_n(scales.row(t), scales.cols, 1.0f);
    return;
  }
  ColumnsJob job;
  job.magnitudes = g;
  job.scales = scales;
  job.keep = pattern.keep();
  job.group = pattern.group();
  job.sampler = options.sampler;
  job.key = philox_key(options.key);
  job.first_group = options.first_group;
  job.first_cell = options.first_cell;
  if (pattern.share() > 1) {  // norms stand where the scales will
    cell_norms(g, pattern, scales);
    job.magnitudes = scales;
  }
  sample_columns(job);
}

void sample_scales(MatrixView<const float> g, const SampleOptions& options,
                   MatrixView<float> scales) {
  check_sampling(options, g.rows, g.cols);
  check_view("scales", scales.rows, scales.cols, g.rows, g.cols, scales.data, scales.row_stride);
  const Pattern& pattern = options.pattern;
  const int64_t outs =
      pattern.share() == 1 ? kTileOuts : ceil_div(kTileOuts, pattern.block()) * pattern.block();
  const int64_t tokens = kTileGroups * pattern.group();
  const int64_t across = ceil_div(g.cols, outs);
  parallel_for(ceil_div(g.rows, tokens) * across, [&](int64_t item) {
    const int64_t first_token = item / across * tokens, first_out = item % across * outs;
    const int64_t rows = std::min(tokens, g.rows - first_token);
    const int64_t cols = std::min(outs, g.cols - first_out);
    const auto from = g.rows_from(first_token, rows).cols_from(first_out, cols);
    const auto to = scales.rows_from(first_token, rows).cols_from(first_out, cols);
    SampleOptions here = options;
    here.first_group += first_token / pattern.group();
    here.first_cell += sampled_cells(first_out, pattern);
    if (pattern.share() == 1) return sample_cells(from, here, to);
    const int64_t cells = sampled_cells(cols, pattern);
    AlignedBuffer<float> scratch(static_cast<size_t>(rows * cells));
    const MatrixView<float> of_cells(scratch.data(), rows, cells);
    sample_cells(from, here, of_cells);
    spread(of_cells, pattern, to);
  });
}

std::vector<uint32_t> inclusion_units(std::span<const float> group, int keep) {
  check_group(group, keep);
  std::vector<uint32_t> units(group.size());
  OneGroup job;
  job.magnitudes = group;
  job.keep = keep;
  job.units = units;
  sample_one_group(job);
  return units;
}

std::vector<float> scales_of_group(std::span<const float> group, int keep, Sampler sampler,
                                   std::array<uint32_t, 2> words) {
  check_group(group, keep);
  WEFT_CHECK(sampler != Sampler::kTwoDraw || (keep == 2 && group.size() <= 4),
             "{} keeps 2 of 4, not {} of {}", sampler_name(sampler), keep, group.size());
  std::vector<float> scales(group.size());
  OneGroup job;
  job.magnitudes = group;
  job.keep = keep;
  job.sampler = sampler;
  job.words = words;
  job.scales = scales;
  sample_one_group(job);
  return scales;
}

}  // namespace weft
