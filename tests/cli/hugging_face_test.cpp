// Files as Hugging Face has them: which tensors are made sparse by default, and along which axis.
//
// Names are those of the models' classes in transformers (and, where said, of torchvision, timm and
// nanoGPT), shapes are as theirs in proportion.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>

#include "tests/cli/outcomes.h"
#include "tests/model_files.h"
#include "tests/support.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;

// Threads of small work on a busy machine mostly wait for each other.
[[maybe_unused]] const int kOneThread = ::setenv("OMP_NUM_THREADS", "1", 1);

using Shape = std::vector<int64_t>;

constexpr const char* kHead = "head";
constexpr const char* kEmbedding = "embedding";
constexpr const char* kNorm = "normalisation";
constexpr const char* kRouter = "router of experts";
constexpr const char* kPosition = "position bias";

struct Expected {
  std::string name;
  Shape shape;
  std::string outcome;
};

struct Model {
  std::string config;  // the text of config.json
  std::vector<Expected> tensors;
};

constexpr int64_t n = 8, kWords = 40;

std::vector<Expected> bert_layer(const std::string& prefix) {
  return {{prefix + "attention.self.query.weight", {n, n}, kMasked},
          {prefix + "attention.self.key.weight", {n, n}, kMasked},
          {prefix + "attention.self.value.weight", {n, n}, kMasked},
          {prefix + "attention.output.dense.weight", {n, n}, kMasked},
          {prefix + "attention.output.LayerNorm.weight", {n}, kNorm},
          {prefix + "intermediate.dense.weight", {4 * n, n}, kMasked},
          {prefix + "output.dense.weight", {n, 4 * n}, kMasked},
          {prefix + "output.LayerNorm.weight", {n}, kNorm}};
}

std::vector<Expected> llama_layer(const std::string& prefix) {
  return {{prefix + "self_attn.q_proj.weight", {n, n}, kMasked},
          {prefix + "self_attn.k_proj.weight", {n / 2, n}, kMasked},
          {prefix + "self_attn.v_proj.weight", {n / 2, n}, kMasked},
          {prefix + "self_attn.o_proj.weight", {n, n}, kMasked},
          {prefix + "input_layernorm.weight", {n}, kNorm},
          {prefix + "post_attention_layernorm.weight", {n}, kNorm}};
}

std::vector<Expected> gpt2_layer(const std::string& prefix) {
  return {{prefix + "ln_1.weight", {n}, kNorm},
          {prefix + "attn.bias", {1, 1, n, n}, "name does not end in 'weight'"},
          {prefix + "attn.c_attn.weight", {n, 3 * n}, kMaskedTransposed},
          {prefix + "attn.c_attn.bias", {3 * n}, "name does not end in 'weight'"},
          {prefix + "attn.c_proj.weight", {n, n}, kMaskedTransposed},
          {prefix + "mlp.c_fc.weight", {n, 4 * n}, kMaskedTransposed},
          {prefix + "mlp.c_proj.weight", {4 * n, n}, kMaskedTransposed}};
}

Model model_of(const std::string& config, std::initializer_list<std::vector<Expected>> parts) {
  Model model{config, {}};
  for (const auto& part : parts) {
    model.tensors.insert(model.tensors.end(), part.begin(), part.end());
  }
  return model;
}

