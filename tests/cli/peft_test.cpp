// weft merge of adapters that PEFT saved: scales, ranks, transposed layers.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/cli/merges.h"
#include "tests/support.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;

// A folder as PEFT saves it, for a base of the layers `model.layers.<i>.<name>`.
struct Adapter {
  explicit Adapter(const ScratchFolder& folder) : path(folder / "adapter") {
    fs::create_directory(path);
  }
  void add(const std::string& layer, int64_t outs, int64_t ins, int64_t rank,
           const std::string& ending = ".weight") {
    const auto stream = static_cast<uint64_t>(tensors.size());
    tensors.push_back({"base_model.model." + layer + ".lora_A" + ending,
                       Dtype::kF32,
                       {rank, ins},
                       integers(rank * ins, 50 + stream)});
    tensors.push_back({"base_model.model." + layer + ".lora_B" + ending,
                       Dtype::kF32,
                       {outs, rank},
                       integers(outs * rank, 51 + stream)});
  }
  void write(const std::string& config) const {
    write_file(path / "adapter_model.safetensors", tensors);
    if (!config.empty()) put(path / "adapter_config.json", config);
  }
  // scale * B A of the i-th layer that was added.
  std::vector<double> product(size_t i, double scale) const {
    return lora_product(tensors[2 * i].values, tensors[2 * i + 1].values,
                        static_cast<size_t>(tensors[2 * i].shape[0]), scale);
  }

  fs::path path;
  std::vector<NamedTensor> tensors;
};

// W + D, rounded once.
std::vector<float> sum_of(const std::vector<float>& base, const std::vector<double>& delta) {
  std::vector<float> sum;
  for (size_t i = 0; i < base.size(); ++i) {
    sum.push_back(static_cast<float>(double{base[i]} + delta[i]));
  }
  return sum;
}

std::vector<double> turned_over(const std::vector<double>& d, size_t rows, size_t cols) {
  std::vector<double> to(d.size());
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < cols; ++c) to[c * rows + r] = d[r * cols + c];
  }
  return to;
}

const std::vector<std::string> kLayers = {"model.layers.0.self_attn.q_proj",
                                          "model.layers.0.self_attn.v_proj",
                                          "model.layers.1.self_attn.q_proj", "model.layers.1.proj"};

std::string write_layers(const ScratchFolder& folder, const std::string& name = "base") {
  std::vector<NamedTensor> tensors;
  for (const std::string& layer : kLayers) {
    tensors.push_back({layer + ".weight", Dtype::kF32, {8, 12}, integers(96, 10 + tensors.size())});
  }
  write_file(folder / name, tensors);
  return folder / name;
}

