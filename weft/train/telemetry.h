// What the layers of a model did in a step, for metrics.jsonl.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>

#include "weft/core/json.h"
#include "weft/torch/layer_module.h"

namespace weft {

struct ModelTelemetry {
  int64_t recipes = 0;     // layers with a recipe that prunes
  int64_t weights = 0;     // of these
  double density = 1.0;    // of their forward operands
  double flip_rate = 0.0;  // changed mask bits per weight, of layers with a mask before and after
  LayerTimes times;        // of all layers
  std::set<std::string> sparse_products;
  std::set<std::string> open_products;  // that ran sparse while the planner had not decided
  bool measured = false;                // products were computed on every way
  Json layers = Json::object();         // by name, those with a recipe
};

ModelTelemetry telemetry_of(const std::map<std::string, std::shared_ptr<LayerModule>>& layers,
                            bool costly);

// Steps in which some layer had a mask before and after, of a run of `steps`: those that the mean
// of its flip rates is over.
int64_t flip_steps(const std::map<std::string, std::shared_ptr<LayerModule>>& layers,
                   int64_t steps);

}  // namespace weft
