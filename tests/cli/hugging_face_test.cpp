// Files as Hugging Face has them: which tensors are made sparse by default, and along which axis.
//
// Names are those of the models' classes in transformers (and, where said, of torchvision, timm and
// nanoGPT), shapes are as theirs in proportion.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>

#include "tests/model_files.h"
#include "tests/program.h"
#include "tests/support.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;

// Threads of small work on a busy machine mostly wait for each other.
[[maybe_unused]] const int kOneThread = ::setenv("OMP_NUM_THREADS", "1", 1);

using Shape = std::vector<int64_t>;

// What becomes of a tensor: a reason, or one of these.
constexpr const char* kMasked = "";
constexpr const char* kMaskedTransposed = "[ins, outs]";

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

// What a command that lists them made of the tensors, by name.
std::map<std::string, std::string> outcomes(const Json& report, const char* list = "tensors") {
  std::map<std::string, std::string> found;
  for (const Json& tensor : report[list]) {
    found[tensor["name"].get<std::string>()] =
        tensor["transposed"].get<bool>() ? kMaskedTransposed : kMasked;
  }
  for (const Json& tensor : report["skipped"]) {
    found[tensor["name"].get<std::string>()] = tensor["reason"].get<std::string>();
  }
  return found;
}

Json report_of(std::vector<std::string> args) {
  args.push_back("--json");
  const Outcome outcome = run(args);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  return outcome.code == 0 ? outcome.json() : Json::object();
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
      const auto packed =
          outcomes(report_of({"pack", file, folder / "p", "--pattern", "2:4", "--by-magnitude"}));
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
    EXPECT_TRUE(contains(outcome.err, "by their names and shapes alone")) << outcome.err;
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

// ---- Weights stored [ins, outs]

std::vector<float> turned(const std::vector<float>& w, int64_t rows, int64_t cols, int64_t taps) {
  std::vector<float> to(w.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      for (int64_t t = 0; t < taps; ++t) {
        to[static_cast<size_t>((c * rows + r) * taps + t)] =
            w[static_cast<size_t>((r * cols + c) * taps + t)];
      }
    }
  }
  return to;
}

constexpr int64_t kOuts = 20, kIns = 14, kTaps = 6;  // ends of groups, in both directions

// The same weights stored [outs, ins] in one file and [ins, outs] in another.
struct Twins {
  ScratchFolder folder;
  std::string plain = folder / "plain.safetensors", stored = folder / "stored.safetensors";
  const std::vector<std::string> flags = {"--transposed", "^fc", "--transposed", "conv"};

  Twins() {
    const auto fc = gaussian(kOuts * kIns, 1), conv = gaussian(kOuts * kIns * kTaps, 2);
    const NamedTensor other{"last.weight", Dtype::kF32, {kOuts, kIns}, gaussian(kOuts * kIns, 3)};
    write_file(plain, {{"fc.weight", Dtype::kF32, {kOuts, kIns}, fc},
                       {"conv.weight", Dtype::kF32, {kOuts, kIns, 2, 3}, conv},
                       other});
    write_file(stored,
               {{"fc.weight", Dtype::kF32, {kIns, kOuts}, turned(fc, kOuts, kIns, 1)},
                {"conv.weight", Dtype::kF32, {kIns, kOuts, 2, 3}, turned(conv, kOuts, kIns, kTaps)},
                other});
  }

  // Runs one command on both, the flags on the second alone.
  void both(const std::string& command, const std::vector<std::string>& more,
            const std::string& out) const {
    std::vector<std::string> args = {command, plain, folder / ("plain-" + out)};
    args.insert(args.end(), more.begin(), more.end());
    const Outcome first = run(args);
    EXPECT_EQ(first.code, 0) << first.err;
    args[1] = stored;
    args[2] = folder / ("stored-" + out);
    args.insert(args.end(), flags.begin(), flags.end());
    const Outcome second = run(args);
    EXPECT_EQ(second.code, 0) << second.err;
  }

