// sparsify: the layers of a torch model learn a recipe each, in place; densify undoes it.
//
//   SparsityPlan plan;
//   plan.recipe = "t-sr-ste";                      every layer, but the first and the last
//   plan.rules = {{"attention.*", "dense"}};       except these; the first rule that matches counts
//   for (const LayerReport& layer : sparsify(*model, plan)) ...   what happened, and why
//
// Which layers it reaches: weft::Linear and weft::Conv2d wherever they are, and torch::nn::Linear
// and torch::nn::Conv2d inside a torch::nn::Sequential, which are replaced by weft's. Those take
// over the same parameters under the same names. A torch layer that is a member of some other
// module stays what it is, because C++ code calls it by its type, and the report says so: declare
// it as weft::Linear or weft::Conv2d instead, which take the same options.
//
// Make the optimiser afterwards, of either: lbc adds parameters, and densify makes new ones. A
// layer that is registered in several places is one layer, under its first name; one that is shared
// between two modules is exchanged in the first only.
#pragma once

#include <string>
#include <vector>

#include "weft/train/layers/layer.h"

namespace weft {

struct LayerRule {
  std::string layers;  // a regular expression (RE2) that the whole name must match
  std::string recipe;  // as in Recipe::parse
  Pattern pattern{2, 4};
};

struct SparsityPlan {
  std::vector<LayerRule> rules;
  std::string recipe = "s-ste";  // of layers that no rule matches
  Pattern pattern{2, 4};
  bool first_and_last_dense = true;  // of layers that no rule matches

  int64_t total_steps = 0;
  uint64_t seed = 0;
  int micro_batches = 1;
  bool force_plain = false;
  bool telemetry = false;
  std::shared_ptr<Planner> planner;  // null: one for all layers
};

struct LayerReport {
  std::string name;     // "blocks.0.fc1"
  std::string kind;     // "linear 768 -> 3072"
  std::string recipe;   // what it trains by; "dense" if it is not sparse
  std::string pattern;  // "2:4"; empty if dense
  std::string path;     // "packed", "plain"; "torch" for layers that stay torch's
  std::string reason;   // why it is as it is
};

// Throws Error if a rule is malformed or its recipe makes no sense; then nothing has changed.
std::vector<LayerReport> sparsify(torch::nn::Module& model, const SparsityPlan& plan);

// Sparse weights, no recipe. Layers in a torch::nn::Sequential become torch's again; others stay
// weft's, and dense.
void densify(torch::nn::Module& model);

}  // namespace weft
