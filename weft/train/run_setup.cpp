#include "weft/train/run_setup.h"

#include <fmt/format.h>
#include <re2/re2.h>
#include <torch/version.h>

#include <filesystem>
#include <span>

#include "weft/core/cpu_name.h"
#include "weft/core/isa.h"
#include "weft/core/regular_file.h"
#include "weft/core/text.h"
#include "weft/core/version.h"
#include "weft/data/checksum.h"
#include "weft/kernel/dense/dense.h"
#include "weft/kernel/tile/tile_unit.h"
#include "weft/run/build_commit.h"
#include "weft/torch/export_model.h"

namespace weft {
namespace {

bool has_fixed_mask(const std::string& recipe) { return Recipe::parse(recipe).has_fixed_mask(); }

// Weights that are trained already need no dense head.
std::string without_head(const std::string& recipe) {
  const bool own_head = recipe.find("+dense_head=") != std::string::npos;
  return has_fixed_mask(recipe) && !own_head ? recipe + "+dense_head=0" : recipe;
}

bool is_taken(const std::string& layer, const std::vector<LayerRule>& rules) {
  return std::ranges::any_of(rules, [&](const LayerRule& rule) {
    return RE2::FullMatch(layer, RE2(rule.layers, RE2::Quiet));
  });
}

// Rules for the layers that match `rule`, with a fixed mask, that the file promises a pattern for.
// A layer that an earlier rule takes has none.
void add_promised(const InitRecord& init, const std::string& file, const LayerRule& rule,
                  std::vector<LayerRule>& rules) {
  if (!has_fixed_mask(rule.recipe)) return;
  const RE2 expression(rule.layers, RE2::Quiet);
  for (const auto& [tensor, promise] : init.sparsity.tensors) {
    const auto layer = layer_of_weight(tensor);
    if (!layer || !RE2::FullMatch(*layer, expression) || is_taken(*layer, rules)) continue;
    WEFT_CHECK(promise.axis != Axis::kOut,
               "{}: tensor '{}' is {} along outputs only, but {} needs masks along inputs: give "
               "the layer a rule, as in {}=dense",
               printable(file, 4096), printable(tensor), promise.pattern.str(), rule.recipe,
               printable(*layer));
    rules.push_back({RE2::QuoteMeta(*layer), rule.recipe, promise.pattern,
                     fmt::format("{}init promises {}{}", rule.reason, promise.pattern.str(),
                                 promise.axis == Axis::kBoth ? " along both axes" : ""),
                     rule.cause});
  }
}

}  // namespace

Json environment_json(int threads, Precision precision, int ranks) {
  Json environment{{"weft", kVersion},        {"commit", build_commit()}, {"torch", TORCH_VERSION},
                   {"cpu", cpu_name()},       {"threads", threads},       {"isa", current_isa()},
                   {"dense_isa", dense_isa()}};
  if (precision == Precision::kBf16) environment["tile_unit"] = tile_unit_name(tile_unit());
  if (ranks > 1) environment["ranks"] = ranks;
  return environment;
}

std::string run_name(const RunOptions& options, uint32_t data,
                     const std::optional<InitRecord>& init,
                     const std::optional<uint32_t>& teacher) {
  Json all = options.to_json();
  all.erase("plan");
  for (const OptionField& field : option_fields()) {
    if (field.may_change) all.erase(field.name);
  }
  const std::string text = all.dump();
  const uint32_t sum = checksum(0, std::as_bytes(std::span(text)));
  std::string name = fmt::format("{:08x}-{:08x}", sum, data);
  if (init) name += fmt::format("-{:08x}", init->checksum);
  if (teacher) name += fmt::format("-taught-{:08x}", *teacher);
  return name;
}

void remember_plan(Planner& planner, const Json& plan, const std::string& file) {
  try {
    planner.remember(plan.dump());
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", file, error.what()));
  }
}

std::shared_ptr<Planner> planner_of(const std::string& plan) {
  if (plan == "auto" || plan == "dense" || plan == "sparse") {
    return std::make_shared<Planner>(parse_plan_mode(plan));
  }
  std::filesystem::path path = plan;
  std::error_code failure;
  if (std::filesystem::is_directory(path, failure)) path /= "run.json";
  const std::string name = printable(path.string(), 4096);
  const Json document = Json::parse(read_small_file(path), name);
  auto planner = std::make_shared<Planner>();
  const bool of_run = document.is_object() && document.contains("plan");
  remember_plan(*planner, of_run ? document["plan"] : document, name);
  return planner;
}

std::shared_ptr<Planner> planner_of_mode(const std::string& plan) {
  const bool mode = plan == "dense" || plan == "sparse";
  return std::make_shared<Planner>(mode ? parse_plan_mode(plan) : PlanMode::kAuto);
}

SparsifyConfig sparsify_config(const RunOptions& options, const std::optional<InitRecord>& init,
                               std::shared_ptr<Planner> planner) {
  SparsifyConfig config;
  config.recipe = init ? without_head(options.recipe) : options.recipe;
  config.pattern = Pattern::parse(options.pattern);
  for (const std::string& text : options.rules) {
    const RunRule given = parse_rule(text, config.pattern);
    LayerRule rule{given.layers, init ? without_head(given.recipe) : given.recipe, given.pattern};
    if (init && !given.own_pattern) {
      rule.reason = fmt::format("rule '{}', ", given.layers);
      add_promised(*init, options.init, rule, config.rules);
      rule.reason.clear();
    }
    config.rules.push_back(rule);
  }
  if (init && !init->sparsity.tensors.empty() && has_fixed_mask(config.recipe)) {
    LayerRule all{".*", config.recipe, config.pattern};
    all.cause = LayerCause::kInit;
    add_promised(*init, options.init, all, config.rules);
    config.rules.push_back(
        {".*", "dense", config.pattern, "init promises no pattern for it", LayerCause::kInit});
  }
  config.first_and_last_dense = !options.sparse_ends;
  config.precision = parse_precision(options.precision);
  config.total_steps = options.steps;
  config.seed = static_cast<uint64_t>(options.seed);
  config.micro_batches = static_cast<int>(options.accumulate);
  config.telemetry = true;
  config.planner = std::move(planner);
  return config;
}

std::vector<std::string> lost_promises(const RunOptions& options, const InitRecord& init,
                                       const std::vector<PlannedLayer>& layers, Model& model) {
  std::map<std::string, std::shared_ptr<LayerModule>> named;
  for (const auto& [name, layer] : layers_of(model)) named[name] = layer;
  const auto parameters = model.named_parameters();
  std::vector<std::string> crowded, narrowed, thawed, unpromised;
  for (const auto& [report, plan, order] : layers) {
    const std::string& tensor = report.weight;
    const torch::Tensor* found = parameters.find(tensor);
    if (found == nullptr) continue;
    const torch::Tensor& weight = *found;
    const bool promised = init.sparsity.tensors.contains(tensor);
    const int64_t nonzero = torch::count_nonzero(weight).item<int64_t>();
    const auto layer = named.find(report.name);
    if (layer != named.end() && layer->second->settings().recipe.has_fixed_mask()) {
      const LayerState& state = layer->second->state();
      if (!promised || !state.sparse() || state.forward.count() == nonzero) continue;
      const bool both = layer->second->settings().recipe.forward->transposable;
      const bool narrower = both && init.sparsity.tensors.at(tensor).axis != Axis::kBoth;
      (narrower ? narrowed : crowded).push_back(tensor);
    } else if (has_fixed_mask(options.recipe) && report.cause != LayerCause::kRule) {
      const int64_t zeros = weight.numel() - nonzero;
      if (promised && zeros > 0) thawed.push_back(tensor);
      if (!promised && zeros > weight.numel() / 100) unpromised.push_back(tensor);
    }
  }
  std::vector<std::string> lines;
  const auto say = [&](const std::vector<std::string>& tensors, const char* what) {
    if (tensors.empty()) return;
    const size_t others = tensors.size() - 1;
    lines.push_back(fmt::format("{}: tensor '{}'{}: {}", printable(options.init, 4096),
                                printable(tensors.front()),
                                others == 0 ? "" : fmt::format(" and {} more", others), what));
  };
  say(crowded,
      "violates the pattern that weft.sparsity promises: only the largest of each group are kept");
  say(narrowed, "promised along inputs only: a transposable mask prunes some of its weights");
  say(thawed, "promised by weft.sparsity, but the layer is not sparse: its zeros will be trained");
  say(unpromised, "has zeros, but no promised pattern: they will be trained");
  return lines;
}

Json layers_json(const std::vector<PlannedLayer>& layers) {
  Json list = Json::array();
  for (const PlannedLayer& layer : layers) {
    const LayerReport& report = layer.report;
    Json entry{{"name", report.name},       {"kind", report.kind}, {"recipe", report.recipe},
               {"pattern", report.pattern}, {"path", report.path}, {"reason", report.reason}};
    if (layer.plan) {
      for (const Product product : kProducts) {
        const ProductPlan& one = (*layer.plan)[product];
        Json& planned = entry[one.form.name()];
        planned = {{"choice", choice_name(one.choice)}, {"reason", one.reason()}};
        if (!one.note.empty()) planned["arithmetic"] = one.note;
      }
    }
    if (layer.order) {
      entry["retained"] = layer.order->retained;
      entry["retained_unpermuted"] = layer.order->retained_unpermuted;
    }
    list.push_back(std::move(entry));
  }
  return list;
}

}  // namespace weft