  void expect_same(const std::string& out) const {
    const std::string a = folder / ("plain-" + out), b = folder / ("stored-" + out);
    EXPECT_EQ(turned(floats_of(a, "fc.weight"), kOuts, kIns, 1), floats_of(b, "fc.weight"));
    EXPECT_EQ(turned(floats_of(a, "conv.weight"), kOuts, kIns, kTaps), floats_of(b, "conv.weight"));
    EXPECT_EQ(floats_of(a, "last.weight"), floats_of(b, "last.weight"));
  }
};

TEST(Transposed, MasksAreThoseOfTheWeightStoredTheOtherWay) {
  const Twins twins;
  for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{
           {"--pattern", "2:4"},
           {"--pattern", "3:8", "--transposable"},
           {"--pattern", "2:4x2"},
           {"--pattern", "2:4x2", "--reorder"},
           {"--pattern", "2:4", "--transposable", "--solver", "greedy-prune"}}) {
    SCOPED_TRACE(Json(flags).dump());
    twins.both("mask", flags, "masked");
    twins.expect_same("masked");
    // Later commands know without the flag.
    const std::string stored = twins.folder / "stored-masked";
    const Json checked = report_of({"check", stored});
    ASSERT_EQ(checked["tensors"].size(), 3u);
    for (const Json& tensor : checked["tensors"]) {
      EXPECT_EQ(tensor["violations_in"], 0);
      EXPECT_EQ(tensor["transposed"].get<bool>(), tensor["name"] != "last.weight");
    }
    const Json plain = report_of({"check", twins.folder / "plain-masked"});
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(checked["tensors"][i]["groups_in"], plain["tensors"][i]["groups_in"]);
      EXPECT_EQ(checked["tensors"][i]["short_groups_in"], plain["tensors"][i]["short_groups_in"]);
    }
    const Promise promise = Checkpoint::open(stored).sparsity().tensors.at("fc.weight");
    EXPECT_TRUE(promise.transposed);
  }
}

TEST(Transposed, MaskFilesLieAsTheirWeightsDo) {
  const Twins twins;
  const std::string out = twins.folder / "o", masks = twins.folder / "masks";
  report_of(
      {"mask", twins.stored, out, "--pattern", "2:4", "--masks", masks, "--transposed", "fc|conv"});
  for (const std::string name : {"fc.weight", "conv.weight"}) {
    const auto kept = floats_of(out, name);
    const std::string mask = tensor_bytes_of(masks, name);
    ASSERT_EQ(mask.size(), kept.size());
    for (size_t i = 0; i < kept.size(); ++i) EXPECT_EQ(mask[i] != 0, kept[i] != 0) << i;
  }
  EXPECT_EQ(run({"check", masks}).code, 0);
}

TEST(Transposed, CheckNamesTheWeightThatIsOneTooManyByItsPlaceInTheFile) {
  const ScratchFolder folder;
  const std::string file = folder / "m.safetensors";
  std::vector<float> w(8 * 4, 0.0F);
  for (const int row : {4, 5, 7}) w[static_cast<size_t>(row * 4 + 2)] = 1.0F;  // column 2
  write_file(file, {{"fc.weight", Dtype::kF32, {8, 4}, w}});
  EXPECT_EQ(run({"check", file, "--pattern", "2:4"}).code, 0);
  const Outcome outcome = run({"check", file, "--pattern", "2:4", "--transposed", "fc", "--json"});
  EXPECT_EQ(outcome.code, 1);
  const Json tensor = outcome.json()["tensors"][0];
  EXPECT_EQ(tensor["violations_in"], 1);
  EXPECT_EQ(tensor["first_violation"]["index"], (Json{7, 2}));
  expect_one_line(run({"pack", file, folder / "p", "--pattern", "2:4", "--transposed", "fc"}), 1,
                  {"weight [7, 2] is one more than 2:4 allows"});
}

