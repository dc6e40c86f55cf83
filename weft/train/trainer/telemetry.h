// What the layers of a model did in a step, for metrics.jsonl.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>

#include "weft/core/json.h"
#include "weft/train/layers/layer.h"

namespace weft {

struct ModelTelemetry {
  int64_t recipes = 0;     // layers with a recipe that prunes
  int64_t weights = 0;     // of these
  double density = 1.0;    // of their forward operands
  double flip_rate = 0.0;  // changed mask bits per weight
  LayerTimes times;        // of all layers
  std::set<std::string> sparse_products;
  Json layers = Json::object();  // by name, those with a recipe
};

ModelTelemetry telemetry_of(const std::map<std::string, std::shared_ptr<Layer>>& layers,
                            bool costly);

// How often the masks that dense layers would have change from step to step: what the flip rate of
// a recipe is compared with. For a model whose layers are all dense.
class DenseFlips {
 public:
  DenseFlips(torch::nn::Module& model, const Pattern& pattern);
  // Since the last call. The telemetry's own rate, if the model has recipes.
  double rate(const ModelTelemetry& telemetry);

 private:
  std::vector<std::shared_ptr<Layer>> layers_;
  std::vector<Mask> masks_;
  Pattern pattern_;
};

}  // namespace weft