// The scales of kLayers, by adapter_config.json; the ranks are those of the tensors.
TEST(Peft, TheScaleOfEveryLayerIsThatOfItsConfig) {
  struct Case {
    std::string config;
    std::vector<int64_t> ranks;
    std::vector<double> scales;
  };
  const double root2 = std::sqrt(2.0);
  for (const auto& [config, ranks, scales] : std::vector<Case>{
           {R"("r": 2, "lora_alpha": 8)", {2, 2, 2, 2}, {4, 4, 4, 4}},
           {R"("r": 4, "lora_alpha": 1.0)", {4, 4, 4, 4}, {.25, .25, .25, .25}},
           {R"("r": 4, "lora_alpha": 8, "use_rslora": true)", {4, 4, 4, 4}, {4, 4, 4, 4}},
           {R"("r": 2, "lora_alpha": 2, "use_rslora": true)",
            {2, 2, 2, 2},
            {root2, root2, root2, root2}},
           // A name for all layers, for one, a regular expression; `proj` is no end of `q_proj`.
           {R"("r": 2, "lora_alpha": 8, "alpha_pattern": {"q_proj": 16, "proj": 2})",
            {2, 2, 2, 2},
            {8, 4, 8, 1}},
           {R"("r": 2, "lora_alpha": 8, "alpha_pattern": {"model.layers.0.self_attn.q_proj": 1})",
            {2, 2, 2, 2},
            {.5, 4, 4, 4}},
           {R"("r": 2, "lora_alpha": 8, "alpha_pattern": {"layers\\.1\\..*": 32})",
            {2, 2, 2, 2},
            {4, 4, 16, 16}},
           {R"("r": 2, "lora_alpha": 8, "rank_pattern": {"v_proj": 4, "layers.1.proj": 1})",
            {2, 4, 2, 1},
            {4, 2, 4, 8}},
           {R"("r": 2, "lora_alpha": 8, "rank_pattern": {"v_proj": 4}, "use_rslora": true,
               "alpha_pattern": {"v_proj": 3})",
            {2, 4, 2, 2},
            {8 / root2, 1.5, 8 / root2, 8 / root2}}}) {
    SCOPED_TRACE(config);
    const ScratchFolder folder;
    const std::string base = write_layers(folder), out = folder / "o";
    Adapter adapter(folder);
    for (size_t i = 0; i < kLayers.size(); ++i) adapter.add(kLayers[i], 8, 12, ranks[i]);
    adapter.write(R"({"peft_type": "LORA", "bias": "none", "modules_to_save": null,
                      "use_dora": false, "target_modules": ["q_proj"], )" +
                  config + "}");
    // The folder, and the file in it.
    for (const fs::path& given : {adapter.path, adapter.path / "adapter_model.safetensors"}) {
      const Json report = merged_json({base, given, out, "--pattern", "4:4"});
      EXPECT_EQ(report["adapter_config"], (adapter.path / "adapter_config.json").string());
      ASSERT_EQ(report["tensors"].size(), kLayers.size());
      for (size_t i = 0; i < kLayers.size(); ++i) {
        const std::string name = kLayers[i] + ".weight";
        EXPECT_DOUBLE_EQ(report["tensors"][i]["scale"].get<double>(), scales[i]) << name;
        EXPECT_EQ(report["tensors"][i]["rank"], ranks[i]);
        EXPECT_EQ(floats_of(out, name),
                  sum_of(floats_of(base, name), adapter.product(i, scales[i])))
            << name;
      }
    }
  }
}

