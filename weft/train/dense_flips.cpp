#include "weft/train/dense_flips.h"

#include <map>

#include "weft/recipe/schedule.h"
#include "weft/torch/state_tensors.h"

namespace weft {
namespace {

// Layers with equal keys have equal masks as long as they have equal weights.
std::string mask_key(const LayerSettings& settings) {
  const Recipe& recipe = settings.recipe;
  const Schedule& s = recipe.schedule;
  const ForwardPart& part = *recipe.forward;
  const std::string_view forward = part.masks_of.empty() ? part.name : part.masks_of;
  return fmt::format("{} {} {} {} {} {} {} {}", forward, recipe.mask_solver().name,
                     settings.pattern.str(), mask_interval(recipe, settings.pattern), s.order_every,
                     s.order_end, s.dense_head, s.dense_tail);
}

}  // namespace

DenseFlips::DenseFlips(torch::nn::Module& model, const std::vector<Counted>& counted) {
  std::map<std::pair<const LayerModule*, std::string>, size_t> known;
  std::map<const LayerModule*, int> on_layer;
  for (const Counted& one : counted) {
    names_.push_back(one.name);
    std::vector<size_t>& own = of_each_.emplace_back();
    sparsify(model, one.plan);
    for (const auto& [name, layer] : layers_of(model)) {
      if (layer->always_dense() || layer->settings().recipe.forward->scores != nullptr) {
        continue;
      }
      const auto key = std::pair(layer.get(), mask_key(layer->settings()));
      const auto [place, fresh] = known.try_emplace(key, shadows_.size());
      own.push_back(place->second);
      if (!fresh) continue;
      Shadow shadow{FollowedMask(layer, layer->settings())};
      const int number = on_layer[layer.get()]++;
      const auto buffer = [&](const char* part, const torch::Tensor& first) {
        return layer->register_buffer(fmt::format("flips{}_{}", number, part), first);
      };
      shadow.mask = buffer("mask", empty_words());
      shadow.row_order = buffer("row_order", empty_words());
      shadow.counts = buffer("counts", torch::zeros({3}, torch::kLong));
      shadows_.push_back(std::move(shadow));
    }
  }
}

void DenseFlips::begin() {
  for (Shadow& shadow : shadows_) {
    shadow.followed.state = LayerState();
    shadow.counts.set_data(torch::zeros({3}, torch::kLong));
    update(shadow, 0);
  }
}

void DenseFlips::restore(int64_t step) {
  for (Shadow& shadow : shadows_) {
    FollowedMask& followed = shadow.followed;
    const WeightShape shape = followed.layer->weight_shape();
    const std::string context = fmt::format("the flips of {}", followed.settings.label);
    WEFT_CHECK(shadow.counts.numel() == 3, "{}: {} counts instead of 3", context,
               shadow.counts.numel());
    LayerState& state = followed.state;
    state = LayerState();
    state.step = state.refreshed = step;
    state.begun = true;
    state.forward =
        mask_from(array_of(shadow.mask, "mask", context), shape.outs, shape.cols(), context);
    state.row_order =
        permutation_from(array_of(shadow.row_order, "row_order", context), shape.outs, context);
  }
}

void DenseFlips::count(int64_t step) {
  for (Shadow& shadow : shadows_) update(shadow, step);
}

void DenseFlips::update(Shadow& shadow, int64_t step) {
  FollowedMask& followed = shadow.followed;
  int64_t* counts = shadow.counts.data_ptr<int64_t>();
  followed.pending = counts[2];
  const std::optional<int64_t> changed = followed.follow(step);
  shadow.changed = changed.value_or(0);
  shadow.compared = changed ? followed.layer->weight.numel() : 0;
  counts[0] += shadow.changed;
  counts[1] += shadow.compared;
  counts[2] = followed.pending;
  shadow.mask.set_data(tensor_of(state_array("mask", followed.state.forward)));
  shadow.row_order.set_data(tensor_of(state_array("row_order", followed.state.row_order)));
}

DenseFlips::Rates DenseFlips::rates(size_t counted) const {
  int64_t changed = 0, compared = 0, all_changed = 0, all_compared = 0;
  for (const size_t i : of_each_.at(counted)) {
    const Shadow& shadow = shadows_[i];
    changed += shadow.changed;
    compared += shadow.compared;
    all_changed += shadow.counts[0].item<int64_t>();
    all_compared += shadow.counts[1].item<int64_t>();
  }
  const auto share = [](int64_t part, int64_t whole) {
    return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
  };
  return {share(changed, compared), share(all_changed, all_compared)};
}

}  // namespace weft
