#include "weft/run/run_options.h"

#include <fmt/format.h>
#include <re2/re2.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "weft/core/error.h"
#include "weft/core/number.h"
#include "weft/core/parallel.h"
#include "weft/core/text.h"
#include "weft/data/data.h"
#include "weft/plan/planner.h"
#include "weft/recipe/recipe.h"

namespace weft {
namespace {

// A model and the sizes and rate that it gets where the user gives none.
struct ModelEntry {
  std::string_view name;
  ModelKind kind;
  int64_t width, depth, heads, batch;
  double adamw_rate;
};
constexpr std::array kModels = {
    ModelEntry{"mlp", ModelKind::kMlp, 256, 2, 1, 128, 1e-3},
    // glyphs, 600 steps: 93 % at 4e-3; 800 steps: 95 % at 6e-3
    ModelEntry{"cnn", ModelKind::kCnn, 16, 1, 1, 64, 6e-3},
    ModelEntry{"resnet18", ModelKind::kResnet18, 64, 2, 1, 64, 3e-3},
    ModelEntry{"vit", ModelKind::kVit, 96, 4, 4, 64, 1e-3},
    ModelEntry{"gpt", ModelKind::kGpt, 256, 4, 4, 8, 1e-3},
};

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const ModelEntry& each : kModels) names.emplace_back(each.name);
  return names;
}

const ModelEntry& model_entry(const std::string& name) {
  const auto* const found = std::ranges::find(kModels, name, &ModelEntry::name);
  WEFT_CHECK(found != kModels.end(), "model '{}': accepted are {}", printable(name),
             fmt::join(model_names(), ", "));
  return *found;
}

const std::string& only_one(const std::vector<std::string>& values) {
  WEFT_CHECK(values.size() == 1, "{} values: accepted is one", values.size());
  return values.front();
}

using Check = std::function<void(const std::string&)>;

OptionField text(const char* name, const char* type, std::string RunOptions::*member,
                 const Check& check, const char* help) {
  return {name,
          type,
          help,
          OptionKind::kText,
          [member](const RunOptions& o) { return std::vector{o.*member}; },
          [member, check](RunOptions& o, const std::vector<std::string>& values) {
            check(only_one(values));
            o.*member = values[0];
          }};
}

Check one_of(std::vector<std::string> accepted) {
  return [accepted = std::move(accepted)](const std::string& value) {
    WEFT_CHECK(std::ranges::find(accepted, value) != accepted.end(), "'{}': accepted are {}",
               printable(value), fmt::join(accepted, ", "));
  };
}

OptionField integer(const char* name, int64_t RunOptions::*member, int64_t low, int64_t high,
                    const char* help) {
  return {name,
          "N",
          help,
          OptionKind::kInteger,
          [member](const RunOptions& o) { return std::vector{fmt::format("{}", o.*member)}; },
          [=](RunOptions& o, const std::vector<std::string>& values) {
            o.*member = parse_integer(only_one(values), low, high);
          }};
}

OptionField number(const char* name, double RunOptions::*member, double low, double high,
                   const char* help) {
  return {name,
          "X",
          help,
          OptionKind::kNumber,
          [member](const RunOptions& o) { return std::vector{fmt::format("{}", o.*member)}; },
          [=](RunOptions& o, const std::vector<std::string>& values) {
            o.*member = parse_number(only_one(values), low, high);
          }};
}

OptionField flag(const char* name, bool RunOptions::*member, const char* help) {
  return {name,
          "",
          help,
          OptionKind::kSwitch,
          [member](const RunOptions& o) {
            return std::vector<std::string>{o.*member ? "true" : "false"};
          },
          [member](RunOptions& o, const std::vector<std::string>& values) {
            one_of({"true", "false"})(only_one(values));
            o.*member = values[0] == "true";
          }};
}

OptionField changeable(OptionField field) {
  field.may_change = true;
  return field;
}

// The later one of steps and epochs counts, as where a flag overrides a configuration file.
OptionField instead_of_epochs(OptionField field) {
  field.set = [set = field.set](RunOptions& o, const std::vector<std::string>& values) {
    set(o, values);
    o.epochs = 0.0;
  };
  return field;
}

constexpr int64_t kMany = int64_t{1} << 40;

