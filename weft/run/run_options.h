// RunOptions: everything that a training run depends on, and the one table of what a user may set.
//
// The same fields are flags (--learning-rate 1e-3), keys of a TOML file (learning-rate = 1e-3) and
// members of run.json. A field is added in one place: option_fields().
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "weft/core/json.h"
#include "weft/core/pattern.h"

namespace weft {

struct RunOptions {
  std::string model = "cnn";
  int64_t width = 0;  // 0, here and below: the model's default (resolved())
  int64_t depth = 0;
  int64_t heads = 0;
  int64_t context = 128;
  int64_t patch = 4;

  std::string init;  // a safetensors file; empty: random weights

  // A run whose model the network learns from too (train/teacher.h); empty: none.
  std::string teacher;
  double teacher_share = 0.5;
  double teacher_temperature = 2.0;

  std::string data = "glyphs";
  int64_t train_images = 20000;
  int64_t test_images = 5000;

  std::string recipe = "s-ste";
  std::string pattern = "2:4";
  std::vector<std::string> rules;  // "RE=recipe@pattern", see parse_rule
  bool sparse_ends = false;
  std::string precision = "fp32";

  int64_t steps = 800;
  double epochs = 0.0;  // if above 0, the steps are counted from it: with_steps_of_epochs()
  int64_t batch = 0;
  int64_t accumulate = 1;
  std::string optimizer = "adamw";
  double learning_rate = 0.0;
  double momentum = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0.01;
  double warmup = 0.05;
  double final_rate = 0.02;
  double clip = 1.0;
  double label_smoothing = 0.0;
  int64_t seed = 1;

  int64_t eval_every = 0;
  int64_t eval_samples = -1;  // -1: the default (resolved()); 0: all
  int64_t checkpoint_every = 100;
  int64_t telemetry_every = 10;
  int64_t metrics_every = 1;
  bool dense_flips = false;
  std::vector<std::string> flips_of;  // "recipe[@pattern]", see counted_flips
  int64_t threads = 0;
  std::string plan = "auto";
  std::string exports = "dense";

  // Throws Error if fields contradict each other.
  void check() const;
  // The same without the model and the data, which may be the caller's own.
  void check_training() const;
  // With a number in place of every 0 that means the default, and of -1 for eval_samples: all
  // images up to kEvalImages, windows of text that hold kEvalBytes. Throws Error if the model is
  // unknown.
  static constexpr int64_t kEvalImages = 10'000;
  static constexpr int64_t kEvalBytes = 1 << 17;
  RunOptions resolved() const;
  // With the paths of the data and the teacher made absolute: a run is resumed from any folder. Data
  // that is not one of DataSpec's is an Error.
  RunOptions with_absolute_data() const;

  // With the steps that `epochs` passes over the training data take, in place of epochs: what a run
  // records. The batch must be resolved. Throws Error if they are too many.
  RunOptions with_steps_of_epochs(int64_t train_samples) const;

  Json to_json() const;
  static RunOptions from_json(const Json& object, const std::string& what);
};

// The networks that RunOptions::model names (weft/torch/model.h).
enum class ModelKind : uint8_t { kMlp, kCnn, kResnet18, kVit, kGpt };
// Throws Error that lists the accepted names.
ModelKind model_kind(const std::string& name);

// "sr-ste", or "sr-ste@1:4".
struct RecipeAtPattern {
  std::string recipe;
  Pattern pattern{2, 4};
  bool own_pattern = false;  // the text names it

  std::string str() const { return recipe + "@" + pattern.str(); }
};
// Throws Error if the recipe does not go with its pattern.
RecipeAtPattern parse_recipe_at(const std::string& text, const Pattern& otherwise);

// Whose masks a run with dense weights counts the flips of (train/dense_flips.h): those that
// flips_of names, each at the pattern of the run if it has none of its own; with dense_flips alone
// "ste", the plain top-N mask of every step. Empty: flips are not counted, or the recipe of the run
// has masks of its own.
std::vector<RecipeAtPattern> counted_flips(const RunOptions& options);

// A rule for some layers: the recipe and pattern of those whose whole name matches.
struct RunRule : RecipeAtPattern {
  std::string layers;
};
RunRule parse_rule(const std::string& text, const Pattern& otherwise);

enum class OptionKind : uint8_t { kText, kTexts, kInteger, kNumber, kSwitch };

struct OptionField {
  std::string name;  // "learning-rate"
  std::string type;  // for --help: "X"
  std::string help;
  OptionKind kind;
  // Values as text; several only for kTexts. set throws Error that names the field.
  std::function<std::vector<std::string>(const RunOptions&)> get;
  std::function<void(RunOptions&, const std::vector<std::string>&)> set;
  std::string alias = "";  // a second name, as flag and as key: "lr"
  // Whether a run may be resumed with another value. Its checkpoints are then those of the same run.
  bool may_change = false;
};
std::span<const OptionField> option_fields();

// Throws Error that names the nearest known field if there is none of this name. `what`: the file.
const OptionField& option_field(const std::string& name, const std::string& what);

// Sets what a TOML file says, and returns the names of the fields that it sets. Throws Error with a
// line that names the file, the line and the key. Keys of `except` are refused.
std::vector<std::string> read_config(const std::filesystem::path& path, RunOptions& options,
                                     std::span<const std::string> except = {});

}  // namespace weft