// The same outcome with and without config.json.
std::map<std::string, Model> models() {
  std::map<std::string, Model> all;
  all["bert"] =
      model_of(R"({"model_type": "bert", "architectures": ["BertForSequenceClassification"]})",
               {{{"bert.embeddings.word_embeddings.weight", {kWords, n}, kEmbedding},
                 {"bert.embeddings.position_embeddings.weight", {16, n}, kEmbedding},
                 {"bert.embeddings.token_type_embeddings.weight", {2, n}, kEmbedding},
                 {"bert.embeddings.LayerNorm.weight", {n}, kEmbedding}},
                bert_layer("bert.encoder.layer.0."),
                bert_layer("bert.encoder.layer.11."),
                {{"bert.pooler.dense.weight", {n, n}, kMasked},
                 {"classifier.weight", {2, n}, kHead},
                 {"qa_outputs.weight", {2, n}, kHead},
                 {"cls.predictions.transform.dense.weight", {n, n}, kHead},
                 {"cls.predictions.decoder.weight", {kWords, n}, kHead},
                 {"cls.seq_relationship.weight", {2, n}, kHead}}});
  all["sentence transformer"] =
      model_of(R"({"model_type": "bert", "architectures": ["BertModel"], "vocab_size": 40})",
               {{{"embeddings.word_embeddings.weight", {kWords, n}, kEmbedding}},
                bert_layer("encoder.layer.0."),
                {{"pooler.dense.weight", {n, n}, kMasked}}});
  all["roberta"] =
      model_of(R"({"model_type": "roberta"})",
               {{{"roberta.embeddings.word_embeddings.weight", {kWords, n}, kEmbedding}},
                bert_layer("roberta.encoder.layer.0."),
                {{"lm_head.dense.weight", {n, n}, kHead},
                 {"lm_head.decoder.weight", {kWords, n}, kHead},
                 {"classifier.dense.weight", {n, n}, kHead},
                 {"classifier.out_proj.weight", {2, n}, kHead}}});
  all["distilbert"] = {
      R"({"model_type": "distilbert"})",
      {{"distilbert.embeddings.word_embeddings.weight", {kWords, n}, kEmbedding},
       {"distilbert.transformer.layer.0.attention.q_lin.weight", {n, n}, kMasked},
       {"distilbert.transformer.layer.0.attention.out_lin.weight", {n, n}, kMasked},
       {"distilbert.transformer.layer.0.sa_layer_norm.weight", {n}, kNorm},
       {"distilbert.transformer.layer.0.ffn.lin1.weight", {4 * n, n}, kMasked},
       {"distilbert.transformer.layer.0.ffn.lin2.weight", {n, 4 * n}, kMasked},
       {"vocab_transform.weight", {n, n}, kHead},
       {"vocab_projector.weight", {kWords, n}, kHead},
       {"pre_classifier.weight", {n, n}, kHead},
       {"classifier.weight", {2, n}, kHead}}};
  all["gpt2 without its prefix"] =
      model_of(R"({"model_type": "gpt2"})", {{{"wte.weight", {kWords, n}, kEmbedding},
                                              {"wpe.weight", {16, n}, kEmbedding},
                                              {"ln_f.weight", {n}, kNorm}},
                                             gpt2_layer("h.0."),
                                             gpt2_layer("h.11.")});
  all["gpt2"] =
      model_of(R"({"architectures": ["GPT2LMHeadModel"], "tie_word_embeddings": true})",
               {{{"transformer.wte.weight", {kWords, n}, kEmbedding},
                 {"transformer.wpe.weight", {16, n}, kEmbedding}},
                gpt2_layer("transformer.h.0."),
                {{"transformer.h.0.crossattention.c_attn.weight", {n, 2 * n}, kMaskedTransposed},
                 {"transformer.h.0.crossattention.q_attn.weight", {n, n}, kMaskedTransposed},
                 {"lm_head.weight", {kWords, n}, kHead},
                 {"score.weight", {2, n}, kHead}}});
  all["nanogpt"] = {"{}",
                    {{"transformer.wte.weight", {kWords, n}, kEmbedding},
                     {"transformer.h.0.attn.c_attn.weight", {3 * n, n}, kMasked},
                     {"transformer.h.0.attn.c_proj.weight", {n, n}, kMasked},
                     {"transformer.h.0.mlp.c_fc.weight", {4 * n, n}, kMasked},
                     {"transformer.h.0.mlp.c_proj.weight", {n, 4 * n}, kMasked},
                     {"lm_head.weight", {kWords, n}, kHead}}};
  all["gpt_bigcode"] = {R"({"model_type": "gpt_bigcode"})",
                        {{"transformer.h.0.attn.c_attn.weight", {n + 4, n}, kMasked},
                         {"transformer.h.0.attn.c_proj.weight", {n, n}, kMasked}}};
  all["gpt_neo"] = {R"({"model_type": "gpt_neo"})",
                    {{"transformer.h.0.attn.attention.q_proj.weight", {n, n}, kMasked},
                     {"transformer.h.0.mlp.c_fc.weight", {4 * n, n}, kMasked},
                     {"transformer.h.0.mlp.c_proj.weight", {n, 4 * n}, kMasked}}};
  all["gpt_neox"] = {R"({"model_type": "gpt_neox"})",
                     {{"gpt_neox.embed_in.weight", {kWords, n}, kEmbedding},
                      {"gpt_neox.layers.0.attention.query_key_value.weight", {3 * n, n}, kMasked},
                      {"gpt_neox.layers.0.attention.dense.weight", {n, n}, kMasked},
                      {"gpt_neox.layers.0.mlp.dense_h_to_4h.weight", {4 * n, n}, kMasked},
                      {"gpt_neox.layers.0.mlp.dense_4h_to_h.weight", {n, 4 * n}, kMasked},
                      {"gpt_neox.final_layer_norm.weight", {n}, kNorm},
                      {"embed_out.weight", {kWords, n}, kHead}}};
  all["llama"] = model_of(R"({"model_type": "llama", "tie_word_embeddings": false})",
                          {{{"model.embed_tokens.weight", {kWords, n}, kEmbedding}},
                           llama_layer("model.layers.0."),
                           {{"model.layers.0.mlp.gate_proj.weight", {2 * n, n}, kMasked},
                            {"model.layers.0.mlp.up_proj.weight", {2 * n, n}, kMasked},
                            {"model.layers.0.mlp.down_proj.weight", {n, 2 * n}, kMasked},
                            {"model.norm.weight", {n}, kNorm},
                            {"lm_head.weight", {kWords, n}, kHead},
                            {"score.weight", {2, n}, kHead}}});
  all["mistral"] = all["qwen2"] = all["llama"];
  all["mistral"].config = R"({"model_type": "mistral"})";
  all["qwen2"].config = R"({"model_type": "qwen2", "tie_word_embeddings": true})";
  all["llama as meta publishes it"] = {"{}",
                                       {{"tok_embeddings.weight", {kWords, n}, kEmbedding},
                                        {"layers.0.attention.wq.weight", {n, n}, kMasked},
                                        {"layers.0.feed_forward.w1.weight", {2 * n, n}, kMasked},
                                        {"output.weight", {kWords, n}, kHead}}};
  const std::string moe = "model.layers.0.block_sparse_moe.";
  all["mixtral"] =
      model_of(R"({"model_type": "mixtral"})", {llama_layer("model.layers.0."),
                                                {{moe + "gate.weight", {8, n}, kRouter},
                                                 {moe + "experts.0.w1.weight", {2 * n, n}, kMasked},
                                                 {moe + "experts.0.w2.weight", {n, 2 * n}, kMasked},
                                                 {moe + "experts.7.w3.weight", {2 * n, n}, kMasked},
                                                 {"lm_head.weight", {kWords, n}, kHead}}});
  const std::string mlp = "model.layers.0.mlp.";
  all["qwen2_moe"] = model_of(R"({"model_type": "qwen2_moe"})",
                              {llama_layer("model.layers.0."),
                               {{mlp + "gate.weight", {60, n}, kRouter},
                                {mlp + "shared_expert_gate.weight", {1, n}, kRouter},
                                {mlp + "shared_expert.gate_proj.weight", {2 * n, n}, kMasked},
                                {mlp + "experts.0.gate_proj.weight", {2 * n, n}, kMasked},
                                {mlp + "experts.0.down_proj.weight", {n, 2 * n}, kMasked}}});
  all["switch_transformers"] = {
      R"({"model_type": "switch_transformers"})",
      {{"encoder.block.1.layer.1.mlp.router.classifier.weight", {8, n}, kRouter},
       {"encoder.block.1.layer.1.mlp.experts.expert_0.wi.weight", {2 * n, n}, kMasked}}};
  all["t5"] = {
      R"({"model_type": "t5"})",
      {{"shared.weight", {kWords, n}, kEmbedding},
       {"encoder.embed_tokens.weight", {kWords, n}, kEmbedding},
       {"encoder.block.0.layer.0.SelfAttention.q.weight", {n, n}, kMasked},
       {"encoder.block.0.layer.0.SelfAttention.o.weight", {n, n}, kMasked},
       {"encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight", {32, 8}, kPosition},
       {"encoder.block.0.layer.0.layer_norm.weight", {n}, kNorm},
       {"encoder.block.0.layer.1.DenseReluDense.wi.weight", {4 * n, n}, kMasked},
       {"encoder.block.0.layer.1.DenseReluDense.wo.weight", {n, 4 * n}, kMasked},
       {"decoder.block.0.layer.1.EncDecAttention.k.weight", {n, n}, kMasked},
       {"classification_head.dense.weight", {n, n}, kHead},
       {"lm_head.weight", {kWords, n}, kHead}}};
  all["mpnet"] = {R"({"model_type": "mpnet"})",
                  {{"encoder.layer.0.attention.attn.q.weight", {n, n}, kMasked},
                   {"encoder.relative_attention_bias.weight", {32, 8}, kPosition}}};
  all["opt"] = {R"({"model_type": "opt"})",
                {{"model.decoder.embed_tokens.weight", {kWords, n}, kEmbedding},
                 {"model.decoder.embed_positions.weight", {18, n}, kEmbedding},
                 {"model.decoder.layers.0.self_attn.q_proj.weight", {n, n}, kMasked},
                 {"model.decoder.layers.0.self_attn.out_proj.weight", {n, n}, kMasked},
                 {"model.decoder.layers.0.self_attn_layer_norm.weight", {n}, kNorm},
                 {"model.decoder.layers.0.fc1.weight", {4 * n, n}, kMasked},
                 {"model.decoder.layers.0.fc2.weight", {n, 4 * n}, kMasked},
                 {"lm_head.weight", {kWords, n}, kHead}}};
  all["vit"] = {R"({"model_type": "vit"})",
                {{"vit.embeddings.patch_embeddings.projection.weight", {n, 3, 2, 2}, kEmbedding},
                 {"vit.encoder.layer.0.attention.attention.query.weight", {n, n}, kMasked},
                 {"vit.encoder.layer.0.attention.output.dense.weight", {n, n}, kMasked},
                 {"vit.encoder.layer.0.layernorm_before.weight", {n}, kNorm},
                 {"vit.encoder.layer.0.intermediate.dense.weight", {4 * n, n}, kMasked},
                 {"classifier.weight", {10, n}, kHead}}};
  all["deit"] = {R"({"model_type": "deit"})",
                 {{"deit.encoder.layer.0.attention.attention.key.weight", {n, n}, kMasked},
                  {"cls_classifier.weight", {10, n}, kHead},
                  {"distillation_classifier.weight", {10, n}, kHead}}};
  all["vit of timm"] = {"{}",
                        {{"patch_embed.proj.weight", {n, 3, 2, 2}, kEmbedding},
                         {"blocks.0.attn.qkv.weight", {3 * n, n}, kMasked},
                         {"blocks.0.mlp.fc1.weight", {4 * n, n}, kMasked},
                         {"head.weight", {10, n}, kHead},
                         {"head_dist.weight", {10, n}, kHead}}};
  all["clip"] = {R"({"model_type": "clip", "text_config": {"model_type": "clip_text_model"}})",
                 {{"text_model.embeddings.token_embedding.weight", {kWords, n}, kEmbedding},
                  {"text_model.encoder.layers.0.self_attn.k_proj.weight", {n, n}, kMasked},
                  {"text_model.encoder.layers.0.mlp.fc1.weight", {4 * n, n}, kMasked},
                  {"text_model.final_layer_norm.weight", {n}, kNorm},
                  {"vision_model.embeddings.patch_embedding.weight", {n, 3, 2, 2}, kEmbedding},
                  {"vision_model.encoder.layers.0.self_attn.out_proj.weight", {n, n}, kMasked},
                  {"visual_projection.weight", {n, n}, kHead},
                  {"text_projection.weight", {n, n}, kHead}}};
  all["whisper"] = {R"({"model_type": "whisper"})",
                    {{"model.encoder.conv1.weight", {n, 4, 3}, "3 dimensions: weights have 2 or 4"},
                     {"model.encoder.embed_positions.weight", {16, n}, kEmbedding},
                     {"model.encoder.layers.0.self_attn.q_proj.weight", {n, n}, kMasked},
                     {"model.encoder.layers.0.fc1.weight", {4 * n, n}, kMasked},
                     {"model.decoder.layers.0.encoder_attn.k_proj.weight", {n, n}, kMasked},
                     {"model.decoder.embed_tokens.weight", {kWords, n}, kEmbedding},
                     {"proj_out.weight", {kWords, n}, kHead}}};
  all["vgg of torchvision"] = {"{}",
                               {{"features.0.weight", {n, 4, 3, 3}, kMasked},
                                {"classifier.0.weight", {4 * n, n}, kMasked},
                                {"classifier.3.weight", {4 * n, 4 * n}, kMasked},
                                {"classifier.6.weight", {10, 4 * n}, kHead}}};
  return all;
}