TEST(Peft, AScaleThatIsGivenGoesBeforeTheConfigAndWithoutEitherItIsSaid) {
  const ScratchFolder folder;
  const std::string base = write_layers(folder), out = folder / "o", name = kLayers[0] + ".weight";
  Adapter adapter(folder);
  adapter.add(kLayers[0], 8, 12, 2, ".default.weight");
  adapter.write(R"({"peft_type": "LORA", "r": 2, "lora_alpha": 8})");
  merged_json({base, adapter.path, out, "--pattern", "4:4", "--scale", "0.5"});
  EXPECT_EQ(floats_of(out, name), sum_of(floats_of(base, name), adapter.product(0, 0.5)));
  fs::remove(adapter.path / "adapter_config.json");
  const Outcome outcome = run({"merge", base, adapter.path, out, "--pattern", "4:4"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_TRUE(contains(outcome.err, "no adapter_config.json")) << outcome.err;
  EXPECT_TRUE(contains(outcome.err, "at scale 1 ")) << outcome.err;
  EXPECT_EQ(floats_of(out, name), sum_of(floats_of(base, name), adapter.product(0, 1)));
  const Outcome told = run({"merge", base, adapter.path, out, "--pattern", "4:4", "--scale", "1"});
  EXPECT_EQ(told.err, "");
}

TEST(Peft, AFolderMayHoldOtherFilesOfTensors) {
  const ScratchFolder folder;
  const std::string base = write_layers(folder);
  Adapter adapter(folder);
  adapter.add(kLayers[0], 8, 12, 2);
  adapter.write(R"({"peft_type": "LORA", "r": 2, "lora_alpha": 8})");
  write_layers(folder, "adapter/model.safetensors");
  EXPECT_EQ(run({"merge", base, adapter.path, folder / "o", "--pattern", "4:4"}).code, 0);
}

// GPT-2 from its hub: names without `transformer.`, weights [ins, outs], the square one too.
TEST(Peft, AnAdapterOfGpt2IsAddedTransposedWhereWeftKnowsTheBaseOrTheConfigSaysSo) {
  const ScratchFolder folder;
  const std::string dense = folder / "gpt2", sparse = folder / "sparse", out = folder / "o";
  const std::string attn = "h.0.attn.c_attn.weight", proj = "h.0.attn.c_proj.weight";
  write_file(dense, {{attn, Dtype::kF32, {8, 24}, integers(192, 1)},
                     {proj, Dtype::kF32, {8, 8}, integers(64, 2)}});
  ASSERT_EQ(run({"mask", dense, sparse, "--pattern", "2:4"}).code, 0);
  Adapter adapter(folder);
  adapter.add("transformer.h.0.attn.c_attn", 24, 8, 2);
  adapter.add("transformer.h.0.attn.c_proj", 8, 8, 2);
  for (const std::string word : {"true", "false"}) {
    SCOPED_TRACE(word);
    adapter.write(R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "fan_in_fan_out": )" + word +
                  "}");
    const Json report = merged_json({sparse, adapter.path, out});
    EXPECT_EQ(floats_of(out, attn),
              merged_within(floats_of(sparse, attn), turned_over(adapter.product(0, 2), 24, 8)));
    EXPECT_EQ(floats_of(out, proj),
              merged_within(floats_of(sparse, proj), turned_over(adapter.product(1, 2), 8, 8)));
    EXPECT_TRUE(report["tensors"][0]["transposed"].get<bool>());
    expect_checked(out);
    // With a new mask, found along inputs, and without any pattern.
    merged_json({sparse, adapter.path, out, "--mask", "new"});
    expect_checked(out);
    merged_json({dense, adapter.path, out, "--exclude", "c_", "--pattern", "2:4"});
    EXPECT_EQ(floats_of(out, attn),
              sum_of(floats_of(dense, attn), turned_over(adapter.product(0, 2), 24, 8)));
  }
}

TEST(Peft, FanInFanOutTransposesWhatIsKnownFromNoOtherPlace) {
  const ScratchFolder folder;
  const std::string base = folder / "b", out = folder / "o";
  write_file(base, {{"square.weight", Dtype::kF32, {8, 8}, integers(64, 1)},
                    {"wide.weight", Dtype::kF32, {8, 12}, integers(96, 2)},
                    {"linear.weight", Dtype::kF32, {8, 12}, integers(96, 3)}});
  Adapter adapter(folder);
  adapter.add("square", 8, 8, 2);
  adapter.add("wide", 12, 8, 2);    // stored [ins, outs]
  adapter.add("linear", 8, 12, 2);  // [outs, ins], as PEFT finds out by its class
  adapter.write(R"({"peft_type": "LORA", "r": 2, "lora_alpha": 2, "fan_in_fan_out": true})");
  const auto expect_sums = [&] {
    EXPECT_EQ(floats_of(out, "square.weight"),
              sum_of(floats_of(base, "square.weight"), turned_over(adapter.product(0, 1), 8, 8)));
    EXPECT_EQ(floats_of(out, "wide.weight"),
              sum_of(floats_of(base, "wide.weight"), turned_over(adapter.product(1, 1), 12, 8)));
    EXPECT_EQ(floats_of(out, "linear.weight"),
              sum_of(floats_of(base, "linear.weight"), adapter.product(2, 1)));
  };
  merged_json({base, adapter.path, out, "--pattern", "4:4"});
  expect_sums();
  merged_json({base, adapter.path, out, "--pattern", "4:4", "--transposed", "square|wide"});
  expect_sums();
  adapter.write(R"({"peft_type": "LORA", "r": 2, "lora_alpha": 2, "fan_in_fan_out": false})");
  expect_one_line(run({"merge", base, adapter.path, out, "--pattern", "4:4"}), 1,
                  {"'base_model.model.wide.lora_A.weight'", "[2, 8]", "accepted is [2, 12]"});
}

TEST(Peft, WhatIsNotPlainLoraOrMalformedIsOneLineWithFileAndKey) {
  const ScratchFolder folder;
  const std::string base = write_layers(folder), out = folder / "o";
  Adapter adapter(folder);
  adapter.add(kLayers[0], 8, 12, 2);
  const std::string config = adapter.path / "adapter_config.json";
  const std::string usual = R"("peft_type": "LORA", "r": 2, "lora_alpha": 4)";
  struct Case {
    std::string text;
    std::vector<std::string> parts;
  };
  for (const auto& [text, parts] : std::vector<Case>{
           {"{", {"not valid JSON"}},
           {"[1]", {"not an object"}},
           {"{}", {"'peft_type'", "accepted is \"LORA\""}},
           {R"({"peft_type": "IA3", "r": 2, "lora_alpha": 4})", {"'peft_type' is \"IA3\""}},
           {R"({"peft_type": 3, "r": 2, "lora_alpha": 4})", {"'peft_type' is 3"}},
           {R"({"peft_type": "LORA", "lora_alpha": 4})", {"no 'r'"}},
           {R"({"peft_type": "LORA", "r": 2})", {"no 'lora_alpha'"}},
           {R"({"peft_type": "LORA", "r": "2", "lora_alpha": 4})",
            {"'r' is \"2\"", "whole number"}},
           {R"({"peft_type": "LORA", "r": 0, "lora_alpha": 4})", {"'r' is 0", "1 or more"}},
           {R"({"peft_type": "LORA", "r": -2, "lora_alpha": 4})", {"'r' is -2"}},
           {R"({"peft_type": "LORA", "r": 2.5, "lora_alpha": 4})", {"'r' is 2.5"}},
           {R"({"peft_type": "LORA", "r": 2, "lora_alpha": "4"})", {"'lora_alpha' is \"4\""}},
           {R"({"peft_type": "LORA", "r": 3, "lora_alpha": 4})", {"'r' is 3", "rank 2"}},
           {"{" + usual + R"(, "use_rslora": 1})", {"'use_rslora' is 1", "true or false"}},
           {"{" + usual + R"(, "fan_in_fan_out": "no"})", {"'fan_in_fan_out' is \"no\""}},
           {"{" + usual + R"(, "use_dora": true})", {"'use_dora' is true"}},
           {"{" + usual + R"(, "lora_bias": true})", {"'lora_bias' is true"}},
           {"{" + usual + R"(, "modules_to_save": ["score"]})",
            {"'modules_to_save' is [\"score\"]"}},
           {"{" + usual + R"(, "layer_replication": [[0, 1]]})", {"'layer_replication'"}},
           {"{" + usual + R"(, "init_lora_weights": "pissa_niter_4"})",
            {"'init_lora_weights' is \"pissa_niter_4\""}},
           {"{" + usual + R"(, "alpha_pattern": [1]})", {"'alpha_pattern' is [1]"}},
           {"{" + usual + R"(, "alpha_pattern": {"q_proj": "x"}})", {"'alpha_pattern.q_proj'"}},
           {"{" + usual + R"(, "rank_pattern": {"q_proj": 0}})", {"'rank_pattern.q_proj' is 0"}},
           {"{" + usual + R"(, "rank_pattern": {"q_(": 2}})",
            {"'rank_pattern.q_('", "not a regular expression"}},
           {"{" + usual + R"(, "rank_pattern": {"q_proj": 8}})", {"'r' is 8", "rank 2"}},
           {"{" + usual + R"(, "alpha_pattern": {"q_proj": 8, "self_attn.q_proj": 2}})",
            {"'alpha_pattern'", "'q_proj' and 'self_attn.q_proj'", "accepted is one"}}}) {
    SCOPED_TRACE(text);
    adapter.write(text);
    std::vector<std::string> all = parts;
    all.push_back(config);
    expect_one_line(run({"merge", base, adapter.path, out, "--pattern", "4:4"}), 1, all);
    EXPECT_FALSE(fs::exists(out));
  }
}

TEST(Peft, WholeWeightsBesidePairsAreRefused) {
  for (const std::string prefix : {"base_model.model.", ""}) {
    const ScratchFolder folder;
    const std::string base = write_layers(folder);
    Adapter adapter(folder);
    adapter.add(kLayers[0], 8, 12, 2);
    adapter.tensors.push_back(
        {prefix + kLayers[1] + ".weight", Dtype::kF32, {8, 12}, integers(96, 3)});
    adapter.write(R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "lora_only"})");
    expect_one_line(
        run({"merge", base, adapter.path, folder / "o", "--pattern", "4:4"}), 1,
        {kLayers[1] + ".weight", "adapter_config.json", "no biases and no modules_to_save"});
  }
}

}  // namespace
}  // namespace weft::test
