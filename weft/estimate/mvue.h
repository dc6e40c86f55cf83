// Minimum-variance unbiased N:M sampling of a gradient, along its tokens.
//
// g [tokens, outs] is cut into groups of pattern.group() consecutive tokens of one output. Of each
// group pattern.keep() entries are kept, at random, and divided by the probability that they were:
//
//   sample_i = a_i / π_i with probability π_i, else 0         so the mean of sample_i is a_i
//   variance = Σ a_i² (1/π_i − 1), least for π_i = min(1, c |a_i|) with Σ π = keep
//
// which is Chmiel et al. (ICLR 2023) for any N:M. kExact finds that π and draws by systematic
// sampling: of a line on which entry i takes up π_i, the points u, u + 1, ... u + keep − 1 are read
// off, with one uniform u for the group. The variance does not depend on which entries come
// together, so this is as good as any draw.
//
// Fixed point. π is a whole number of units of 2^-24: they sum to exactly keep, every entry that is
// not zero has at least one, and u is a whole number too. So the mean is a for the π in use, not up
// to rounding, and no u picks keep + 1 entries. What is kept is multiplied by the float nearest to
// 1/π (1 exactly where π = 1): that rounding, relative 2^-24, is all there is.
//
// A group is always full: if fewer than keep entries are not zero, they are kept as they are, and
// so are zeros from the front. A last group that is short keeps min(keep, its length).
//
// What is not finite does not get lost: a group with NaN or infinity keeps those first (if more
// than keep, some of them), so that the product it goes into shows them. A kept value may overflow
// to infinity if |g| is within keep:group of the largest float.
//
// Shared (2:4x2): the outputs of a cell (core/pattern.h) keep the same tokens, with π from the L2
// norm of the cell at each token.
//
// Random numbers: a function of the key, the token group and the cell (see SampleOptions), so that
// a sample does not depend on threads, instruction sets, or how the work was cut.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "weft/core/matrix_view.h"
#include "weft/core/pattern.h"

namespace weft {

enum class Sampler : uint8_t {
  kExact,    // "mvue": least variance, any pattern
  kTwoDraw,  // "mvue-two-draw": what the papers train with, 2:4 only; see below
};

// kTwoDraw draws i with probability t_i = |a_i| / S, then j ≠ i with |a_j| / (S − |a_i|), and
// divides by the inclusion probability p_i = t_i (1 + Σ_{j≠i} t_j / (1 − t_j)). t is in units too.
// Unbiased; on Gaussian data its variance is 0.50 |a|² where the least is 0.475 |a|², on others up
// to twice the least (tests/estimate/mvue_test.cpp).

// Throws Error that names the samplers there are.
Sampler parse_sampler(std::string_view name);
std::string_view sampler_name(Sampler sampler);

// Which sample: another one for every step, layer, and call of a layer within a step.
struct SampleKey {
  uint64_t seed = 0;
  uint64_t step = 0;
  uint32_t layer = 0;
  uint32_t call = 0;  // micro-batch, or use of a layer that is used more than once
};

// Of a group of tokens and a cell of outputs, counted from those of the whole gradient, the word is
//
//   Rng(Rng(seed, step).bits(layer · 2^32 + call), group / 4).words(cell)[group % 4]
//
// and u its upper 24 bits; the two words of kTwoDraw are 2 (group % 2) and the next, of group / 2.
struct SampleOptions {
  Pattern pattern;
  Sampler sampler = Sampler::kExact;
  SampleKey key = {};
  int64_t first_group = 0;  // of the tokens of g, when g is a part
  int64_t first_cell = 0;   // of the outputs of g; without sharing a cell is an output
};

// scales[t, o] = 1/π where (t, o) is kept, else 0: g * scales is the sample. In parallel.
void sample_scales(MatrixView<const float> g, const SampleOptions& options,
                   MatrixView<float> scales);

// The cells of `outs` outputs that begin a block of pattern.block().
int64_t sampled_cells(int64_t outs, const Pattern& pattern);
// The same scales once for every cell, on the thread of the caller. (kept_sample.h has the sample
// itself, a tile at a time.)
// g: [tokens, outs], beginning with a group and a block; scales: [tokens, sampled_cells(outs)].
void sample_cells(MatrixView<const float> g, const SampleOptions& options,
                  MatrixView<float> scales);
// Throws Error that says what cannot be sampled, as the above do.
void check_sampling(const SampleOptions& options, int64_t tokens, int64_t outs);

// ---- one group, to look at the distribution rather than at draws from it

constexpr uint32_t kProbabilityUnit = 1 << 24;  // probability 1
// π of kExact; with keep = 1 it is the t of kTwoDraw too. group: at most 64 entries
std::vector<uint32_t> inclusion_units(std::span<const float> group, int keep);
// The scales of the group for given words (kExact reads the first only).
std::vector<float> scales_of_group(std::span<const float> group, int keep, Sampler sampler,
                                   std::array<uint32_t, 2> words);

}  // namespace weft