// mask -> check -> pack -> check -> unpack -> convert, the flag given once.
TEST(Transposed, IsKeptThroughAllCommands) {
  const Twins twins;
  const ScratchFolder& folder = twins.folder;
  for (const std::string pattern : {"2:4", "2:4x2"}) {
    SCOPED_TRACE(pattern);
    const std::string masked = folder / "masked", packed = folder / "packed",
                      unpacked = folder / "unpacked", converted = folder / "converted";
    report_of({"mask", twins.stored, masked, "--pattern", pattern, "--transposed", "fc|conv"});
    EXPECT_EQ(run({"check", masked}).code, 0);
    const auto packed_as = outcomes(report_of({"pack", masked, packed}));
    EXPECT_EQ(packed_as.at("fc.weight"), kMaskedTransposed);
    EXPECT_EQ(packed_as.at("conv.weight"), kMaskedTransposed);
    EXPECT_EQ(packed_as.at("last.weight"), kMasked);
    const Outcome checked = run({"check", packed, "--json"});
    EXPECT_EQ(checked.code, 0) << checked.out;
    EXPECT_EQ(outcomes(checked.json()), packed_as);
    EXPECT_EQ(run({"unpack", packed, unpacked}).code, 0);
    EXPECT_TRUE(contents(unpacked) == contents(masked));
    // What obeys already stays.
    report_of({"convert", unpacked, converted, "--pattern", pattern});
    EXPECT_TRUE(contents(converted) == contents(masked));
    // The parts are those of the weight stored the other way: products need not know.
    twins.both("pack", {"--pattern", pattern, "--by-magnitude"}, "pruned");
    for (const std::string part :
         {"fc.weight.weft_values", "fc.weight.weft_indices", "conv.weight.weft_indices"}) {
      EXPECT_TRUE(tensor_bytes_of(folder / "plain-pruned", part) ==
                  tensor_bytes_of(folder / "stored-pruned", part))
          << part;
    }
    EXPECT_EQ(run({"check", folder / "stored-pruned"}).code, 0);
  }
}

TEST(Transposed, TheBitmaskFormatHasNoPlaceForIt) {
  const Twins twins;
  expect_one_line(
      run({"pack", twins.stored, twins.folder / "p", "--pattern", "2:4", "--by-magnitude",
           "--format", "sparse-24-bitmask", "--transposed", "fc", "--include", "fc"}),
      1, {"'fc.weight'", "stored [ins, outs], which the format has no word for"});
}

TEST(Transposed, LadderAndInfoSeeTheWeight) {
  const Twins twins;
  const Json plain = report_of({"ladder", twins.plain});
  Json stored = report_of({"ladder", twins.stored, "--transposed", "fc|conv"});
  EXPECT_EQ(plain["ladder"], stored["ladder"]);
  const std::string masked = twins.folder / "masked";
  report_of({"mask", twins.stored, masked, "--pattern", "2:4", "--transposed", "fc|conv"});
  const Json info = report_of({"info", masked});
  for (const Json& tensor : info["tensors"]) {
    if (tensor["name"] == "last.weight") continue;
    EXPECT_TRUE(tensor["transposed"].get<bool>());
    EXPECT_TRUE(contains(tensor["patterns_in"].dump(), "2:4"));
    EXPECT_FALSE(contains(tensor["patterns_out"].dump(), "2:4"));
  }
}

TEST(Transposed, ConvertedWeightsAreThoseOfTheWeightStoredTheOtherWay) {
  const Twins twins;
  const std::string inputs = twins.folder / "inputs.safetensors";
  write_file(inputs,
             {{"fc.input", Dtype::kF32, {64, kIns}, gaussian(64 * kIns, 8)},
              {"last.input", Dtype::kF32, {64, kIns}, gaussian(64 * kIns, 9)},
              {"conv.input", Dtype::kF32, {128, kIns * kTaps}, gaussian(128 * kIns * kTaps, 10)}});
  for (const std::string method : {"magnitude", "absorption", "sparsegpt", "adaprune"}) {
    SCOPED_TRACE(method);
    std::vector<std::string> flags = {"--pattern", "2:4", "--method", method};
    if (method != "magnitude") flags.insert(flags.end(), {"--calibration", inputs});
    twins.both("convert", flags, "converted");
    twins.expect_same("converted");
    EXPECT_EQ(run({"check", twins.folder / "stored-converted"}).code, 0);
  }
  twins.both("convert", {"--pattern", "auto", "--group", "4", "--density", "0.5"}, "by-density");
  twins.expect_same("by-density");
}