// Throws Error if a dense run cannot count the flips that this recipe would have.
void check_flips_of(const RecipeAtPattern& counted) {
  const Recipe recipe = Recipe::parse(counted.recipe);
  WEFT_CHECK(!recipe.is_dense(), "'{}' has no masks: accepted are sparse recipes",
             printable(counted.recipe));
  WEFT_CHECK(recipe.forward->scores == nullptr, "'{}' finds masks by scores; a dense run has none",
             printable(counted.recipe));
}

OptionField with_alias(OptionField field, const char* alias) {
  field.alias = alias;
  return field;
}

std::vector<OptionField> make_fields() {
  using O = RunOptions;
  return {
      text("model", "NAME", &O::model, one_of(model_names()), "mlp, cnn, resnet18, vit or gpt"),
      integer("width", &O::width, 0, 1 << 16, "Width of the model; 0: the model's default"),
      integer("depth", &O::depth, 0, 1000,
              "Hidden layers (mlp), blocks per stage (cnn, resnet18), blocks (vit, gpt); 0: the "
              "model's default"),
      integer("heads", &O::heads, 0, 1 << 10, "Attention heads (vit, gpt); 0: the model's default"),
      integer("context", &O::context, 1, 1 << 20, "Context length of a gpt, in bytes"),
      integer("patch", &O::patch, 1, 4096, "Patch size of a vit"),
      text(
          "init", "FILE", &O::init, [](const std::string&) {},
          "Initial weights, from a safetensors file; static keeps its zeros"),
      changeable(text(
          "data", "DATA", &O::data, [](const std::string& v) { DataSpec::parse(v); },
          "glyphs, idx:DIR, cifar10:DIR, text:PATH, or text for the C++ headers here")),
      integer("train-images", &O::train_images, 1, kMany, "glyphs: images to train on"),
      integer("test-images", &O::test_images, 1, kMany, "glyphs: images to test on"),
      changeable(text(
          "teacher", "RUN", &O::teacher, [](const std::string&) {},
          "A finished run whose scores the network learns from too (distillation)")),
      number("teacher-share", &O::teacher_share, 0, 1, "Share of the teacher in the loss"),
      number("teacher-temperature", &O::teacher_temperature, 0.01, 1e3,
             "Temperature of both scores in the teacher's part of the loss"),
      text(
          "recipe", "NAME[+PART=VALUE]", &O::recipe, [](const std::string& v) { Recipe::parse(v); },
          "Training method of sparse layers: see weft recipes"),
      text(
          "pattern", "N:M[xS]", &O::pattern, [](const std::string& v) { Pattern::parse(v); },
          "keep:group, as in 2:4; with xS, S rows share it"),
      {"rule", "RE=RECIPE[@N:M]", "Recipe for layers whose name matches; the first match counts",
       OptionKind::kTexts, [](const O& o) { return o.rules; },
       [](O& o, const std::vector<std::string>& values) {
         for (const std::string& value : values) parse_rule(value, Pattern(2, 4));
         o.rules = values;
       }},
      flag("sparse-ends", &O::sparse_ends, "Make the first and the last layer sparse too"),
      text("precision", "fp32|bf16", &O::precision, one_of({"fp32", "bf16"}),
           "bf16: operands and activations; weights, sums and the optimiser stay fp32"),
      changeable(instead_of_epochs(integer("steps", &O::steps, 1, kMany, "Optimiser steps"))),
      changeable(number("epochs", &O::epochs, 0, 1e9,
                        "Passes over the training data, instead of --steps; 0: --steps counts")),
      integer("batch", &O::batch, 0, 1 << 24,
              "Images, or windows of text, per step; 0: the model's default"),
      integer("accumulate", &O::accumulate, 1, 1 << 16, "Micro-batches per step"),
      text("optimizer", "NAME", &O::optimizer, one_of({"adamw", "sgd"}), "adamw or sgd"),
      changeable(with_alias(number("learning-rate", &O::learning_rate, 0, 1e6,
                                   "Peak learning rate; 0: the model's default"),
                            "lr")),
      number("momentum", &O::momentum, 0, 0.99999, "SGD momentum / AdamW beta1"),
      number("beta2", &O::beta2, 0, 0.9999999, "AdamW beta2"),
      number("weight-decay", &O::weight_decay, 0, 1e6, "Weight decay, on matrices only"),
      number("warmup", &O::warmup, 0, 1, "Warm-up, as a share of the steps"),
      number("final-rate", &O::final_rate, 0, 1, "Last learning rate, as a share of the peak"),
      changeable(number("clip", &O::clip, 0, 1e30, "Norm to clip gradients to; 0: no clipping")),
      number("label-smoothing", &O::label_smoothing, 0, 0.999, "Label smoothing"),
      integer("seed", &O::seed, 0, std::numeric_limits<int64_t>::max(),
              "Seed of weights, sample order and sampling"),
      integer("eval-every", &O::eval_every, 0, kMany,
              "Steps between evaluations; 0: only at the end"),
      integer("eval-samples", &O::eval_samples, -1, kMany,
              "Test samples per evaluation, evenly spread; 0: all; -1: up to 10000 images, or 128 "
              "KiB of text"),
      changeable(integer("checkpoint-every", &O::checkpoint_every, 0, kMany,
                         "Steps between checkpoints; 0: only when stopped, and at the end")),
      integer("telemetry-every", &O::telemetry_every, 0, kMany,
              "Steps between costly telemetry figures; 0: never"),
      integer("metrics-every", &O::metrics_every, 1, kMany,
              "Steps between the lines of metrics.jsonl that tell of a step"),
      flag("dense-flips", &O::dense_flips,
           "In a dense run: count the mask flips that a sparse run would have"),
      {"flips-of", "RECIPE[@N:M]", "The recipe whose mask flips are counted (default: ste)",
       OptionKind::kTexts, [](const O& o) { return o.flips_of; },
       [](O& o, const std::vector<std::string>& values) {
         for (const std::string& value : values) {
           check_flips_of(parse_recipe_at(value, Pattern(2, 4)));
         }
         o.flips_of = values;
       }},
      changeable(integer("threads", &O::threads, 0, kMaxThreads, "Threads; 0: all cores")),
      text(
          "plan", "auto|dense|sparse|FILE", &O::plan, [](const std::string&) {},
          "auto: measure; dense or sparse: all products; FILE: as in this run.json"),
      changeable(text("export", "dense|packed", &O::exports, one_of({"dense", "packed"}),
                      "packed: also write packed.safetensors, without zeros")),
  };
}

