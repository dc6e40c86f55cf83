// A run's state made from its options: model, planner, layers, optimiser. Nothing is written yet.
#include <fmt/ranges.h>

#include <ranges>

#include "weft/core/parallel.h"
#include "weft/core/text.h"
#include "weft/train/find_lambda.h"
#include "weft/train/optimizer.h"
#include "weft/train/trainer_state.h"

namespace weft {
namespace {

// The planner decides nothing while this is in scope.
class Preview {
 public:
  explicit Preview(Planner& planner) : planner_(planner) { planner_.preview(true); }
  ~Preview() { planner_.preview(false); }
  Preview(const Preview&) = delete;
  Preview& operator=(const Preview&) = delete;

 private:
  Planner& planner_;
};

// "hidden0, hidden1, head", or the first of many.
std::string named_in_short(const std::vector<LayerReport>& reports) {
  constexpr size_t kNamed = 6;
  std::vector<std::string> names;
  for (const LayerReport& one : reports | std::views::take(kNamed)) names.push_back(one.name);
  return fmt::format("{}{}", fmt::join(names, ", "), reports.size() > kNamed ? ", ..." : "");
}

InitRecord saved_init(const Json& saved, const std::string& file) {
  WEFT_CHECK(saved.contains("init"), "{}: 'init' is missing", file);
  return InitRecord::from_json(saved["init"], file);
}

}  // namespace

Trainer::State::State(RunParts run_parts, const TrainerSetup& setup, const Json* saved,
                      const std::string& file)
    : parts(std::move(run_parts)),
      listener(setup.listener),
      may_change(setup.may_change),
      order(static_cast<uint64_t>(parts.options.seed), parts.source->train_samples()),
      ranks(setup.ranks) {
  const RunOptions& options = parts.options;
  options.check_training();
  set_threads(options.threads > 0 ? static_cast<int>(options.threads) : threads());
  at::set_num_threads(threads());
  planner = setup.planner ? setup.planner
            : saved       ? planner_of_mode(options.plan)
                          : planner_of(options.plan);
  data_checksum = parts.source->fingerprint();
  if (!options.init.empty()) init = saved ? saved_init(*saved, file) : new_init();
  std::optional<uint32_t> taught_by;
  if (parts.teacher != nullptr) taught_by = parts.teacher->checksum();
  position.run = run_name(options, data_checksum, init, taught_by);
  record = Json{{"format", "weft.run"},
                {"version", 1},
                {"options", options.to_json()},
                {"environment", environment_json(threads(), parse_precision(options.precision),
                                                 ranks ? ranks->size() : 1)},
                {"data_crc32", fmt::format("{:08x}", data_checksum)},
                {"status", "running"}};
  if (init) record["init"] = init->to_json();
  if (taught_by) record["teacher_crc32"] = fmt::format("{:08x}", *taught_by);
  if (saved != nullptr) require_same_teacher(*saved, file);
  if (saved != nullptr) best = best_evaluation(*saved, file);
  if (best) record["best"] = to_json(*best);
  const std::vector<DenseFlips::Counted> counted = flips_to_count();
  if (!counted.empty()) dense_flips.emplace(*parts.model, counted);
  std::vector<LayerReport> reports =
      sparsify(*parts.model, sparsify_config(options_of_layers(setup, saved, file), init, planner));
  note_idle_rules(reports);
  for (LayerReport& report : reports) layers.push_back({std::move(report), std::nullopt});
  for (const auto& [name, layer] : layers_of(*parts.model)) named_layers[name] = layer;
  if (init) give_row_orders();
  optimizer = make_optimizer(*parts.model, options);
  parts.model->train();
  if (ranks) join_ranks();
}

RunOptions Trainer::State::options_of_layers(const TrainerSetup& setup, const Json* saved,
                                             const std::string& file) {
  if (!finds_lambda(parts.options)) return parts.options;
  if (saved != nullptr) {
    lambda = found_lambda(*saved, file);
    WEFT_CHECK(lambda, "{}: 'lambda' is missing, which decay=auto has found", file);
  } else if (ranks && !ranks->is_first()) {
    const std::string where = "the record of rank 0";
    lambda = found_lambda(Json::parse(ranks->text_of_first(""), where), where);
  } else {
    lambda = find_lambda(parts, init, setup.stop, [this](const std::string& text) { note(text); });
    if (ranks) ranks->text_of_first(Json{{"lambda", to_json(*lambda)}}.dump());
  }
  record["lambda"] = to_json(*lambda);
  return with_lambda(parts.options, lambda->lambda);
}

void Trainer::State::require_same_teacher(const Json& saved, const std::string& file) const {
  const auto sum_in = [](const Json& one) {
    return one.contains("teacher_crc32") ? one["teacher_crc32"].dump() : std::string("none");
  };
  WEFT_CHECK(sum_in(saved) == sum_in(record),
             "{}: '{}' is not the teacher that this run started with (its checksum is {}, not {})",
             file, printable(parts.options.teacher, 4096), sum_in(record),
             printable(sum_in(saved)));
}

void Trainer::State::note_idle_rules(const std::vector<LayerReport>& reports) {
  for (const std::string& text : parts.options.rules) {
    const std::string layers = parse_rule(text, Pattern::parse(parts.options.pattern)).layers;
    if (matches_a_layer(layers, reports)) continue;
    note(fmt::format("rule '{}' matches the whole name of no layer; the layers are {}", layers,
                     named_in_short(reports)));
  }
}

void Trainer::State::note_unsuitable_plan() {
  const std::string& plan = parts.options.plan;
  if (plan == "auto" || plan == "dense" || plan == "sparse") return;
  const std::string elsewhere = planner->note_on_machine(plan);
  if (!elsewhere.empty()) note(elsewhere);
  bool any_layer = false, any_choice = false;
  for (const auto& [layer_name, layer] : named_layers) {
    const std::optional<LayerPlan> products = layer->sparse_plan();
    if (!products) continue;
    any_layer = true;
    any_choice |= std::ranges::any_of(
        products->products, [](const ProductPlan& one) { return one.cause == PlanCause::kSaved; });
  }
  if (any_layer && !any_choice) {
    note(
        fmt::format("plan {}: has no choice for any layer of this model at batches of {}: they "
                    "are measured",
                    printable(plan, 4096), parts.options.batch));
  }
}

InitRecord Trainer::State::new_init() {
  return load_init(parts.options.init, *parts.model,
                   [this](const std::string& text) { note(text); });
}

std::vector<DenseFlips::Counted> Trainer::State::flips_to_count() const {
  std::vector<DenseFlips::Counted> counted;
  for (const RecipeAtPattern& one : counted_flips(parts.options)) {
    RunOptions sparse = parts.options;
    sparse.recipe = with_lambda(one.recipe, 0.0);  // masks are the same with any
    sparse.pattern = one.pattern.str();
    counted.push_back({one.str(), sparsify_config(sparse, init, planner)});
  }
  return counted;
}

void Trainer::State::give_row_orders() {
  for (const auto& [tensor, row_order] : init->row_orders) {
    const auto layer = named_layers.find(layer_of_weight(tensor).value_or(tensor));
    if (layer == named_layers.end()) continue;
    const LayerSettings& settings = layer->second->settings();
    if (settings.recipe.has_fixed_mask() &&
        settings.pattern == init->sparsity.tensors.at(tensor).pattern) {
      layer->second->give_row_order(row_order);
    }
  }
}

void Trainer::State::rehearse() {
  const torch::NoGradGuard no_grad;
  const BatchPart part = batch_part(parts.options, ranks.get());
  std::vector<int64_t> first(static_cast<size_t>(part.samples));
  order.fill(0, first);
  parts.model->eval();
  const Batch batch = parts.source->train_batch(first, 0);
  {
    const Preview preview(*planner);
    const auto share = part.scope(ranks.get());
    parts.model->forward(batch.inputs);
  }
  parts.model->train();
  // What the next step is compared with.
  if (dense_flips) position.step == 0 ? dense_flips->begin() : dense_flips->restore(position.step);
}

}  // namespace weft