std::vector<float> values_for(const Shape& shape, uint64_t stream) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return gaussian(count, stream);
}

void write_tensors(const fs::path& file, const std::vector<Expected>& tensors) {
  std::vector<NamedTensor> all;
  for (const Expected& each : tensors) {
    all.push_back({each.name, Dtype::kF32, each.shape, values_for(each.shape, all.size())});
  }
  write_file(file, all);
}

TEST(HuggingFace, HiddenLayersOfEveryArchitectureAreMaskedAndNothingElse) {
  for (const auto& [name, model] : models()) {
    for (const bool with_config : {true, false}) {
      SCOPED_TRACE(name + (with_config ? " with config.json" : ""));
      const ScratchFolder folder;
      const std::string file = folder / "model.safetensors", out = folder / "sparse.safetensors";
      write_tensors(file, model.tensors);
      if (with_config) put(folder / "config.json", model.config);
      const auto masked = outcomes(report_of({"mask", file, out, "--pattern", "2:4"}));
      for (const Expected& each : model.tensors) {
        EXPECT_EQ(masked.at(each.name), each.outcome) << each.name;
      }
      // Every command asks the same place.
      const auto converted =
          outcomes(report_of({"convert", file, out, "--pattern", "2:4", "--dry-run"}), "layers");
      EXPECT_EQ(converted, masked);
      const auto packed = outcomes(report_of(
          {"pack", file, folder / "p", "--pattern", "2:4", "--by-magnitude", "--any-size"}));
      EXPECT_EQ(packed, masked);
      const Outcome checked = run({"check", file, "--pattern", "4:4", "--json"});
      EXPECT_EQ(outcomes(checked.json()), masked);
      EXPECT_EQ(run({"check", out}).code, 0);
    }
  }
}

