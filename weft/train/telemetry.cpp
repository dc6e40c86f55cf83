#include "weft/train/telemetry.h"

#include <algorithm>

#include "weft/recipe/schedule.h"

namespace weft {
namespace {

Json json_of(const LayerTelemetry& t, LayerModule& layer, bool costly) {
  const Recipe& recipe = layer.settings().recipe;
  const auto ms = [](double seconds) { return std::round(1e6 * seconds) * 1e-3; };
  Json entry{{"flip_rate", t.flip_rate},
             {"changed_bits", t.changed_bits},
             {"density", t.forward_density},
             {"backward_density", t.backward_density},
             {"plan", layer.path() == LayerPath::kPlain ? "plain" : t.plan_text()},
             {"mask_ms", ms(t.times.mask)},
             {"pack_ms", ms(t.times.pack)},
             {"fwd_ms", ms(t.times.products[0])},
             {"bwd_x_ms", ms(t.times.products[1])},
             {"bwd_w_ms", ms(t.times.products[2])}};
  if (costly) entry["retained"] = t.retained;
  if (t.retained_unpermuted) entry["retained_unpermuted"] = *t.retained_unpermuted;
  if (!recipe.backward->same()) entry["backward_kept"] = t.backward_kept;
  if (t.cosine) entry["cosine"] = *t.cosine;
  for (const Figure& figure : t.figures) entry[std::string(figure.name)] = figure.value;
  return entry;
}

// Which of the three ran sparse, by choice or while that was open.
void note_products(const LayerTelemetry& t, ModelTelemetry& all) {
  for (const Product product : kProducts) {
    const auto i = static_cast<size_t>(product);
    if (!t.products[i] || !t.products[i]->sparse) continue;
    (t.chosen[i] ? all.sparse_products : all.open_products)
        .insert(std::string(product_name(product)));
  }
}

// Whether a layer trained with a mask in the step that is the step-th: then it has one after it
// too, and the two can differ.
bool had_masks(const LayerSettings& settings, int64_t step) {
  return step >= 1 && !is_dense_step(settings.recipe, step - 1, settings.total_steps);
}

}  // namespace

ModelTelemetry telemetry_of(const std::map<std::string, std::shared_ptr<LayerModule>>& layers,
                            bool costly) {
  ModelTelemetry all;
  double kept = 0.0, changed = 0.0, compared = 0.0;
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
    const bool counted = had_masks(layer->settings(), layer->state().step) || t.changed_bits > 0;
    if (counted) compared += weights;
    note_products(t, all);
    all.measured |= t.measured;
    all.layers.append(name, json_of(t, *layer, costly));
  }
  if (all.weights == 0) return all;
  all.density = kept / static_cast<double>(all.weights);
  if (compared > 0.0) all.flip_rate = changed / compared;
  return all;
}

int64_t flip_steps(const std::map<std::string, std::shared_ptr<LayerModule>>& layers,
                   int64_t steps) {
  int64_t found = 0;
  for (int64_t step = 1; step <= steps; ++step) {
    found += std::ranges::any_of(layers, [&](const auto& named) {
      return !named.second->always_dense() && had_masks(named.second->settings(), step);
    });
  }
  return found;
}

}  // namespace weft