Json json_of(const OptionField& field, const RunOptions& options) {
  const std::vector<std::string> values = field.get(options);
  switch (field.kind) {
    case OptionKind::kTexts: return values;
    case OptionKind::kInteger: return parse_integer(values[0], INT64_MIN, INT64_MAX);
    case OptionKind::kNumber: return parse_number(values[0], -HUGE_VAL, HUGE_VAL);
    case OptionKind::kSwitch: return values[0] == "true";
    case OptionKind::kText: break;
  }
  return values[0];
}

std::vector<std::string> texts_of(const Json& value) {
  std::vector<std::string> texts;
  if (value.is_array()) {
    for (const Json& item : value) texts.push_back(item.get<std::string>());
  } else {
    texts.push_back(value.is_string() ? value.get<std::string>() : value.dump());
  }
  return texts;
}

}  // namespace

ModelKind model_kind(const std::string& name) { return model_entry(name).kind; }

RecipeAtPattern parse_recipe_at(const std::string& text, const Pattern& otherwise) {
  const auto [recipe, pattern] = split_pattern(text);
  RecipeAtPattern found{std::string(recipe), otherwise, pattern.has_value()};
  if (pattern) found.pattern = Pattern::parse(*pattern);
  Recipe::parse(found.recipe).check(found.pattern);
  return found;
}

std::vector<RecipeAtPattern> counted_flips(const RunOptions& options) {
  std::vector<RecipeAtPattern> counted;
  if (!Recipe::parse(options.recipe).is_dense()) return counted;
  const Pattern pattern = Pattern::parse(options.pattern);
  for (const std::string& text : options.flips_of) {
    counted.push_back(parse_recipe_at(text, pattern));
  }
  if (counted.empty() && options.dense_flips) counted.push_back({"ste", pattern, false});
  return counted;
}

RunRule parse_rule(const std::string& text, const Pattern& otherwise) {
  const size_t equals = text.find('=');
  WEFT_CHECK(equals != std::string::npos && equals > 0,
             "rule '{}': accepted is LAYERS=RECIPE or LAYERS=RECIPE@N:M", printable(text));
  const RunRule rule{parse_recipe_at(text.substr(equals + 1), otherwise), text.substr(0, equals)};
  const RE2 expression(rule.layers, RE2::Quiet);
  WEFT_CHECK(expression.ok(), "rule '{}': not a regular expression: {}", printable(text),
             expression.error());
  return rule;
}

std::span<const OptionField> option_fields() {
  static const std::vector<OptionField> fields = make_fields();
  return fields;
}

