// A second implementation of every recipe.
//
// It is a page of dense torch in double, written from the formulas of the papers and not from the
// layers: no packing, no kernels, no autograd, every mask by sorting or by trying all. Two things
// are borrowed, because they are random: the sample of an MVUE gradient, which is drawn by
// estimate/mvue.h for the same key, and the permutation of Bi-Mask.
// Subsets of LBC are in the order of their bits, in both.
#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "weft/core/pattern.h"

namespace weft::reference {

using torch::Tensor;

// Fifty and a few: the half and the sixth of which schedules speak are whole numbers of steps.
inline constexpr int64_t kSteps = 54;
inline constexpr double kLearningRate = 0.02;
inline constexpr double kMomentum = 0.9;
// Larger than any paper's, so that a decay that is wrong by a tenth is seen.
inline constexpr double kLambda = 0.02;

// Rounding also decides between weights that are all but equal, and then the two would part: one
// run in a hundred has such a pair. What is within this share of the largest may go either way, and
// the reference goes the way of the layer.
inline constexpr double kTie = 1e-5;

// What the layer chose, for ties and for what is random: 1 where it did.
struct Choices {
  Tensor forward, backward;  // [taps, outs, ins]
  Tensor alive;              // [taps, cells, groups, subsets]; undefined: not LBC
  std::vector<int64_t> permutation;
};

// `scores` with ties decided as they were chosen.
inline Tensor decided(const Tensor& scores, const Tensor& chosen) {
  return scores + kTie * scores.abs().max() * chosen;
}

// A row of the table of recipes.
struct Method {
  bool transposable = false;  // masks of whole tiles
  bool soft = false;          // β · soft threshold
  bool combinations = false;  // LBC
  bool bi_mask = false;       // a backward mask of its own
  bool masked = false;        // no dW where the mask is 0
  bool sampled = false;       // dW by MVUE
  bool decays = false;        // λ (1 − m) W
  int64_t mask_every = 1;     // 0: one mask for good
  int64_t first_sparse = 0;   // steps [first_sparse, first_dense) are sparse
  int64_t first_dense = kSteps;
};

// Parts of two papers: all three products are sparse.
inline const char* const kAllSparse = "s-ste+backward=bi-mask";
// Hubara's static mode, and the interval of the paper.
inline const char* const kFixedTransposable = "static+forward=transposable";
inline const char* const kEveryForty = "transposable+mask_every=40";

inline Method method_of(const std::string& recipe) {
  if (recipe == "dense") return {.first_dense = 0};
  if (recipe == "ste") return {};
  if (recipe == "sr-ste") return {.decays = true};
  if (recipe == "static") return {.masked = true, .mask_every = 0, .first_sparse = kSteps / 2};
  if (recipe == kFixedTransposable) {
    return {.transposable = true, .masked = true, .mask_every = 0, .first_sparse = kSteps / 2};
  }
  if (recipe == "transposable") return {.transposable = true, .decays = true};
  if (recipe == kEveryForty) return {.transposable = true, .decays = true, .mask_every = 40};
  if (recipe == "t-sr-ste") {
    return {
        .transposable = true, .sampled = true, .decays = true, .first_dense = kSteps - kSteps / 6};
  }
  if (recipe == "bi-mask") return {.bi_mask = true, .decays = true};
  if (recipe == "lbc") return {.combinations = true, .masked = true};
  if (recipe == "s-ste") return {.soft = true, .sampled = true};
  if (recipe == kAllSparse) return {.soft = true, .bi_mask = true, .sampled = true};
  throw std::invalid_argument("no reference for " + recipe);
}

// What a recipe's name says besides its method.
inline const std::string kFp8 = "+fp8";
inline bool has_fp8(const std::string& recipe) { return recipe.ends_with(kFp8); }
inline std::string without_fp8(const std::string& recipe) {
  return has_fp8(recipe) ? recipe.substr(0, recipe.size() - kFp8.size()) : recipe;
}

// FP8 as the paper of S-STE simulates it, in double: an operand is scaled so that its largest entry
// becomes the largest number of the format, rounded to the nearest, ties to even, and scaled back.
enum class Format { kNone, kE4m3, kE5m2 };

struct Rounded {
  Tensor value;
  Tensor doubt;  // the unit of what is so near to a tie that fp32 may take its other side; else 0
};

inline Rounded fake_quantised(const Tensor& x, Format format) {
  const bool e4m3 = format == Format::kE4m3;
  const double most = x.abs().max().item<double>();
  if (format == Format::kNone || most == 0.0) return {x, torch::zeros_like(x)};
  const double scale = (e4m3 ? 448.0 : 57344.0) / most;
  const Tensor scaled = x * scale;
  // Exponents below that of the smallest normal number are those of subnormals, which share it.
  const Tensor exponent = torch::floor(torch::log2(scaled.abs())).clamp_min(e4m3 ? -6.0 : -14.0);
  const Tensor unit = torch::exp2(exponent - (e4m3 ? 3.0 : 2.0));
  const Tensor units = scaled / unit;
  const Tensor tie = ((units - torch::floor(units) - 0.5).abs() < kTie).to(torch::kDouble);
  return {torch::round(units) * unit / scale, tie * unit / scale};
}

// A result, and by how much it may differ where an operand is in doubt.
struct Product {
  Tensor value, slack;
};

inline Product product(const Rounded& a, const Rounded& b) {
  return {torch::matmul(a.value, b.value),
          torch::matmul(a.doubt, b.value.abs() + b.doubt) + torch::matmul(a.value.abs(), b.doubt)};
}

// The format of each operand: of Y = X W̃ᵀ, of dX = G W̃', and of dW = Gᵀ X, where a sample of G is
// drawn before it is rounded.
struct Formats {
  Format x = Format::kE4m3, w = Format::kE4m3;
  Format dx_g = Format::kE5m2, dx_w = Format::kE5m2;
  Format dw_g = Format::kE5m2, dw_x = Format::kE5m2;
};
inline constexpr Formats kUnrounded{Format::kNone, Format::kNone, Format::kNone,
                                    Format::kNone, Format::kNone, Format::kNone};

// 0/1 rows: the numbers of `bits` bits that `wanted` accepts.
template <typename Wanted>
Tensor bit_rows(int bits, Wanted wanted) {
  std::vector<Tensor> rows;
  for (unsigned number = 0; number < 1u << bits; ++number) {
    if (!wanted(number)) continue;
    Tensor row = torch::zeros({bits}, torch::kDouble);
    for (int i = 0; i < bits; ++i) row[i] = static_cast<double>((number >> i) & 1);
    rows.push_back(row);
  }
  return torch::stack(rows);
}

// All 4 x 4 masks with `keep` in every row and column: [90, 16] for 2:4, [24, 16] for 1:4.
inline const Tensor& transposable_tiles(int keep) {
  static std::map<int, Tensor> known;
  Tensor& tiles = known[keep];
  if (!tiles.defined()) {
    tiles = bit_rows(16, [&](unsigned tile) {
      for (int i = 0; i < 4; ++i) {
        if (std::popcount(tile & (0xfu << 4 * i)) != keep) return false;
        if (std::popcount(tile & (0x1111u << i)) != keep) return false;
      }
      return true;
    });
  }
  return tiles;
}

// 1 on the `count` largest along the last axis; of equal ones the first.
inline Tensor largest(const Tensor& values, int64_t count) {
  const Tensor order = std::get<1>(values.sort(/*stable=*/true, /*dim=*/-1, /*descending=*/true));
  return torch::zeros_like(values).scatter(-1, order.narrow(-1, 0, count), 1.0);
}

// Weights are [taps, outs, ins] here, a linear layer has one tap: groups run along the last axis,
// and rows that share are `group` apart in blocks of share * group.
class Reference {
 public:
  Tensor w, b;  // [taps, outs, ins], [outs]