TEST(Transposed, FullDeltasAreMergedWithThePatternAlongInputs) {
  const Twins twins;
  const std::string masked = twins.folder / "masked", delta = twins.folder / "delta";
  report_of({"mask", twins.stored, masked, "--pattern", "2:4", "--transposed", "fc|conv"});
  const auto fc = gaussian(kOuts * kIns, 21), conv = gaussian(kOuts * kIns * kTaps, 22);
  write_file(delta, {{"fc.weight", Dtype::kF32, {kIns, kOuts}, fc},
                     {"conv.weight", Dtype::kF32, {kIns, kOuts, 2, 3}, conv}});
  for (const std::string mask : {"base", "new"}) {
    SCOPED_TRACE(mask);
    const std::string out = twins.folder / "merged";
    report_of({"merge", masked, delta, out, "--mask", mask});
    EXPECT_EQ(run({"check", out}).code, 0);
    const auto before = floats_of(masked, "fc.weight"), after = floats_of(out, "fc.weight");
    for (size_t i = 0; i < after.size(); ++i) {
      const float sum = static_cast<float>(double{before[i]} + fc[i]);
      EXPECT_TRUE(after[i] == 0 || after[i] == sum) << i;
      EXPECT_TRUE(mask == "new" || (after[i] == 0) == (before[i] == 0)) << i;
    }
  }
  // An element that is too large is named by its place in the file.
  std::vector<float> huge(static_cast<size_t>(kOuts * kIns), 0.0F);
  huge[3 * kOuts + 5] = std::numeric_limits<float>::infinity();
  write_file(delta, {{"fc.weight", Dtype::kF32, {kIns, kOuts}, huge}});
  expect_one_line(run({"merge", masked, delta, twins.folder / "m"}), 1,
                  {"tensor 'fc.weight'", "element [3, 5]"});
}

TEST(Transposed, NaNIsNamedByItsPlaceInTheFile) {
  const ScratchFolder folder;
  std::vector<float> w = gaussian(kOuts * kIns, 1);
  w[3 * kOuts + 5] = std::numeric_limits<float>::quiet_NaN();
  write_file(folder / "m", {{"fc.weight", Dtype::kF32, {kIns, kOuts}, w}});
  for (const std::string command : {"mask", "convert"}) {
    expect_one_line(
        run({command, folder / "m", folder / "o", "--pattern", "2:4", "--transposed", "fc"}), 1,
        {"tensor 'fc.weight'", "[3, 5]"});
  }
}

TEST(Transposed, AnExpressionThatMatchesNothingOrIsNoneIsAnError) {
  const Twins twins;
  const std::string out = twins.folder / "o";
  expect_one_line(run({"mask", twins.plain, out, "--pattern", "2:4", "--transposed", "c_attn"}), 1,
                  {twins.plain, "transposed expression 'c_attn'", "no tensor"});
  const Outcome wrong = run({"mask", twins.plain, out, "--pattern", "2:4", "--transposed", "("});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_TRUE(contains(wrong.err, "--transposed")) << wrong.err;
  EXPECT_FALSE(fs::exists(out));
}

TEST(Transposed, APlanOrAnEntryOfAnotherTypeIsRefused) {
  const ScratchFolder folder;
  const std::string file = folder / "m.safetensors";
  const auto write = [&](const std::string& value) {
    write_file(
        file, {{"w", Dtype::kF32, {4, 4}, std::vector<float>(16)}},
        {{"weft.sparsity", R"({"version": 1, "tensors": {"w": {"pattern": "2:4", "axis": "in",)"
                           R"( "transposed": )" +
                               value + "}}}"}});
    return run({"check", file});
  };
  EXPECT_EQ(write("true").code, 0);
  EXPECT_EQ(write("false").code, 0);
  expect_one_line(write("1"), 1, {file, "weft.sparsity", "'w'", "'transposed' is 1"});
}

}  // namespace
}  // namespace weft::test
