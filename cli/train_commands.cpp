#include "cli/train_commands.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "weft/core/precision.h"
#include "weft/data/data.h"
#include "weft/plan/planner.h"
#include "weft/recipe/recipe.h"

namespace weft::cli {
namespace {

template <typename Arguments>
class TrainCommand : public Command {
 public:
  explicit TrainCommand(Work<Arguments> work) : work_(std::move(work)) {}
  void declare(Flags& flags) override { arguments_.declare(flags); }
  int run() override {
    arguments_.check();
    return work_(arguments_);
  }
  bool measures() const override {
    if constexpr (requires { arguments_.measures(); }) return arguments_.measures();
    return false;
  }

 private:
  Arguments arguments_;
  Work<Arguments> work_;
};

template <typename Arguments>
std::unique_ptr<Command> command_for(Work<Arguments> work) {
  return std::make_unique<TrainCommand<Arguments>>(std::move(work));
}

// What `check` throws is wrong usage.
template <typename Check>
void check_usage(Check check) {
  try {
    check();
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
}

void declare_recipes(Flags& flags, std::vector<std::string>& recipes) {
  flags.texts("--recipe", "NAME[+PART=VALUE]", recipes, "Recipes to run",
              problem_in([](const std::string& text) { Recipe::parse(text); }));
}
void declare_patterns(Flags& flags, std::vector<std::string>& patterns, const char* help) {
  flags.texts("--pattern", "N:M[xS]", patterns, help,
              problem_in([](const std::string& text) { Pattern::parse(text); }));
}
void declare_data(Flags& flags, std::string& data) {
  flags.text("--data", "DATA", data, "Data to use instead of the run's",
             problem_in([](const std::string& text) { DataSpec::parse(text); }));
}
void declare_plan(Flags& flags, std::string& plan) {
  flags.text("--plan", "auto|dense|sparse", plan, "auto: measure; dense or sparse: all products",
             problem_in([](const std::string& text) { parse_plan_mode(text); }));
}

void declare_tensorboard(Flags& flags, std::string& folder) {
  flags.text("--tensorboard", "DIR", folder,
             "At the end, or when stopped, write event files for TensorBoard below this folder");
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    if (end > begin) parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::vector<std::string> flags_that_may_change() {
  std::vector<std::string> names;
  for (const OptionField& field : option_fields()) {
    if (field.may_change) names.push_back("--" + field.name);
  }
  return names;
}

std::vector<std::string> recipe_names() {
  std::vector<std::string> names;
  for (const Recipe& recipe : weft::recipes()) names.push_back(recipe.name);
  return names;
}

}  // namespace

void TrainArguments::declare(Flags& flags) {
  flags.text("--out", "DIR", out, "Folder of the run: run.json, metrics, checkpoints, the model");
  flags.text("--resume", "DIR", resume,
             "Continue the run in this folder, or auto: start the run of --out, or continue it");
  flags.flag("--json", json, "Print run.json at the end, and nothing else");
  tables.declare(flags);
  declare_tensorboard(flags, tensorboard);
  flags.integer("--port", port, 0, 65535,
                "On several ranks: where rank 0 hosts the store, instead of MASTER_PORT; 0: there");
  flags.integer("--rank-timeout", rank_timeout, 1, 86400,
                "On several ranks: seconds of silence after which a rank is lost");
  run.declare(flags);
}

void TrainArguments::check() const {
  const std::vector<std::string> given = run.given();
  const auto is_given = [&](const char* flag) {
    return std::ranges::find(given, flag) != given.end();
  };
  if (is_given("--steps") && is_given("--epochs") && run.options().epochs > 0.0) {
    throw UsageError("--steps excludes --epochs");
  }
  if (out.empty() && (resume.empty() || starts_or_continues())) {
    throw UsageError("--out DIR is needed, or --resume DIR");
  }
  if (!out.empty() && !resume.empty() && !starts_or_continues()) {
    throw UsageError(
        "--resume excludes --out, but for --out DIR --resume auto, which starts or continues");
  }
  if (resume.empty() || starts_or_continues()) {
    const RunOptions options = run.options();  // a broken file is no wrong usage
    return check_usage([&] { options.resolved().check(); });
  }
  for (const std::string& flag : given) {
    const std::vector<std::string> accepted = flags_that_may_change();
    if (std::ranges::find(accepted, flag) != accepted.end()) continue;
    throw UsageError(fmt::format("{} cannot be used with --resume: accepted are {}", flag,
                                 fmt::join(accepted, ", ")));
  }
}

CommandEntry train_command(Work<TrainArguments> work) {
  return {
      "train", "Train a network with a recipe",
      "  weft train --model mlp --width 1024 --batch 512 --steps 100 --pattern 1:4 --out "
      "runs/first\n"
      "  weft train --model gpt --data text:book.txt --recipe s-ste --pattern 2:4 --out runs/gpt\n"
      "  weft train --config run.toml --seed 2 --out runs/second\n"
      "  weft train --recipe static --init pruned.safetensors --out runs/tuned\n"
      "  weft train --resume runs/first\n"
      "  weft train --resume runs/first --steps 2000          # extends a finished run\n"
      "  weft train --config run.toml --out runs/third --resume auto\n"
      "  torchrun --no-python --nproc-per-node 2 weft train --out runs/fourth --threads 4",
      command_for(std::move(work))};
}

void CompareArguments::declare(Flags& flags) {
  flags.text("--recipes", "NAME,...", recipes,
             "Recipes, separated by commas (default: all); sr-ste@1:4 has its own pattern; dense "
             "is always included",
             problem_in([](const std::string& text) {
               for (const std::string& one : split(text)) {
                 const auto [recipe, pattern] = split_pattern(one);
                 Recipe::parse(recipe);
                 if (pattern) Pattern::parse(*pattern);
               }
             }));
  declare_patterns(flags, patterns, "Patterns, one or several");
  flags.integer("--seeds", seeds, 1, 1000, "Runs of each recipe, with seeds from --seed on");
  flags.text("--budget", "TIME", budget,
             "Training time of each run (300s, 10m, 1h) instead of --steps: a rehearsal first says "
             "how many steps that is for each recipe",
             problem_in([](const std::string& text) { parse_duration(text); }));
  flags.text("--out", "DIR", out, "Folder of all runs; an unfinished comparison is continued");
  flags.require("--out");
  flags.flag("--no-memory", no_memory,
             "Do not measure the memory of each run in a process of its own");
  declare_tensorboard(flags, tensorboard);
  flags.flag("--brief", brief, "A table that fits 80 columns");
  flags.flag("--json", json, "Print compare.json instead of the table");
  tables.declare(flags);
  run.declare(flags, {"recipe", "pattern", "rule", "flips-of", "metrics-every", "epochs"});
}

CompareOptions CompareArguments::options() const {
  CompareOptions options;
  options.run = run.options().resolved();
  options.recipes = recipes.empty() ? recipe_names() : split(recipes);
  options.patterns = patterns;
  options.seeds = seeds;
  if (!budget.empty()) options.budget = parse_duration(budget);
  return options;
}

void CompareArguments::check() const {
  const std::vector<std::string> given = run.given();
  if (!budget.empty() && std::ranges::find(given, "--steps") != given.end()) {
    throw UsageError("--budget excludes --steps");
  }
  const CompareOptions compared = options();
  check_usage([&] {
    RunOptions one = compared.run;
    for (const CompareEntry& entry : compare_entries(compared)) {
      one.recipe = entry.recipe;
      if (!entry.pattern.empty()) one.pattern = entry.pattern;
      one.check();
    }
  });
}

CommandEntry compare_command(Work<CompareArguments> work) {
  return {
      "compare", "Train with several recipes and compare them",
      "  weft compare --recipes dense,sr-ste,s-ste --pattern 2:4 --seeds 3 --out runs/compare\n"
      "  weft compare --pattern 2:4 --pattern 1:4 --data idx:mnist --steps 300 --out runs/mnist\n"
      "  weft compare --recipes sr-ste,s-ste --budget 300s --out runs/equal-time",
      command_for(std::move(work))};
}

void EvalArguments::declare(Flags& flags) {
  flags.positional("run", folder, "Folder of a finished run");
  flags.text("--weights", "FILE", weights,
             "Weights to evaluate instead of the run's, such as converted ones");
  declare_data(flags, data);
  flags.integer("--samples", samples, -1, int64_t{1} << 40,
                "Test samples, evenly spread; 0: all; -1: as many as in the run");
  flags.integer("--threads", threads, 0, kMaxThreads, "Threads; 0: as the run");
  flags.flag("--json", json, "Print JSON");
}

CommandEntry eval_command(Work<EvalArguments> work) {
  return {"eval", "Evaluate the model of a run",
          "  weft eval runs/first\n"
          "  weft eval runs/first --data idx:mnist --json\n"
          "  weft eval runs/first --weights sparse.safetensors",
          command_for(std::move(work))};
}

void RecoveryArguments::declare(Flags& flags) {
  flags.positional("run", model.folder, "Folder of a finished run, best a dense one");
  declare_patterns(flags, patterns, "Patterns to convert to");
  flags.flag("--transposable", transposable, "N:M along inputs and along outputs");
  declare_data(flags, model.data);
  flags.integer("--samples", model.samples, 1, int64_t{1} << 32,
                "Training samples to calibrate on");
  flags.flag("--sparse-ends", sparse_ends, "Convert the first and the last layer too");
  tables.declare(flags);
  common.declare(flags);
}

CommandEntry recovery_command(Work<RecoveryArguments> work) {
  return {
      "recovery", "Measure the accuracy of a trained network after each conversion method",
      "  weft recovery runs/dense\n"
      "  weft recovery runs/dense --pattern 2:4 --pattern 1:8 --transposable\n"
      "\n"
      "Converts the model of a run by magnitude, with mean absorption, by adaprune, by adaprune\n"
      "with batch normalisation estimated again, by wanda and by sparsegpt, and evaluates the\n"
      "network after each. adaprune solves on the support of magnitude here. The files of the run\n"
      "do not change.",
      command_for(std::move(work))};
}

BenchLayerArguments::BenchLayerArguments() : recipes(recipe_names()) {
  std::erase(recipes, "dense");
}

void BenchLayerArguments::declare(Flags& flags) {
  flags.texts("--shape", "TOKENSxINSxOUTS", shapes, "Layers to run",
              problem_in([](const std::string& text) { LayerShape::parse(text); }));
  declare_recipes(flags, recipes);
  declare_patterns(flags, patterns, "Patterns to run");
  declare_plan(flags, plan);
  flags.integer("--rounds", rounds, 1, 30, "Rounds; the result is their median");
  flags.integer("--threads", threads, 0, kMaxThreads, "Threads; 0 takes all");
  flags.flag("--json", json, "Print JSON");
  tables.declare(flags);
}

// A recipe that is left out at some patterns is fine; at all of them, the flag is a mistake.
void BenchLayerArguments::check() const {
  for (const std::string& recipe : recipes) {
    std::string reason;
    const bool used = std::ranges::any_of(patterns, [&](const std::string& pattern) {
      try {
        Recipe::parse(recipe).check(Pattern::parse(pattern));
        return true;
      } catch (const Error& error) {
        reason = error.what();
        return false;
      }
    });
    if (!used) throw UsageError(reason);
  }
}

CommandEntry bench_layer_command(Work<BenchLayerArguments> work) {
  return {"bench layer", "One layer's training step, recipes against dense",
          "  weft bench layer\n"
          "  weft bench layer --recipe t-sr-ste --pattern 1:4 --pattern 2:4x2 --threads 1\n"
          "  weft bench layer --recipe s-ste+backward=bi-mask --shape 2048x1024x4096 --json",
          command_for(std::move(work))};
}

void BenchStepArguments::declare(Flags& flags) {
  flags.text("--model", "block|resnet18", model,
             "A transformer block, or ResNet-18 for small images",
             problem_in([](const std::string& text) {
               WEFT_CHECK(text == "block" || text == "resnet18",
                          "model '{}': accepted are block and resnet18", printable(text));
             }));
  flags.texts("--recipe", "NAME[+PART=VALUE]", recipes,
              "Recipes to run; 'all': every one but dense", problem_in([](const std::string& text) {
                if (text != "all") Recipe::parse(text);
              }));
  declare_patterns(flags, patterns, "Patterns to run");
  flags.integer("--width", width, 0, 1 << 16,
                "Width of the block, or of the first stage; 0: 768, or 64");
  flags.integer("--tokens", block.tokens, 1, 1 << 24, "Tokens of a step (block)");
  flags.integer("--context", block.context, 1, 1 << 20, "Tokens per sequence (block)");
  flags.integer("--hidden", block.hidden, 1, 1 << 18, "Width of the feed-forward part (block)");
  flags.integer("--heads", block.heads, 1, 1 << 10, "Heads of attention (block)");
  flags.integer("--images", resnet.images, 1, 1 << 20, "Images of a step (resnet18)");
  flags.integer("--size", resnet.size, 1, 1 << 12, "Height and width of an image (resnet18)");
  declare_plan(flags, plan);
  flags.text(
      "--precision", "fp32|bf16", precision,
      "Type of operands and activations; bf16 is compared with dense bf16, and with dense fp32",
      problem_in([](const std::string& text) { parse_precision(text); }));
  flags.integer("--rounds", rounds, 1, 100, "Rounds; the result is their median");
  flags.integer("--threads", threads, 0, kMaxThreads, "Threads; 0 takes all");
  flags.integer("--processes", processes, 1, 64,
                "Ranks on this machine that sum their gradients, each with all tokens; with more "
                "than one, only that is measured");
  flags.flag("--no-plain", no_plain, "Do not measure plain libtorch");
  flags.flag("--no-memory", no_memory, "Leave memory out");
  flags.flag("--only-memory", only_memory,
             "Run two steps of the given recipe and pattern and print the peak memory");
  flags.flag("--json", json, "Print JSON");
  tables.declare(flags);
}

void BenchStepArguments::check() const {
  check_usage([&] {
    for (const std::string& recipe : all_recipes()) {
      for (const std::string& pattern : patterns) {
        Recipe::parse(recipe).check(Pattern::parse(pattern));
      }
    }
    const bench::StepShape chosen = shape();
    const auto* one = std::get_if<bench::BlockShape>(&chosen);
    if (one == nullptr) return;
    WEFT_CHECK(one->tokens % one->context == 0,
               "{} tokens are not a multiple of the sequence length {}", one->tokens, one->context);
    WEFT_CHECK(one->width % one->heads == 0, "width {} is not a multiple of {} heads", one->width,
               one->heads);
  });
}

bench::StepShape BenchStepArguments::shape() const {
  if (model == "resnet18") {
    bench::ResnetShape chosen = resnet;
    if (width > 0) chosen.width = width;
    return chosen;
  }
  bench::BlockShape chosen = block;
  if (width > 0) chosen.width = width;
  return chosen;
}

std::vector<std::string> BenchStepArguments::all_recipes() const {
  std::vector<std::string> found;
  for (const std::string& text : recipes) {
    if (text != "all") {
      found.push_back(text);
      continue;
    }
    for (const Recipe& recipe : weft::recipes()) {
      if (!recipe.is_dense()) found.push_back(recipe.name);
    }
  }
  return found;
}

CommandEntry bench_step_command(Work<BenchStepArguments> work) {
  return {"bench step", "Whole training steps, recipes against dense",
          "  weft bench step\n"
          "  weft bench step --recipe all --pattern 2:4 --no-memory\n"
          "  weft bench step --model resnet18 --recipe t-sr-ste --pattern 2:4 --json\n"
          "  weft bench step --processes 2 --recipe static --recipe s-ste --pattern 2:4\n"
          "  weft bench step --precision bf16 --pattern 2:4x16 --pattern 2:4x32",
          command_for(std::move(work))};
}

}  // namespace weft::cli