  Reference(const std::string& recipe, const Pattern& pattern, double lambda,
            const Formats& formats, Tensor weights, Tensor bias)
      : w(std::move(weights)),
        b(std::move(bias)),
        method_(method_of(recipe)),
        formats_(formats),
        lambda_(lambda),
        keep_(pattern.keep()),
        group_(pattern.group()),
        share_(pattern.share()),
        w_speed_(torch::zeros_like(w)),
        b_speed_(torch::zeros_like(b)) {
    if (method_.soft) {
      const Tensor s = soft_threshold();
      beta_ = ((w * s).sum() / (s * s).sum()).item<double>();
    }
    if (!method_.combinations) return;
    subsets_ = bit_rows(group_, [&](unsigned set) { return std::popcount(set) == keep_; });
    const double of_one_weight = subsets_.select(1, 0).sum().item<double>();  // C(M − 1, N − 1)
    scores_ = torch::full_like(in_groups(cell_sums(w)).matmul(subsets_.t()), 1.0 / of_one_weight);
    alive_ = torch::ones_like(scores_);
    scores_speed_ = torch::zeros_like(scores_);
  }

  // W̃ of this step, and what dX multiplies with.
  Tensor forward_operand(int64_t step, const Choices& choices) {
    sparse_ = step >= method_.first_sparse && step < method_.first_dense;
    if (!sparse_) return forward_ = backward_ = w;
    const bool due = method_.mask_every > 0 && step % method_.mask_every == 0;
    if (due || step == method_.first_sparse) mask_ = find_mask(step, choices);
    forward_ = method_.soft ? beta_ * soft_threshold() : mask_ * w;
    backward_ = method_.bi_mask ? backward_mask(choices) * forward_ : forward_;
    return forward_;
  }

