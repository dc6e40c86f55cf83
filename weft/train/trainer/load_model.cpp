#include "weft/train/trainer/load_model.h"

#include <re2/re2.h>

#include "weft/checkpoint/plan.h"
#include "weft/core/text.h"
#include "weft/train/run/run_folder.h"
#include "weft/train/trainer/export_model.h"
#include "weft/train/trainer/tensor_file.h"

namespace weft {
namespace {

// A trained mask does not change: `static`, sparse from its first step, or, along both axes,
// `transposable`; so that the planner is asked what it was asked in training.
TrainingPlan plan_of(const SparsityPlan& promises, const RunOptions& options,
                     std::shared_ptr<Planner> planner) {
  TrainingPlan plan;
  for (const auto& [name, promise] : promises.tensors) {
    const std::string layer = name.substr(0, name.size() - std::string_view(".weight").size());
    const bool both = promise.axis == Axis::kBoth;
    plan.rules.push_back(
        {RE2::QuoteMeta(layer), both ? "transposable" : "static+dense_head=0", promise.pattern});
  }
  plan.rules.push_back({".*", "dense", Pattern(2, 4)});
  plan.total_steps = 1;
  plan.micro_batches = static_cast<int>(options.accumulate);
  plan.planner = std::move(planner);
  return plan;
}

}  // namespace

RunParts load_model(const std::filesystem::path& folder, const std::string& data) {
  const Json record = read_run_record(folder);
  RunParts parts;
  parts.options = resume_options(folder).resolved();
  if (!data.empty()) parts.options.data = data;
  parts.options.check();
  parts.source = make_batch_source(parts.options);
  parts.model = make_model(parts.options, parts.source->shape());
  const auto path = folder / "model.safetensors";
  std::error_code failure;
  WEFT_CHECK(std::filesystem::exists(path, failure),
             "{}: the run has no model yet: go on with `weft train --resume`",
             printable(folder.string(), 4096));
  const TensorFile file = read_tensors(path);
  const std::set<const void*> of_recipes = recipe_tensors(*parts.model);
  {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parts.model->named_parameters()) {
      parameter.value().copy_(file.like(parameter.value(), parameter.key()));
    }
    for (auto& buffer : parts.model->named_buffers()) {
      if (of_recipes.contains(buffer.value().unsafeGetTensorImpl())) continue;
      buffer.value().copy_(file.like(buffer.value(), buffer.key()));
    }
  }
  auto planner = std::make_shared<Planner>();
  remember_plan(*planner, record["plan"], printable(folder.string(), 4096) + "/run.json");
  sparsify(*parts.model,
           plan_of(SparsityPlan::from_metadata(file.metadata, file.name), parts.options, planner));
  return parts;
}

}  // namespace weft
