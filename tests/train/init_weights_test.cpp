// Runs that begin with the weights of a file, and what the file promises about them.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <set>

#include "tests/support.h"
#include "tests/train/runs.h"
#include "weft/checkpoint/checkpoint.h"
#include "weft/mask/solver.h"
#include "weft/torch/export_model.h"
#include "weft/torch/tensor_file.h"
#include "weft/train/compare.h"
#include "weft/train/load_model.h"

namespace weft::test {
namespace {

using Promises = std::map<std::string, Promise>;

const Promise k24{Pattern(2, 4), Axis::kIn};
const Promise k24Both{Pattern(2, 4), Axis::kBoth};
const Promise k14{Pattern(1, 4), Axis::kIn};

// The tensors of a model that has seen a batch: statistics of norms are not what they begin with.
NamedTensors tensors_of(const RunOptions& options) {
  const RunParts parts = make_parts(options);
  const torch::NoGradGuard no_grad;
  const std::vector<int64_t> samples = {0, 1, 2, 3};
  parts.model->forward(parts.source->train_batch(samples, 0).inputs);
  const std::set<const void*> of_recipes = recipe_tensors(*parts.model);
  NamedTensors tensors;
  const auto add = [&](const auto& named) {
    if (of_recipes.contains(named.value().unsafeGetTensorImpl())) return;
    tensors.emplace_back(named.key(), named.value().detach().clone());
  };
  for (const auto& parameter : parts.model->named_parameters()) add(parameter);
  for (const auto& buffer : parts.model->named_buffers()) add(buffer);
  return tensors;
}

// Zero where the pattern wants it; and of what is left every third, so that groups have fewer
// non-zeros than they may, and rows that share have zeros of their own.
torch::Tensor thinned(const torch::Tensor& weight, const Promise& promise) {
  const torch::Tensor thin = weight.contiguous().clone();
  const WeightShape shape = WeightShape::of(weight.sizes());
  auto* values = thin.data_ptr<float>();
  const Mask mask =
      find_mask(default_solver(promise.axis == Axis::kBoth), values, shape, promise.pattern);
  int64_t kept = 0;
  for (int64_t i = 0; i < thin.numel(); ++i) {
    if (!mask.at(i / shape.cols(), i % shape.cols()) || ++kept % 3 == 0) values[i] = 0.0f;
  }
  return thin;
}

std::string write_init(const std::filesystem::path& path, NamedTensors tensors,
                       const Promises& promises) {
  for (auto& [name, tensor] : tensors) {
    if (promises.contains(name)) tensor = thinned(tensor, promises.at(name));
  }
  Metadata metadata;
  Sparsity{promises}.store_in(metadata);
  write_tensors(path, tensors, metadata);
  return path;
}

std::map<std::string, torch::Tensor> state_of(Model& model) {
  std::map<std::string, torch::Tensor> found;
  for (const auto& parameter : model.named_parameters()) found[parameter.key()] = parameter.value();
  for (const auto& buffer : model.named_buffers()) found[buffer.key()] = buffer.value();
  return found;
}

TEST(Init, EveryTensorOfTheFileIsInTheModel) {
  const ScratchFolder scratch;
  for (const std::string model : {"mlp", "cnn"}) {
    const NamedTensors tensors = tensors_of(small_run(model));
    const std::string file = write_init(scratch / (model + ".safetensors"), tensors, {});
    for (const std::string recipe : {"dense", "s-ste", "lbc", "static"}) {
      Trainer trainer =
          Trainer::begin(scratch / (model + recipe), make_parts(tuned_run(model, recipe, file)));
      const auto state = state_of(trainer.model());
      for (const auto& [name, tensor] : tensors) EXPECT_TRUE(same(state.at(name), tensor)) << name;
    }
  }
}

TEST(Init, TheFileIsNotReplacedByTheModelOfTheRun) {
  const ScratchFolder scratch;
  std::filesystem::create_directory(scratch / "run");
  const std::string file =
      write_init(scratch / "run" / "model.safetensors", tensors_of(small_run("mlp")), {});
  const std::string before = contents(file);
  const std::string message = message_of(
      [&] { Trainer::begin(scratch / "run", make_parts(tuned_run("mlp", "dense", file))); });
  EXPECT_TRUE(contains(message, "model.safetensors is also a file of --init")) << message;
  EXPECT_EQ(contents(file), before);
}

TEST(Init, OtherFloatsAreConverted) {
  const ScratchFolder scratch;
  for (const auto type : {torch::kHalf, torch::kBFloat16, torch::kDouble}) {
    NamedTensors tensors = tensors_of(small_run("cnn"));
    for (auto& [name, tensor] : tensors) {
      if (tensor.is_floating_point()) tensor = tensor.to(torch::kDouble).mul(1.0 / 3).to(type);
    }
    const std::string name = c10::toString(type);
    const std::string file = write_init(scratch / (name + ".safetensors"), tensors, {});
    Trainer trainer = Trainer::begin(scratch / name, make_parts(tuned_run("cnn", "dense", file)));
    const auto state = state_of(trainer.model());
    for (const auto& [key, tensor] : tensors) {
      const auto wanted = tensor.is_floating_point() ? tensor.to(torch::kFloat) : tensor;
      EXPECT_TRUE(same(state.at(key), wanted)) << name << " " << key;
    }
  }
}

TEST(Init, ShardsAreOneFile) {
  const ScratchFolder scratch;
  const NamedTensors tensors = tensors_of(small_run("mlp"));
  std::string map;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::string shard = fmt::format("s{}.safetensors", i);
    write_tensors(scratch / shard, {tensors[i]}, {});
    map += fmt::format("{}\"{}\": \"{}\"", i == 0 ? "" : ", ", tensors[i].first, shard);
  }
  const auto index = scratch / "model.safetensors.index.json";
  put(index, "{\"metadata\": {}, \"weight_map\": {" + map + "}}");
  Trainer trainer = Trainer::begin(scratch / "run", make_parts(tuned_run("mlp", "dense", index)));
  const auto state = state_of(trainer.model());
  for (const auto& [name, tensor] : tensors) EXPECT_TRUE(same(state.at(name), tensor)) << name;
}

void expect_zeros_kept(const std::string& model, const std::string& layer,
                       const std::string& pattern, const std::string& optimizer) {
  SCOPED_TRACE(fmt::format("{} at {} by {}", model, pattern, optimizer));
  const ScratchFolder scratch;
  const std::string weight = layer + ".weight";
  const Promises promises = {{weight, {Pattern::parse(pattern), Axis::kIn}}, {"head.weight", k24}};
  const std::string file =
      write_init(scratch / "init.safetensors", tensors_of(small_run(model)), promises);
  RunOptions options = tuned_run(model, "static", file);
  options.optimizer = optimizer;
  options.weight_decay = 0.1;
  Notes notes;
  Trainer trainer = Trainer::begin(scratch / "run", make_parts(options), listening(notes));
  EXPECT_EQ(notes.all, "");
  trainer.advance(options.steps);
  const RunResult result = trainer.finish();
  const auto exported = scratch / "run" / "model.safetensors";
  const TensorFile before = read_tensors(file), after = read_tensors(exported);
  for (const auto& [name, promise] : promises) expect_tuned(before.at(name), after.at(name), name);
  EXPECT_EQ(broken_promise(exported), "");
  const Sparsity sparsity = Checkpoint::open(exported).sparsity();
  EXPECT_EQ(sparsity.tensors.size(), 2u);
  EXPECT_EQ(sparsity.tensors.at(weight).pattern.str(), pattern);
  EXPECT_LT(result.density, 0.4);
  const RunParts parts = load_model(scratch / "run");
  EXPECT_EQ(evaluate(*parts.model, *parts.source, options.batch, 0).loss, result.eval.loss);
}

TEST(Init, StaticKeepsEveryZero) {
  expect_zeros_kept("mlp", "hidden1", "2:4", "adamw");
  expect_zeros_kept("mlp", "hidden1", "1:4x2", "sgd");
  expect_zeros_kept("cnn", "stage1_0.conv2", "2:4", "sgd");
  expect_zeros_kept("cnn", "stage1_0.conv2", "1:4x2", "adamw");
}

// A mask with less in it than a solver would put there, along both axes: the three outputs and
// inputs of a ring leave no place for a fourth.
TEST(Init, AMaskAlongBothAxesStaysOne) {
  const ScratchFolder scratch;
  NamedTensors tensors = tensors_of(small_run("mlp"));
  for (auto& [name, tensor] : tensors) {
    if (name != "hidden1.weight") continue;
    const torch::Tensor tile = torch::zeros({4, 4});
    for (int64_t i = 0; i < 3; ++i) {
      tile[i][i] = 1.0;
      tile[i][(i + 1) % 3] = 1.0;
    }
    tensor = tensor * tile.repeat({4, 4});
  }
  Metadata metadata;
  Sparsity{{{"hidden1.weight", k24Both}}}.store_in(metadata);
  write_tensors(scratch / "init.safetensors", tensors, metadata);
  for (const std::string recipe : {"static", "static+forward=transposable"}) {
    const auto run = scratch / recipe;
    const RunOptions options = tuned_run("mlp", recipe, scratch / "init.safetensors");
    Notes notes;
    Trainer trainer = Trainer::begin(run, make_parts(options), listening(notes));
    EXPECT_EQ(notes.all, "");
    EXPECT_EQ(trainer.layers()[1].report.reason, "init promises 2:4 along both axes");
    trainer.advance(options.steps);
    const RunResult result = trainer.finish();
    const auto exported = run / "model.safetensors";
    expect_tuned(read_tensors(options.init).at("hidden1.weight"),
                 read_tensors(exported).at("hidden1.weight"), recipe);
    EXPECT_EQ(Checkpoint::open(exported).sparsity().tensors.at("hidden1.weight").axis, Axis::kBoth);
    EXPECT_EQ(broken_promise(exported), "");
    const RunParts parts = load_model(run);
    EXPECT_EQ(evaluate(*parts.model, *parts.source, options.batch, 0).loss, result.eval.loss);
  }
}

// Found once, from scratch after a dense head, or of a model that is N:M along inputs only: then
// what is zero stays zero, and a line says that more will be.
TEST(Init, AFixedMaskCanBeTransposable) {
  const ScratchFolder scratch;
  const std::string recipe = "static+forward=transposable";
  RunOptions options = small_run("mlp", recipe);
  options.exports = "packed";
  Trainer whole = Trainer::begin(scratch / "whole", make_parts(options));
  whole.advance(options.steps);
  const RunResult result = whole.finish();
  const auto model = scratch / "whole" / "model.safetensors";
  EXPECT_EQ(Checkpoint::open(model).sparsity().tensors.at("hidden1.weight").axis, Axis::kBoth);
  EXPECT_EQ(broken_promise(model), "");
  EXPECT_EQ(result.density, 0.5);
  EXPECT_TRUE(std::filesystem::exists(scratch / "whole" / "packed.safetensors"));
  EXPECT_EQ(interrupted_model(scratch / "pieces", options, {3, 6, 5}), contents(model));

  const std::string file = write_init(scratch / "init.safetensors", tensors_of(small_run("mlp")),
                                      {{"hidden1.weight", k24}});
  const RunOptions tuning = tuned_run("mlp", recipe, file);
  Notes notes;
  Trainer tuned = Trainer::begin(scratch / "tuned", make_parts(tuning), listening(notes));
  EXPECT_TRUE(contains(notes.all, "'hidden1.weight': promised along inputs only")) << notes.all;
  tuned.advance(tuning.steps);
  const RunResult tuned_result = tuned.finish();
  const auto exported = scratch / "tuned" / "model.safetensors";
  EXPECT_EQ(broken_promise(exported), "");
  const torch::Tensor before = read_tensors(file).at("hidden1.weight"),
                      after = read_tensors(exported).at("hidden1.weight");
  EXPECT_FALSE(before.eq(0).logical_and(after.ne(0)).any().item<bool>());
  EXPECT_LT(tuned_result.density, 0.5);
  const RunParts parts = load_model(scratch / "tuned");
  EXPECT_EQ(evaluate(*parts.model, *parts.source, tuning.batch, 0).loss, tuned_result.eval.loss);
}

// "recipe pattern (reason)" of every layer.
std::vector<std::string> layers_of_run(const Trainer& trainer) {
  std::vector<std::string> found;
  for (const PlannedLayer& layer : trainer.layers()) {
    const LayerReport& report = layer.report;
    found.push_back(fmt::format("{} {} ({})", report.recipe,
                                report.pattern.empty() ? "-" : report.pattern, report.reason));
  }
  return found;
}

std::vector<std::string> layers_with(const RunOptions& options) {
  const ScratchFolder scratch;
  return layers_of_run(Trainer::begin(scratch / "run", make_parts(options)));
}

TEST(Init, ThePlanOfTheFileSaysWhichLayersAreSparse) {
  const ScratchFolder scratch;
  const NamedTensors tensors = tensors_of(small_run("mlp"));
  const std::string planned = write_init(scratch / "planned.safetensors", tensors,
                                         {{"hidden0.weight", k14}, {"head.weight", k24}});
  const std::string bare = write_init(scratch / "bare.safetensors", tensors, {});
  RunOptions options = tuned_run("mlp", "static", planned);
  options.pattern = "4:8";
  using Layers = std::vector<std::string>;
  EXPECT_EQ(layers_with(options), (Layers{"static+dense_head=0 1:4 (init promises 1:4)",
                                          "dense - (init promises no pattern for it)",
                                          "static+dense_head=0 2:4 (init promises 2:4)"}));
  options.recipe = "static+dense_head=0.25";
  EXPECT_EQ(layers_with(options)[0], "static+dense_head=0.25 1:4 (init promises 1:4)");
  options.recipe = "s-ste";
  EXPECT_EQ(layers_with(options),
            (Layers{"dense - (the first layer)", "s-ste 4:8 (the recipe of the config)",
                    "dense - (the last layer)"}));
  // A rule of the user comes first; one without a pattern leaves that to the file.
  options.rules = {"head=dense", "h.*0=static", "h.*=static@1:8"};
  EXPECT_EQ(layers_with(options),
            (Layers{"static+dense_head=0 1:4 (rule 'h.*0', init promises 1:4)",
                    "static+dense_head=0 1:8 (rule 'h.*')", "dense - (rule 'head')"}));
  options.rules = {"hidden1=static"};
  EXPECT_EQ(layers_with(options)[1], "static+dense_head=0 4:8 (rule 'hidden1')");
  options = tuned_run("mlp", "static", bare);
  options.pattern = "4:8";
  EXPECT_EQ(layers_with(options), (Layers{"dense - (the first layer)",
                                          "static+dense_head=0 4:8 (the recipe of the config)",
                                          "dense - (the last layer)"}));
  options.init.clear();
  EXPECT_EQ(layers_with(options)[1], "static 4:8 (the recipe of the config)");
}

TEST(Init, APromiseThatCannotBeKeptIsSaid) {
  const ScratchFolder scratch;
  const NamedTensors tensors = tensors_of(small_run("mlp"));
  const auto file = scratch / "init.safetensors";
  const auto write = [&](const Promises& promises) {
    Metadata metadata;
    Sparsity{promises}.store_in(metadata);
    write_tensors(file, tensors, metadata);
  };
  RunOptions options = tuned_run("mlp", "static", file);
  write({{"hidden1.weight", k24}, {"gone.weight", k24}});
  Notes notes;
  { Trainer::begin(scratch / "crowded", make_parts(options), listening(notes)); }
  EXPECT_EQ(notes.all,
            file.string() +
                ": tensor 'hidden1.weight': violates the pattern that weft.sparsity promises: "
                "only the largest of each group are kept\n");
  write({{"hidden1.weight", {Pattern(2, 4), Axis::kOut}}});
  EXPECT_TRUE(contains(message_of([&] { Trainer::begin(scratch / "out", make_parts(options)); }),
                       file.string() + ": tensor 'hidden1.weight' is 2:4 along outputs only"));
  EXPECT_FALSE(std::filesystem::exists(scratch / "out"));
  write({{"hidden1.weight", {Pattern(2, 4), Axis::kIn, "", true}}});
  EXPECT_TRUE(contains(message_of([&] { Trainer::begin(scratch / "out", make_parts(options)); }),
                       file.string() + ": tensor 'hidden1.weight' is stored [ins, outs]"));
  write({{"hidden1.weight", {Pattern(2, 4), Axis::kOut}}});
  options.rules = {"hidden1=dense"};
  { Trainer::begin(scratch / "out", make_parts(options)); }
  // More inputs to a group than the layer has: no matter, unless there are zeros.
  const Promises narrow = {{"hidden1.weight", {Pattern(16, 32), Axis::kIn}}};
  options.rules.clear();
  notes.all.clear();
  write(narrow);
  { Trainer::begin(scratch / "full", make_parts(options), listening(notes)); }
  EXPECT_EQ(notes.all, "");
  write_init(file, tensors, narrow);
  { Trainer::begin(scratch / "narrow", make_parts(options), listening(notes)); }
  EXPECT_TRUE(contains(
      notes.all, "tensor 'hidden1.weight': promised by weft.sparsity, but the layer is not sparse"))
      << notes.all;
}

TEST(Init, ARunGoesOnWithoutTheFile) {
  const ScratchFolder scratch;
  for (const auto& [recipe, model] :
       std::map<std::string, std::string>{{"static", "cnn"}, {"s-ste", "mlp"}, {"lbc", "mlp"}}) {
    const auto file = scratch / "init.safetensors";
    const std::string layer = model == "cnn" ? "stage1_0.conv2" : "hidden1";
    write_init(file, tensors_of(small_run(model)), {{layer + ".weight", k14}});
    const RunOptions options = tuned_run(model, recipe, file);
    const auto layers = layers_with(options);
    const auto whole = scratch / (recipe + "-whole"), pieces = scratch / (recipe + "-pieces");
    const std::string expected = finished_model(whole, Trainer::begin(whole, make_parts(options)));
    { Trainer::begin(pieces, make_parts(options)).advance(3); }  // not a checkpoint after step 0
    std::filesystem::remove(file);
    const auto resume = [&] { return Trainer::resume(pieces, make_parts(resume_options(pieces))); };
    EXPECT_EQ(resume().step(), 0);
    EXPECT_EQ(layers_of_run(resume()), layers) << recipe;
    { resume().advance(6); }
    { resume().advance(5); }
    EXPECT_EQ(finished_model(pieces, resume()), expected) << recipe;
  }
}

TEST(Init, ARunNeverGoesOnFromOtherWeights) {
  const ScratchFolder scratch;
  const auto file = write_init(scratch / "init.safetensors", tensors_of(small_run("mlp")), {});
  const RunOptions options = tuned_run("mlp", "dense", file);
  const auto folder = scratch / "run", other = scratch / "other";
  const auto first = [](const std::filesystem::path& path) {
    return path / "checkpoints" / "step-000000000.safetensors";
  };
  { Trainer::begin(folder, make_parts(options)); }
  // The same options, and a file of the same name with other weights in it.
  RunOptions wider = small_run("mlp");
  wider.seed = 3;
  write_init(file, tensors_of(wider), {});
  { Trainer::begin(other, make_parts(options)); }
  Notes notes;
  const auto resumed = [&] {
    return message_of(
        [&] { Trainer::resume(folder, make_parts(resume_options(folder)), listening(notes)); });
  };
  EXPECT_EQ(resumed(), "(no Error)");
  std::filesystem::copy_file(first(other), first(folder),
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_TRUE(contains(resumed(), "no checkpoint can be used"));
  EXPECT_TRUE(contains(notes.all, "belongs to another run")) << notes.all;
  std::filesystem::remove(first(folder));
  EXPECT_TRUE(contains(resumed(), "there is no checkpoint"));
  // Killed before there was a record: a new run takes the folder, and nothing else from it.
  std::filesystem::remove(other / "run.json");
  const RunOptions random = small_run("mlp", "dense");
  { Trainer::begin(other, make_parts(random)).advance(1); }
  EXPECT_FALSE(std::filesystem::exists(first(other)));
  const auto whole = scratch / "whole";
  EXPECT_EQ(finished_model(other, Trainer::resume(other, make_parts(resume_options(other)))),
            finished_model(whole, Trainer::begin(whole, make_parts(random))));
}

TEST(Init, WhatDoesNotFitIsRefusedByName) {
  const ScratchFolder scratch;
  const NamedTensors tensors = tensors_of(small_run("cnn"));
  const std::string file = scratch / "init.safetensors";
  const auto refusal = [&](const std::string& init) {
    const std::string message = message_of(
        [&] { Trainer::begin(scratch / "run", make_parts(tuned_run("cnn", "static", init))); });
    EXPECT_FALSE(std::filesystem::exists(scratch / "run")) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  };
  // The file with another tensor in place of one, or without it.
  const auto with = [&](const std::string& name, const torch::Tensor& instead) {
    NamedTensors changed;
    for (const auto& [key, tensor] : tensors) {
      if (key != name) changed.emplace_back(key, tensor);
      if (key == name && instead.defined()) changed.emplace_back(key, instead);
    }
    EXPECT_TRUE(instead.defined() || changed.size() + 1 == tensors.size()) << name;
    write_tensors(file, changed, {});
    return refusal(file);
  };
  EXPECT_EQ(with("head.bias", {}), file + ": tensor 'head.bias' of the model is missing");
  EXPECT_EQ(with("norm.running_mean", {}),
            file + ": tensor 'norm.running_mean' of the model is missing");
  EXPECT_EQ(with("head.weight", torch::zeros({16, 31})),
            file + ": tensor 'head.weight' has shape [16, 31], the model's has [16, 32]");
  EXPECT_EQ(with("head.weight", torch::zeros({16, 32}, torch::kLong)),
            file + ": tensor 'head.weight' is I64: accepted are F32, F16, BF16 and F64");
  EXPECT_TRUE(contains(with("norm.num_batches_tracked", torch::zeros({})),
                       file + ": tensor 'norm.num_batches_tracked' is Float"));
  EXPECT_TRUE(contains(with("head.bias", torch::full({16}, 1e39, torch::kDouble)),
                       file + ": tensor 'head.bias' has a value that is not finite"));
  EXPECT_TRUE(contains(refusal(scratch / "none.safetensors"), "none.safetensors"));
  put(file, "no tensors here");
  EXPECT_TRUE(contains(refusal(file), file + ": "));
}

TEST(Init, TensorsThatTheModelDoesNotHaveAreLeftOut) {
  const ScratchFolder scratch;
  NamedTensors tensors = tensors_of(small_run("mlp"));
  const auto noted = [&](const std::string& name) {
    const std::string file = write_init(scratch / (name + ".safetensors"), tensors, {});
    Notes notes;
    Trainer::begin(scratch / name, make_parts(tuned_run("mlp", "dense", file)), listening(notes));
    return notes.all;
  };
  EXPECT_EQ(noted("none"), "");
  tensors.emplace_back("z.scale", torch::ones({2}));
  EXPECT_TRUE(contains(noted("one"), ": tensor 'z.scale': ignored: the model has no such tensor"));
  tensors.emplace_back("z.shift", torch::ones({2}));
  EXPECT_TRUE(contains(noted("two"), ": tensor 'z.scale' and 1 more: ignored: the model"));
}

TEST(Init, AComparisonBeginsWithTheFile) {
  const ScratchFolder scratch;
  CompareOptions options;
  options.run = tuned_run("mlp", "dense",
                          write_init(scratch / "init.safetensors", tensors_of(small_run("mlp")),
                                     {{"hidden1.weight", k24}}));
  options.recipes = {"static"};
  options.patterns = {"2:4"};
  const auto result = compare(scratch / "runs", options, nullptr, [](double) {});
  ASSERT_TRUE(result);
  EXPECT_EQ(result->rows[1].check, "ok");
  const auto model = scratch / "runs" / run_folder_name("static", "2:4", 9) / "model.safetensors";
  expect_tuned(read_tensors(options.run.init).at("hidden1.weight"),
               read_tensors(model).at("hidden1.weight"), "hidden1");
}

}  // namespace
}  // namespace weft::test