  // u: [taps, ins, tokens], g: [outs, tokens]
  Product y(const Tensor& u) const {
    const auto [value, slack] =
        product(fake_quantised(forward_, formats_.w), fake_quantised(u, formats_.x));
    return {value.sum(0) + b.unsqueeze(1), slack.sum(0)};
  }
  Product du(const Tensor& g) const {
    const auto [value, doubt] = fake_quantised(backward_, formats_.dx_w);
    return product({value.transpose(1, 2), doubt.transpose(1, 2)},
                   fake_quantised(g, formats_.dx_g));
  }
  // scales: of the MVUE sample of g.
  Product dw(const Tensor& g, const Tensor& scales, const Tensor& u) const {
    const auto [value, doubt] = fake_quantised(u, formats_.dw_x);
    const Tensor sample = sparse_ && method_.sampled ? g * scales : g;
    Product dw = product(fake_quantised(sample, formats_.dw_g),
                         {value.transpose(1, 2), doubt.transpose(1, 2)});
    if (sparse_ && method_.masked) dw.value = dw.value * mask_;
    return dw;
  }

  Tensor& scores() { return scores_; }  // of LBC; undefined otherwise

  void step(const Tensor& g, Tensor dw) {
    if (method_.combinations) {
      // Where the mask is 0 no subset is alive.
      const Tensor of_subsets = in_groups(cell_sums(dw * w)).matmul(subsets_.t());
      descend(scores_, scores_speed_, of_subsets * alive_);
    }
    if (sparse_ && method_.decays) dw = dw + lambda_ * (1.0 - mask_) * w;
    descend(w, w_speed_, dw);
    descend(b, b_speed_, g.sum(1));
  }

 private:
  static void descend(Tensor& at, Tensor& speed, const Tensor& gradient) {
    speed = kMomentum * speed + gradient;
    at = at - kLearningRate * speed;
  }

  Tensor in_groups(const Tensor& rows) const {
    return rows.reshape({rows.size(0), rows.size(1), -1, group_});
  }
  // [taps, outs, ins] -> [taps, cells, ins] and back, by sums and by repetition.
  Tensor cell_sums(const Tensor& rows) const {
    const int64_t taps = rows.size(0), ins = rows.size(2);
    return rows.reshape({taps, -1, share_, group_, ins}).sum(2).reshape({taps, -1, ins});
  }
  Tensor of_cells(const Tensor& cells) const {
    const int64_t taps = cells.size(0), ins = cells.size(-1);
    return cells.reshape({taps, -1, 1, group_, ins})
        .expand({-1, -1, share_, -1, -1})
        .reshape({taps, -1, ins});
  }