// Weights kept of every group of four along the first dimension of a matrix, or the second.
std::vector<int> kept_per_group(const std::vector<float>& w, int64_t rows, int64_t cols,
                                bool along_first) {
  std::vector<int> kept;
  for (int64_t line = 0; line < (along_first ? cols : rows); ++line) {
    for (int64_t begin = 0; begin < (along_first ? rows : cols); begin += 4) {
      int count = 0;
      for (int64_t i = begin; i < begin + 4; ++i) {
        count += w[static_cast<size_t>(along_first ? i * cols + line : line * cols + i)] != 0;
      }
      kept.push_back(count);
    }
  }
  return kept;
}

TEST(HuggingFace, Gpt2IsMaskedAlongItsInputsWhichAreItsRows) {
  const ScratchFolder folder;
  const std::string file = folder / "model.safetensors", out = folder / "sparse.safetensors";
  write_tensors(file, gpt2_layer("h.0."));
  report_of({"mask", file, out, "--pattern", "2:4"});
  for (const Expected& each : gpt2_layer("h.0.")) {
    if (each.outcome != kMaskedTransposed) continue;
    const auto before = floats_of(file, each.name), after = floats_of(out, each.name);
    const int64_t ins = each.shape[0], outs = each.shape[1];
    const auto along_ins = kept_per_group(after, ins, outs, true);
    EXPECT_EQ(std::ranges::count(along_ins, 2), std::ssize(along_ins)) << each.name;
    const auto along_outs = kept_per_group(after, ins, outs, false);
    EXPECT_GT(std::ranges::count_if(along_outs, [](int k) { return k > 2; }), 0) << each.name;
    // The largest two of every four inputs, whatever weft thinks of it.
    for (int64_t o = 0; o < outs; ++o) {
      for (int64_t begin = 0; begin < ins; begin += 4) {
        std::vector<float> group;
        for (int64_t i = begin; i < begin + 4; ++i) {
          group.push_back(std::abs(before[static_cast<size_t>(i * outs + o)]));
        }
        std::ranges::sort(group, std::greater<>());
        for (int64_t i = begin; i < begin + 4; ++i) {
          const size_t at = static_cast<size_t>(i * outs + o);
          EXPECT_EQ(after[at], std::abs(before[at]) >= group[1] ? before[at] : 0.0F);
        }
      }
    }
  }
}