const OptionField& option_field(const std::string& name, const std::string& what) {
  const auto fields = option_fields();
  const auto found = std::ranges::find_if(fields, [&](const OptionField& field) {
    return field.name == name || (!field.alias.empty() && field.alias == name);
  });
  if (found != fields.end()) return *found;
  std::vector<std::string> names;
  for (const OptionField& field : fields) names.push_back(field.name);
  throw Error(fmt::format("{}: unknown key '{}': did you mean '{}'?", what, printable(name),
                          nearest_word(name, names)));
}

void RunOptions::check_training() const {
  Recipe::parse(recipe).check(Pattern::parse(pattern));
  for (const std::string& rule : rules) parse_rule(rule, Pattern::parse(pattern));
  for (const RecipeAtPattern& counted : counted_flips(*this)) check_flips_of(counted);
  const auto freezes = [](const std::string& one) { return Recipe::parse(one).frozen_moment; };
  const bool frozen = freezes(recipe) || std::ranges::any_of(rules, [&](const auto& rule) {
                        return freezes(parse_rule(rule, Pattern::parse(pattern)).recipe);
                      });
  WEFT_CHECK(!frozen || optimizer == "adamw", "moment=frozen needs optimizer adamw, not {}",
             optimizer);
  const RunOptions defaults;
  WEFT_CHECK(!teacher.empty() || (teacher_share == defaults.teacher_share &&
                                  teacher_temperature == defaults.teacher_temperature),
             "teacher-share and teacher-temperature have no effect without a teacher");
  WEFT_CHECK(batch >= 1 && batch % accumulate == 0,
             "batch {} is not a multiple of {} micro-batches", batch, accumulate);
}

void RunOptions::check() const {
  check_training();
  const bool text = DataSpec::parse(data).kind == DataKind::kText;
  WEFT_CHECK(text == (model_kind(model) == ModelKind::kGpt),
             "model {} needs {}, but data '{}' is {}", model, text ? "images" : "text", data,
             text ? "text" : "images");
}

RunOptions RunOptions::resolved() const {
  RunOptions all = *this;
  const ModelEntry& defaults = model_entry(model);
  if (all.width == 0) all.width = defaults.width;
  if (all.depth == 0) all.depth = defaults.depth;
  if (all.heads == 0) all.heads = defaults.heads;
  if (all.batch == 0) all.batch = defaults.batch;
  if (all.learning_rate == 0) {
    all.learning_rate = optimizer == "sgd" ? 0.05 : defaults.adamw_rate;
  }
  if (all.eval_samples < 0) {
    all.eval_samples =
        defaults.kind == ModelKind::kGpt ? std::max<int64_t>(1, kEvalBytes / context) : kEvalImages;
  }
  return all;
}

RunOptions RunOptions::with_absolute_data() const {
  RunOptions located = *this;
  DataSpec spec = DataSpec::parse(data);
  if (!spec.path.empty()) spec.path = std::filesystem::absolute(spec.path).lexically_normal();
  located.data = spec.to_string();
  if (!teacher.empty()) {
    located.teacher = std::filesystem::absolute(teacher).lexically_normal().string();
  }
  return located;
}

RunOptions RunOptions::with_steps_of_epochs(int64_t train_samples) const {
  RunOptions counted = *this;
  if (epochs == 0.0) return counted;
  const double steps_of_epochs =
      std::ceil(epochs * static_cast<double>(train_samples) / static_cast<double>(batch));
  WEFT_CHECK(steps_of_epochs <= static_cast<double>(kMany),
             "epochs {}: {} samples in batches of {} are more than {} steps", epochs, train_samples,
             batch, kMany);
  counted.steps = static_cast<int64_t>(steps_of_epochs);
  counted.epochs = 0.0;
  return counted;
}

Json RunOptions::to_json() const {
  Json object = Json::object();
  for (const OptionField& field : option_fields()) object.append(field.name, json_of(field, *this));
  return object;
}

RunOptions RunOptions::from_json(const Json& object, const std::string& what) {
  RunOptions options;
  WEFT_CHECK(object.is_object(), "{}: 'options' is not an object", what);
  for (const Json::Member& member : object.members()) {
    const OptionField& field = option_field(member.name, what);
    try {
      field.set(options, texts_of(member.value));
    } catch (const Error& error) {
      throw Error(fmt::format("{}: {}: {}", what, member.name, error.what()));
    }
  }
  return options;
}

}  // namespace weft
