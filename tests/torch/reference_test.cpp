// Every recipe against a second implementation of it, and on a problem that it should learn.
//
// The reference below is a page of dense torch in double, written from the formulas of the papers
// and not from the layers: no packing, no kernels, no autograd, every mask by sorting or by trying
// all. Two things are borrowed, because they are random: the sample of an MVUE gradient, which is
// drawn by estimate/mvue.h for the same key, and the permutation of Bi-Mask.
// Subsets of LBC are in the order of their bits, in both.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <stdexcept>

#include "tests/layers.h"
#include "weft/estimate/mvue.h"
#include "weft/kernel/conv/sparse_conv.h"
#include "weft/recipe/permutation.h"

namespace weft {
namespace {

namespace F = torch::nn::functional;
using test::Kind;
using test::kind_name;
using test::make_input;
using test::make_layer;
using test::settings_of;
using torch::Tensor;

// Fifty and a few: the half and the sixth of which schedules speak are whole numbers of steps.
constexpr int64_t kSteps = 54;
constexpr double kLearningRate = 0.02;
constexpr double kMomentum = 0.9;
// Larger than any paper's, so that a decay that is wrong by a tenth is seen.
constexpr double kLambda = 0.02;

// The layer computes in fp32 and the reference in double, and steps compound what rounding made:
// with 14 seeds the largest difference was 3.3e-6 of the largest entry. S-STE amplifies it (so does
// the reference itself when its weights are rounded to fp32 after every step), to 1.3e-4. Of
// 15 mistakes that were tried the least makes 3e-4, in S-STE 5e-2.
// With FP8 both begin every step from the same weights, so that nothing is amplified.
double bound_for(const std::string& recipe) {
  return recipe.starts_with("s-ste") && !recipe.ends_with("+fp8") ? 5e-4 : 2e-5;
}

// Rounding also decides between weights that are all but equal, and then the two would part: one
// run in a hundred has such a pair. What is within this share of the largest may go either way, and
// the reference goes the way of the layer.
constexpr double kTie = 1e-5;

// What the layer chose, for ties and for what is random: 1 where it did.
struct Choices {
  Tensor forward, backward;  // [taps, outs, ins]
  Tensor alive;              // [taps, cells, groups, subsets]; undefined: not LBC
  std::vector<int64_t> permutation;
};

// `scores` with ties decided as they were chosen.
Tensor decided(const Tensor& scores, const Tensor& chosen) {
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
const char* const kAllSparse = "s-ste+backward=bi-mask";
// Hubara's static mode, and the interval of the paper.
const char* const kFixedTransposable = "static+forward=transposable";
const char* const kEveryForty = "transposable+mask_every=40";

Method method_of(const std::string& recipe) {
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
const std::string kFp8 = "+fp8";
bool has_fp8(const std::string& recipe) { return recipe.ends_with(kFp8); }
std::string without_fp8(const std::string& recipe) {
  return has_fp8(recipe) ? recipe.substr(0, recipe.size() - kFp8.size()) : recipe;
}

// FP8 as the paper of S-STE simulates it, in double: an operand is scaled so that its largest entry
// becomes the largest number of the format, rounded to the nearest, ties to even, and scaled back.
enum class Format { kNone, kE4m3, kE5m2 };

struct Rounded {
  Tensor value;
  Tensor doubt;  // the unit of what is so near to a tie that fp32 may take its other side; else 0
};

Rounded fake_quantised(const Tensor& x, Format format) {
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

Product product(const Rounded& a, const Rounded& b) {
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
constexpr Formats kUnrounded{Format::kNone, Format::kNone, Format::kNone,
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
const Tensor& transposable_tiles(int keep) {
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
Tensor largest(const Tensor& values, int64_t count) {
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

// How the tensors of a layer of tests/layers.h become those of the reference, and back.
struct Geometry {
  Kind kind;
  std::vector<int64_t> x_sizes, y_sizes;
  ConvShape conv;  // of a convolution

  Geometry(Kind kind, const Tensor& x, const Tensor& w) : kind(kind), x_sizes(x.sizes().vec()) {
    if (kind == Kind::kLinear) {
      y_sizes = {x.size(0), x.size(1), w.size(0)};
      return;
    }
    conv = {.images = x.size(0),
            .ins = x.size(1),
            .height = x.size(2),
            .width = x.size(3),
            .outs = w.size(0),
            .kernel_h = w.size(2),
            .kernel_w = w.size(3),
            .stride_h = 2,
            .stride_w = 1,
            .pad_h = 1,
            .pad_w = 0};
    y_sizes = {conv.images, conv.outs, conv.out_height(), conv.out_width()};
  }

  Tensor planes(const Tensor& weights) const {  // [taps, outs, ins]
    const Tensor w = weights.detach().to(torch::kDouble);
    return w.reshape({w.size(0), w.size(1), -1}).permute({2, 0, 1}).contiguous();
  }
  Tensor columns(const Tensor& x) const {  // [taps, ins, tokens]
    if (kind == Kind::kLinear) return x.reshape({1, -1, x.size(-1)}).transpose(1, 2);
    const auto options = F::UnfoldFuncOptions({3, 2}).stride({2, 1}).padding({1, 0});
    return F::unfold(x, options)
        .reshape({conv.images, conv.ins, conv.taps(), conv.positions()})
        .permute({2, 1, 0, 3})
        .reshape({conv.taps(), conv.ins, -1});
  }
  Tensor x(const Tensor& du) const {  // the sum over the columns that an entry is in
    if (kind == Kind::kLinear) return du.transpose(1, 2).reshape(x_sizes);
    const Tensor columns = du.reshape({conv.taps(), conv.ins, conv.images, conv.positions()})
                               .permute({2, 1, 0, 3})
                               .reshape({conv.images, conv.ins * conv.taps(), conv.positions()});
    return F::fold(
        columns,
        F::FoldFuncOptions({conv.height, conv.width}, {3, 2}).stride({2, 1}).padding({1, 0}));
  }
  Tensor outs_first(const Tensor& y) const {  // [outs, tokens]
    const Tensor outs_at_0 = kind == Kind::kLinear ? y.permute({2, 0, 1}) : y.transpose(0, 1);
    return outs_at_0.reshape({outs_at_0.size(0), -1}).to(torch::kDouble);
  }
  Tensor y(const Tensor& outs_first) const {
    if (kind == Kind::kLinear) return outs_first.t().reshape(y_sizes);
    return outs_first.reshape({y_sizes[1], y_sizes[0], y_sizes[2], y_sizes[3]}).transpose(0, 1);
  }
  // 1/π of the sample that a layer draws of g, where it lies.
  Tensor scales(const Tensor& g, const SampleOptions& options) const {
    Tensor found = torch::empty_like(g);
    if (kind == Kind::kLinear) {
      const int64_t outs = g.size(-1), tokens = g.numel() / outs;
      sample_scales({g.data_ptr<float>(), tokens, outs}, options,
                    {found.data_ptr<float>(), tokens, outs});
    } else {
      sample_conv_scales(g.data_ptr<float>(), conv, options, found.data_ptr<float>());
    }
    return found;
  }
};

Tensor tensor_of(const Mask& mask) {
  Tensor bits = torch::zeros({mask.rows(), mask.cols()}, torch::kDouble);
  auto at = bits.accessor<double, 2>();
  for (int64_t row = 0; row < mask.rows(); ++row) {
    for (int64_t col = 0; col < mask.cols(); ++col) at[row][col] = mask.at(row, col) ? 1.0 : 0.0;
  }
  return bits;
}

// [cells, groups of all taps, subsets] -> [taps, cells, groups, subsets]
Tensor taps_first(const Tensor& of_subsets, const LayerModule& layer) {
  const int64_t taps = layer.weight_shape().taps;
  return of_subsets.detach()
      .to(torch::kDouble)
      .reshape({layer.scores.size(0), taps, -1, layer.scores.size(2)})
      .transpose(0, 1);
}

Choices choices_of(const LayerModule& layer, const Geometry& geometry) {
  const LayerState& state = layer.state();
  const auto planes = [&](const Mask& mask) {
    if (mask.rows() == 0) return torch::zeros_like(geometry.planes(layer.weight));
    return geometry.planes(tensor_of(mask).reshape(layer.weight.sizes()));
  };
  Choices choices{planes(state.forward), planes(state.backward), {}, state.permutation};
  if (layer.scores.defined()) choices.alive = taps_first(tensor_of(state.alive), layer);
  if (choices.permutation.empty()) choices.permutation = identity_permutation(layer.weight.size(0));
  return choices;
}

struct Comparison {
  Kind kind;
  std::string pattern;
  std::string layer_recipe, reference_recipe;
  double reference_lambda = kLambda;
  Formats reference_formats = {};  // with +fp8
  PlanMode mode = PlanMode::kSparse;
  bool plain = false;
};

// Trains both from the same weights on the same data: a regression on a dense teacher of the same
// shape, so that every gradient depends on what came before. Empty, or the first disagreement.
std::string disagreement(const Comparison& of) {
  const std::string method = without_fp8(of.reference_recipe);
  const bool fp8 = has_fp8(of.reference_recipe);
  const bool decays = method_of(without_fp8(of.layer_recipe)).decays;
  LayerSettings settings =
      settings_of(decays ? fmt::format("{}+lambda={}", of.layer_recipe, kLambda) : of.layer_recipe,
                  of.pattern, of.mode);
  settings.total_steps = kSteps;
  settings.force_plain = of.plain;
  const auto layer = make_layer(of.kind, settings);
  const Geometry geometry(of.kind, make_input(of.kind, 0), layer->weight);
  torch::manual_seed(9);
  const Tensor teacher = geometry.planes(torch::randn_like(layer->weight) * 0.2);
  torch::optim::SGD optimizer(layer->parameters(),
                              torch::optim::SGDOptions(kLearningRate).momentum(kMomentum));
  const auto bias = [&] { return layer->bias.detach().to(torch::kDouble).clone(); };
  Reference reference(method, settings.pattern, of.reference_lambda,
                      fp8 ? of.reference_formats : kUnrounded, geometry.planes(layer->weight),
                      bias());

  std::string found;
  const auto compare = [&](const char* what, int64_t step, const Tensor& a, const Tensor& b,
                           const Tensor& slack = torch::zeros({}), double factor = 1.0) {
    const Tensor gaps = (a.detach().to(torch::kDouble) - b).abs();
    const double size = b.abs().max().item<double>();
    const double gap = (gaps - slack).max().item<double>() / (size > 0.0 ? size : 1.0);
    if (found.empty() && !(gap < factor * bound_for(of.reference_recipe))) {
      found = fmt::format("{} of step {} differ by {:.2g} of the largest", what, step, gap);
    }
  };
  for (int64_t step = 0; step < kSteps && found.empty(); ++step) {
    Tensor x = make_input(of.kind, static_cast<uint64_t>(100 + step)).requires_grad_(true);
    const Tensor u = geometry.columns(x.detach().to(torch::kDouble));
    const Tensor target = geometry.y(torch::matmul(teacher, u).sum(0)).to(torch::kFloat);
    const double tokens = static_cast<double>(u.size(2));
    if (fp8) {  // what rounds the one way in fp32 and the other in double does not compound
      reference.w = geometry.planes(layer->weight);
      reference.b = bias();
      if (layer->scores.defined() && reference.scores().defined()) {
        reference.scores() = taps_first(layer->scores, *layer);
      }
    }

    optimizer.zero_grad();
    const Tensor y = layer->forward(x);
    const Tensor layer_g = ((y.detach() - target) / tokens).contiguous();
    y.backward(layer_g);
    // The sample is drawn of the layer's own gradient: another last bit could draw another one.
    const Tensor scales =
        geometry.scales(layer_g, {.pattern = settings.pattern,
                                  .key = {settings.seed, static_cast<uint64_t>(step),
                                          static_cast<uint32_t>(settings.number), /*call=*/0}});

    compare("the operands", step, geometry.planes(layer->effective_weight()),
            reference.forward_operand(step, choices_of(*layer, geometry)));
    const Product product_y = reference.y(u);
    const Tensor reference_y = geometry.y(product_y.value);
    const Tensor g = geometry.outs_first(fp8 ? layer_g : (reference_y - target) / tokens);
    const Product du = reference.du(g), dw = reference.dw(g, geometry.outs_first(scales), u);
    const Tensor layer_dw = geometry.planes(layer->weight.grad());
    compare("the outputs", step, y, reference_y, geometry.y(product_y.slack));
    compare("the gradients of the input", step, x.grad(), geometry.x(du.value),
            geometry.x(du.slack));
    // g is the small difference of outputs and targets: rounding is a larger share of it.
    compare("the gradients of the weights", step, layer_dw, dw.value, dw.slack, 5.0);

    weft::step(*layer, optimizer);
    reference.step(g, fp8 ? layer_dw : dw.value);
    compare("the weights", step, geometry.planes(layer->weight), reference.w);
    compare("the biases", step, layer->bias, reference.b);
    // With one subset left scores are of no use, and the layer freezes them.
    if (layer->scores.defined() && reference.scores().defined() && step < kSteps / 2) {
      compare("the scores", step, taps_first(layer->scores, *layer), reference.scores());
    }
  }
  return found;
}

TEST(Reference, AgreesWithEveryRecipe) {
  for (const Kind kind : {Kind::kLinear, Kind::kConv}) {
    for (const Recipe& recipe : recipes()) {
      for (const char* pattern : {"2:4", "1:4", "2:4x2"}) {
        EXPECT_EQ(disagreement({kind, pattern, recipe.name, recipe.name}), "")
            << kind_name(kind) << ' ' << recipe.name << ' ' << pattern;
      }
    }
    for (const char* recipe : {kAllSparse, kFixedTransposable, kEveryForty}) {
      EXPECT_EQ(disagreement({kind, "2:4", recipe, recipe}), "") << kind_name(kind) << recipe;
    }
  }
}

TEST(Reference, TellsEveryRecipeFromEveryOther) {
  // Or else the agreement above would say little.
  for (const Recipe& layer : recipes()) {
    for (const Recipe& reference : recipes()) {
      if (layer.name == reference.name) continue;
      EXPECT_NE(disagreement({Kind::kLinear, "2:4", layer.name, reference.name}), "")
          << layer.name << " passes for " << reference.name;
    }
  }
  for (const char* recipe : {"sr-ste", "transposable", "t-sr-ste", "bi-mask"}) {
    EXPECT_NE(disagreement({Kind::kLinear, "2:4", recipe, recipe, 0.9 * kLambda}), "") << recipe;
  }
}

// Every way to compute a layer: by packs, by dense products of what packs would hold, by torch.
std::vector<Comparison> fp8_comparisons(const std::string& recipe) {
  std::vector<Comparison> found;
  for (const Kind kind : {Kind::kLinear, Kind::kConv}) {
    Comparison sparse{kind, "2:4", recipe, recipe};
    Comparison dense = sparse, plain = sparse;
    dense.mode = PlanMode::kDense;
    plain.plain = true;
    found.insert(found.end(), {sparse, dense, plain});
  }
  return found;
}

std::string name_of(const Comparison& of) {
  return fmt::format("{} {} {}", kind_name(of.kind), of.layer_recipe,
                     of.plain                       ? "plain"
                     : of.mode == PlanMode::kSparse ? "packed"
                                                    : "dense products");
}

TEST(Reference, AgreesWithEveryRecipeInFp8) {
  std::vector<std::string> names = {kAllSparse};
  for (const Recipe& recipe : recipes()) names.push_back(recipe.name);
  for (const std::string& name : names) {
    for (const Comparison& comparison : fp8_comparisons(name + kFp8)) {
      EXPECT_EQ(disagreement(comparison), "") << name_of(comparison);
    }
  }
}

TEST(Reference, AgreesInFp8WhereNothingIsSparse) {
  for (Comparison comparison : fp8_comparisons("s-ste+fp8")) {
    comparison.pattern = "4:4";
    comparison.reference_recipe = "dense+fp8";
    EXPECT_EQ(disagreement(comparison), "") << name_of(comparison);
    comparison.reference_recipe = "dense";
    EXPECT_NE(disagreement(comparison), "") << name_of(comparison);
  }
}

TEST(Reference, TellsTheFormatOfEveryOperandFromTheOtherAndFromNone) {
  const Format others[][2] = {{Format::kE5m2, Format::kNone}, {Format::kE4m3, Format::kNone}};
  Format Formats::*const operands[] = {&Formats::x,    &Formats::w,    &Formats::dx_g,
                                       &Formats::dx_w, &Formats::dw_g, &Formats::dw_x};
  for (const char* recipe : {"s-ste+fp8", "sr-ste+fp8"}) {  // sampled and exact
    for (Comparison comparison : fp8_comparisons(recipe)) {
      for (size_t i = 0; i < std::size(operands); ++i) {
        for (const Format other : others[i < 2 ? 0 : 1]) {
          comparison.reference_formats = {};
          comparison.reference_formats.*operands[i] = other;
          EXPECT_NE(disagreement(comparison), "") << name_of(comparison) << ", operand " << i;
        }
      }
    }
  }
}

// Two layers under one recipe. Mean squared error before the first step and after the last.
std::pair<double, double> losses_of_training(const std::string& recipe,
                                             const std::string& pattern) {
  constexpr int64_t kTeacherSteps = 160;  // a multiple of 40, where masks may be due
  torch::manual_seed(21);
  const Tensor x = torch::randn({64, 16});
  const Tensor y = torch::matmul(torch::tanh(torch::matmul(x, torch::randn({16, 32}) / 4.0)),
                                 torch::randn({32, 8}) / 4.0);
  torch::nn::Sequential student(Linear(16, 32), torch::nn::Tanh(), Linear(32, 8));
  LayerSettings settings = settings_of(recipe, pattern);
  settings.total_steps = kTeacherSteps;
  settings.number = 0;
  for (auto& [name, layer] : layers_of(*student)) {
    layer->configure(settings);
    ++settings.number;
  }
  torch::optim::AdamW optimizer(student->parameters(), torch::optim::AdamWOptions(0.003));
  const auto loss = [&] { return torch::mse_loss(student->forward(x), y); };
  const double before = loss().item<double>();
  for (int64_t step = 0; step < kTeacherSteps; ++step) {
    optimizer.zero_grad();
    loss().backward();
    weft::step(*student, optimizer);
  }
  const torch::NoGradGuard no_grad;
  student->eval();
  return {before, loss().item<double>()};
}

TEST(Teacher, EveryRecipeLearnsIt) {
  std::vector<std::string> names = {kFixedTransposable, kEveryForty, "t-sr-ste+mask_every=40",
                                    "sr-ste+mask_every=40",
                                    "transposable+mask_every=1+solver=greedy-keep"};
  for (const Recipe& recipe : recipes()) names.push_back(recipe.name);
  for (const std::string& recipe : names) {
    for (const char* pattern : {"2:4", "1:4", "4:8", "2:4x2"}) {
      const auto [before, after] = losses_of_training(recipe, pattern);
      // Seen: 0.33 for transposable 1:4, less for all others.
      EXPECT_LT(after, 0.5 * before) << recipe << ' ' << pattern << ": " << after / before;
    }
  }
}

}  // namespace
}  // namespace weft