// Only config.json tells: the first shard of GPT-2 has no c_attn.
TEST(HuggingFace, ConfigTellsWhatNamesAndShapesDoNot) {
  const std::vector<Expected> tensors = {{"h.0.attn.c_proj.weight", {n, n}, ""},
                                         {"h.0.mlp.c_fc.weight", {n, 4 * n}, ""},
                                         {"generator.weight", {kWords, n}, ""},
                                         {"h.0.mlp.wide.weight", {kWords, n}, ""}};
  const std::string words = "one row for each of the 40 words of config.json";
  struct Case {
    std::string config, conv1d, generator;
  };
  for (const auto& [config, conv1d, generator] : std::vector<Case>{
           {"", kMasked, kMasked},
           {R"({"model_type": "gpt2"})", kMaskedTransposed, kMasked},
           {R"({"model_type": "gpt2", "vocab_size": 40})", kMaskedTransposed, words},
           {R"({"architectures": ["GPT2Model"]})", kMaskedTransposed, kMasked},
           {R"({"model_type": "gpt_neo", "architectures": ["GPT2Model"]})", kMasked, kMasked},
           {R"({"decoder": {"model_type": "gpt2", "vocab_size": 40}})", kMaskedTransposed, words},
           {R"({"model_type": "openai-gpt"})", kMaskedTransposed, kMasked},
           {R"({"model_type": 2, "architectures": "GPT2Model", "vocab_size": "40"})", kMasked,
            kMasked}}) {
    SCOPED_TRACE(config);
    const ScratchFolder folder;
    const std::string file = folder / "model-00001-of-00002.safetensors";
    write_tensors(file, tensors);
    if (!config.empty()) put(folder / "config.json", config);
    const auto found = outcomes(report_of({"mask", file, folder / "o", "--pattern", "2:4"}));
    EXPECT_EQ(found.at("h.0.attn.c_proj.weight"), conv1d);
    EXPECT_EQ(found.at("h.0.mlp.c_fc.weight"), conv1d);
    EXPECT_EQ(found.at("generator.weight"), generator);
    EXPECT_EQ(found.at("h.0.mlp.wide.weight"), kMasked);
  }
}