  Tensor find_mask(int64_t step, const Choices& choices) {
    const Tensor sizes = decided(w.abs(), choices.forward);
    if (method_.transposable) return transposable_mask(sizes);
    if (method_.combinations) return union_mask(step, choices);
    const Tensor sums = cell_sums(sizes);
    return of_cells(largest(in_groups(sums), keep_).reshape(sums.sizes()));
  }

  // w max(0, 1 − τ / s), which is sign(w) max(0, |w| − τ) where nothing is shared.
  Tensor soft_threshold() const {
    const Tensor sums = cell_sums(w.abs());
    const Tensor s = in_groups(sums);
    const Tensor tau = std::get<0>(s.sort(-1)).narrow(-1, group_ - keep_ - 1, 1);
    return w * of_cells((1.0 - tau / s).clamp_min(0.0).reshape(sums.sizes()));
  }

  // The best of all masks of a tile; shared, of the sum of share x share tiles. Blocks that end at
  // the edge are filled up with zeros, which do not count.
  Tensor transposable_mask(const Tensor& sizes) const {
    const int64_t block = share_ * group_, outs = w.size(1), ins = w.size(2);
    const auto missing = [&](int64_t size) { return (block - size % block) % block; };
    const Tensor filled = torch::constant_pad_nd(sizes, {0, missing(ins), 0, missing(outs)});
    const int64_t down = filled.size(1) / block, across = filled.size(2) / block;
    const Tensor tiles = filled.reshape({-1, down, share_, group_, across, share_, group_})
                             .sum({2, 5})
                             .transpose(2, 3)
                             .reshape({-1, group_ * group_});
    const Tensor& all = transposable_tiles(keep_);
    return all.index_select(0, tiles.matmul(all.t()).argmax(1))
        .reshape({-1, down, across, 1, group_, 1, group_})
        .expand({-1, -1, -1, share_, -1, share_, -1})
        .permute({0, 1, 3, 4, 2, 5, 6})
        .reshape(filled.sizes())
        .slice(1, 0, outs)
        .slice(2, 0, ins);
  }

  // LBC: the lowest scores are removed, and what an alive subset holds is kept.
  Tensor union_mask(int64_t step, const Choices& choices) {
    const double left = std::max(0.0, 1.0 - static_cast<double>(step) / (kSteps / 2));
    const double removable = static_cast<double>(subsets_.size(0) - 1);
    const int64_t count = 1 + static_cast<int64_t>(std::ceil(removable * left * left * left));
    const double never = -std::numeric_limits<double>::infinity();
    const Tensor scores = choices.alive.defined() ? decided(scores_, choices.alive) : scores_;
    alive_ = largest(scores.masked_fill(alive_ == 0, never), count);
    const Tensor held = (alive_.matmul(subsets_) > 0).to(torch::kDouble);
    return of_cells(held.reshape({w.size(0), -1, w.size(2)}));
  }

  // Of what the forward mask keeps, the largest of each group of permuted outputs, at one input.
  Tensor backward_mask(const Choices& choices) const {
    const Tensor order = torch::tensor(choices.permutation);
    const Tensor sizes = decided(forward_.abs(), choices.backward);
    const Tensor columns = sizes.index_select(1, order).transpose(1, 2);
    const Tensor kept = largest(in_groups(columns), keep_).reshape(columns.sizes());
    return mask_ * torch::zeros_like(w).index_copy(1, order, kept.transpose(1, 2));
  }

  Method method_;
  Formats formats_;
  double lambda_;
  int keep_, group_, share_;
  bool sparse_ = false;
  Tensor forward_, backward_, mask_;
  double beta_ = 1.0;
  Tensor subsets_, scores_, alive_;  // [C, group], [taps, cells, groups, C], the same with 0 and 1
  Tensor w_speed_, b_speed_, scores_speed_;
};

}  // namespace weft::reference
