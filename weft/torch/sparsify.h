// sparsify: the layers of a torch model learn a recipe each, in place; densify undoes it.
//
//   SparsifyConfig config;
//   config.recipe = "t-sr-ste";                      every layer, but the first and the last
//   config.rules = {{"attention.*", "dense"}};       except these; the first rule that matches counts
//   for (const LayerReport& layer : sparsify(*model, config)) ...   what happened, and why
//
// It takes weft::Linear and weft::Conv2d, and torch::nn::Linear, torch::nn::Conv2d and the projections
// of torch::nn::MultiheadAttention wherever they are held: in TransformerEncoderLayer too. These keep
// their parameters under their names; a layer of weft is attached to each as a child named "weft",
// which has the state of the recipe and computes when the module multiplies with its weight
// (routed_weight.h). Their member `weight` then serves for that only: go through parameters() for
// anything else. Such a module cannot be clone()d. places.h has the names of layers.
//
// Make the optimiser after sparsify: lbc adds parameters, and weft::step refuses an optimiser that
// does not have them. A layer that is registered in several
// places is one layer, under its first name.
//
// Tied weights, memory that several modules read (b->weight = a->weight, set_data, views, a head and
// its embedding), stay dense in all of them, and the report names the other: tie before sparsify.
#pragma once

#include <string>
#include <vector>

#include "weft/torch/layer_module.h"

namespace weft {

// Why a layer is as it is; LayerReport::reason has the words.
enum class LayerCause : uint8_t {
  kConfig,    // what was asked for all layers
  kRule,      // of the layers that it matches
  kInit,      // what the file promises that the weights come from
  kEnd,       // the first or the last layer stays dense
  kTied,      // its weight is another module's too
  kUnsuited,  // its shape does not go with the recipe
  kNoProduct  // not a layer that weft can compute
};

struct LayerRule {
  std::string layers;  // a regular expression (RE2) that the whole name must match
  std::string recipe;  // as in Recipe::parse
  Pattern pattern{2, 4};
  std::string reason = {};  // of the report; empty: the rule itself
  LayerCause cause = LayerCause::kRule;
};

struct SparsifyConfig {
  std::vector<LayerRule> rules;
  std::string recipe = "s-ste";  // of layers that no rule matches
  Pattern pattern{2, 4};
  bool first_and_last_dense =
      true;  // of layers that no rule matches; the first may be an embedding

  Precision precision = Precision::kFp32;  // of every layer, see LayerSettings
  int64_t total_steps = 0;
  uint64_t seed = 0;
  int micro_batches = 1;
  int64_t replica = 0;  // of a data-parallel run: see LayerSettings
  int64_t replicas = 1;
  bool force_plain = false;
  bool telemetry = false;
  std::shared_ptr<Planner> planner;  // null: one for all layers
};

struct LayerReport {
  std::string name;     // "blocks.0.fc1", "encoder.self_attn.in_proj"
  std::string weight;   // "blocks.0.fc1.weight", "encoder.self_attn.in_proj_weight"
  std::string kind;     // "linear 768 -> 3072"
  std::string recipe;   // what it trains by; "dense" if it is not sparse
  std::string pattern;  // "2:4"; empty if dense
  std::string path;     // "packed", "plain"; "torch" for modules that weft does not compute
  std::string reason;   // why it is as it is, in words
  bool end = false;     // the first or the last layer
  LayerCause cause = LayerCause::kConfig;
};

// Throws Error if a rule is malformed or its recipe makes no sense; then nothing has changed.
std::vector<LayerReport> sparsify(torch::nn::Module& model, const SparsifyConfig& config);

// Whether the whole name of a layer matches a regular expression, as in a rule.
bool matches_a_layer(const std::string& expression, const std::vector<LayerReport>& reports);

// Leaves plain torch layers with the sparse weights in the same parameters, written in place; weft's
// own layers become dense ones.
void densify(torch::nn::Module& model);

}  // namespace weft