TEST(HuggingFace, AConfigThatCannotBeReadIsSaidAndNamesDecide) {
  const ScratchFolder folder;
  const std::string file = folder / "model.safetensors";
  write_tensors(file, {{"fc.weight", {n, n}, ""}, {"lm_head.weight", {n, n}, ""}});
  for (const std::string text : {"{", "[]", R"({"limit": Infinity})"}) {
    put(folder / "config.json", text);
    const Outcome outcome = run({"mask", file, folder / "o", "--pattern", "2:4", "--json"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_TRUE(outcome.err.starts_with("weft: " + (folder / "config.json").string() + ": "))
        << outcome.err;
    EXPECT_TRUE(contains(outcome.err, "by name and shape only")) << outcome.err;
    EXPECT_EQ(outcomes(outcome.json()).at("lm_head.weight"), kHead);
  }
}

// Both are called "heads" or "fc", and only one of each pair is the end of a network.
TEST(HuggingFace, HeadsOfAttentionAndOfNetworksAreToldApart) {
  const ScratchFolder folder;
  const std::string file = folder / "model.safetensors";
  write_tensors(file, {{"fc.weight", {n, n}, ""}});
  EXPECT_EQ(outcomes(report_of({"mask", file, folder / "o", "--pattern", "2:4"})).at("fc.weight"),
            kMasked);
  write_tensors(file, {{"blocks.0.sa.heads.0.key.weight", {n, n}, ""},
                       {"heads.head.weight", {n, n}, ""},
                       {"layer.0.fc.weight", {n, n}, ""},
                       {"layer1.0.conv1.weight", {n, n, 3, 3}, ""},
                       {"fc.weight", {n, n}, ""}});
  const auto found = outcomes(report_of({"mask", file, folder / "o", "--pattern", "2:4"}));
  EXPECT_EQ(found.at("blocks.0.sa.heads.0.key.weight"), kMasked);
  EXPECT_EQ(found.at("heads.head.weight"), kHead);
  EXPECT_EQ(found.at("layer.0.fc.weight"), kMasked);
  EXPECT_EQ(found.at("fc.weight"), kHead);
}

TEST(HuggingFace, WhatIsLeftAloneCanBeIncluded) {
  const ScratchFolder folder;
  const std::string file = folder / "model.safetensors", out = folder / "o";
  write_tensors(file, {{"fc.weight", {n, n}, ""},
                       {"lm_head.weight", {kWords, n}, ""},
                       {"shared.weight", {kWords, n}, ""},
                       {"mlp.gate.weight", {n, n}, ""}});
  const auto found = outcomes(report_of({"mask", "--include", "lm_head", "--include", "shared|gate",
                                         "--exclude", "fc", file, out, "--pattern", "2:4"}));
  EXPECT_EQ(found.at("fc.weight"), "not included");
  for (const char* name : {"lm_head.weight", "shared.weight", "mlp.gate.weight"}) {
    EXPECT_EQ(found.at(name), kMasked) << name;
  }
  EXPECT_EQ(report_of({"check", out})["tensors"].size(), 3u);
}

}  // namespace
}  // namespace weft::test
