#include "weft/train/trainer/run_setup.h"

#include <fmt/format.h>
#include <torch/version.h>

#include <filesystem>
#include <span>

#include "weft/core/isa.h"
#include "weft/core/text.h"
#include "weft/core/version.h"
#include "weft/kernel/dense.h"
#include "weft/train/data/checksum.h"
#include "weft/train/run/read_file.h"

namespace weft {

Json environment_json(int threads) {
  return {{"weft", kVersion},
          {"torch", TORCH_VERSION},
          {"threads", threads},
          {"isa", current_isa()},
          {"dense_isa", dense_isa()}};
}

std::string run_name(const RunOptions& options, uint32_t data) {
  Json all = options.to_json();
  for (const char* name : {"threads", "plan", "checkpoint-every", "export"}) all.erase(name);
  const std::string text = all.dump();
  return fmt::format("{:08x}-{:08x}", checksum(0, std::as_bytes(std::span(text))), data);
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

TrainingPlan training_plan(const RunOptions& options, std::shared_ptr<Planner> planner) {
  TrainingPlan plan;
  plan.recipe = options.recipe;
  plan.pattern = Pattern::parse(options.pattern);
  for (const std::string& text : options.rules) {
    const RunRule rule = parse_rule(text, plan.pattern);
    plan.rules.push_back({rule.layers, rule.recipe, rule.pattern});
  }
  plan.first_and_last_dense = !options.sparse_ends;
  plan.total_steps = options.steps;
  plan.seed = static_cast<uint64_t>(options.seed);
  plan.micro_batches = static_cast<int>(options.accumulate);
  plan.telemetry = true;
  plan.planner = std::move(planner);
  return plan;
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
        entry[kind_name(one.kind)] = {{"choice", choice_name(one.choice)}, {"reason", one.reason}};
      }
    }
    list.push_back(std::move(entry));
  }
  return list;
}

}  // namespace weft
