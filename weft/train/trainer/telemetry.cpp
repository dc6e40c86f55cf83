#include "weft/train/trainer/telemetry.h"

#include "weft/mask/solver.h"

namespace weft {
namespace {

Json json_of(const LayerTelemetry& t, const Recipe& recipe, bool costly) {
  const auto ms = [](double seconds) { return std::round(1e6 * seconds) * 1e-3; };
  Json entry{{"flip_rate", t.flip_rate},
             {"changed_bits", t.changed_bits},
             {"density", t.forward_density},
             {"backward_density", t.backward_density},
             {"plan", t.plan},
             {"mask_ms", ms(t.times.mask)},
             {"pack_ms", ms(t.times.pack)},
             {"fwd_ms", ms(t.times.products[0])},
             {"bwd_x_ms", ms(t.times.products[1])},
             {"bwd_w_ms", ms(t.times.products[2])}};
  if (costly) entry["retained"] = t.retained;
  if (t.retained_as_rows_lie) entry["retained_as_rows_lie"] = *t.retained_as_rows_lie;
  if (recipe.backward == BackwardPart::kBiMask) entry["backward_kept"] = t.backward_kept;
  if (t.cosine) entry["cosine"] = *t.cosine;
  if (recipe.forward == ForwardPart::kUnion) entry["alive"] = t.alive;
  if (recipe.forward == ForwardPart::kSoft) entry["beta"] = t.beta;
  return entry;
}

// "sparse/dense/-", or "sparse bf16/...": which of the three ran sparse.
void note_products(const std::string& plan, std::set<std::string>& products) {
  size_t begin = 0;
  for (const char* product : {"fwd", "bwd_x", "bwd_w"}) {
    const size_t end = std::min(plan.find('/', begin), plan.size());
    const std::string_view one = std::string_view(plan).substr(begin, end - begin);
    if (one.starts_with(choice_name(Choice::kSparse))) products.insert(product);
    if (end == plan.size()) return;
    begin = end + 1;
  }
}

}  // namespace

ModelTelemetry telemetry_of(const std::map<std::string, std::shared_ptr<Layer>>& layers,
                            bool costly) {
  ModelTelemetry all;
  double kept = 0.0, changed = 0.0;
  for (const auto& [name, layer] : layers) {
    const LayerTelemetry t = layer->telemetry(costly);
    all.times.mask += t.times.mask;
    all.times.pack += t.times.pack;
    for (size_t i = 0; i < 3; ++i) all.times.products[i] += t.times.products[i];
    if (layer->always_dense()) continue;
    const auto weights = static_cast<double>(layer->weight.numel());
    ++all.recipes;
    all.weights += layer->weight.numel();
    kept += t.forward_density * weights;
    changed += static_cast<double>(t.changed_bits);
    note_products(t.plan, all.sparse_products);
    all.layers.append(name, json_of(t, layer->settings().recipe, costly));
  }
  if (all.weights == 0) return all;
  all.density = kept / static_cast<double>(all.weights);
  all.flip_rate = changed / static_cast<double>(all.weights);
  return all;
}

DenseFlips::DenseFlips(torch::nn::Module& model, const Pattern& pattern) : pattern_(pattern) {
  const auto all = layers_of(model);
  for (size_t i = 1; i + 1 < all.size(); ++i) {  // the first and the last stay dense anyway
    const auto& layer = all[i].second;
    if (layer->always_dense() && layer->weight_shape().ins >= pattern.group()) {
      layers_.push_back(layer);
    }
  }
}

double DenseFlips::rate(const ModelTelemetry& telemetry) {
  if (telemetry.recipes > 0) return telemetry.flip_rate;
  int64_t changed = 0, weights = 0;
  std::vector<Mask> masks;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const torch::Tensor weight = layers_[i]->weight.detach().contiguous();
    masks.push_back(find_mask(default_solver(false), weight.data_ptr<float>(),
                              layers_[i]->weight_shape(), pattern_));
    if (!masks_.empty()) changed += Mask::differing(masks_[i], masks.back());
    weights += weight.numel();
  }
  const bool first = masks_.empty();
  masks_ = std::move(masks);
  return first || weights == 0 ? 0.0 : static_cast<double>(changed) / static_cast<double>(weights);
}

}  // namespace weft
