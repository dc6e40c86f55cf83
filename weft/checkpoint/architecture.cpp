#include "weft/checkpoint/architecture.h"

#include <re2/re2.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <vector>

#include "weft/core/error.h"
#include "weft/core/json.h"
#include "weft/core/regular_file.h"
#include "weft/core/weight_shape.h"

namespace weft {
namespace {

// Matrices that are no weights of hidden layers, by their names. The first row that matches counts.
struct RoleRow {
  LeftAlone role;
  const char* names;  // RE2, found anywhere in the name
  // Only in a checkpoint that also has a tensor of such a name; null: in every one.
  const char* beside = nullptr;
};
constexpr RoleRow kRoles[] = {
    // T5, MPNet: relative_attention_bias; Swin, BEiT: relative_position_bias.
    {LeftAlone::kPositionBias, "relative_(attention|position)_bias"},
    // Mixtral, PhiMoE: block_sparse_moe.gate; Qwen-MoE, DeepSeek, OLMoE: mlp.gate. Not LLaMA's
    // mlp.gate_proj, which is half of a gated linear unit.
    {LeftAlone::kRouter, R"((^|\.)gate\.weight$)"},
    // Switch, NLLB-MoE: router.classifier; GPT-OSS, Jamba, Llama 4: router; DBRX: router.layer.
    {LeftAlone::kRouter, R"((^|[._])router\.)"},
    // Qwen2-MoE: mlp.shared_expert_gate, one output.
    {LeftAlone::kRouter, R"((^|[._])expert_gate\.)"},
    // lm_head of LLaMA, Mistral, Qwen, GPT-2, OPT, T5, RoBERTa (with its dense layer); T5's and
    // BART's classification_head; GPT-2's multiple_choice_head; timm's head and head_dist;
    // torchvision's heads.head. Not heads.0, an attention head of its own layers.
    {LeftAlone::kHead, R"((^|[._])(head|head_dist|heads\.[a-z_]+)\.)"},
    // torchvision and timm: fc of ResNet, RegNet, ShuffleNet, Inception, GoogLeNet. In other files fc
    // may be any layer.
    {LeftAlone::kHead, R"(^fc\.weight$)",
     R"(^(layer1\.0\.conv1|trunk_output|stage2\.0|Mixed_5b|inception3a)\.)"},
    // BERT, ViT, Whisper: classifier; DistilBERT: pre_classifier; DeiT: cls_classifier,
    // distillation_classifier; RoBERTa: classifier.dense, classifier.out_proj.
    {LeftAlone::kHead, R"((^|[._])classifier\.)"},
    // BERT and its kin.
    {LeftAlone::kHead, R"((^|\.)qa_outputs\.|^cls\.(predictions|seq_relationship)\.)"},
    // DistilBERT.
    {LeftAlone::kHead, R"(^vocab_(transform|projector)\.)"},
    // LLaMA, Mistral, Qwen, GPT-2, GPT-NeoX, OPT: ...ForSequenceClassification.
    {LeftAlone::kHead, R"(^(\w+\.)?score\.weight$)"},
    // GPT-NeoX: embed_out; LLaMA as Meta publishes it: output; Whisper: proj_out.
    {LeftAlone::kHead, R"((^|\.)embed_out\.weight$|^(model\.)?(output|proj_out)\.weight$)"},
    // CLIP: into the space that images and texts share.
    {LeftAlone::kHead, R"((^|\.)(visual|text)_projection\.weight$)"},
    // T5, BART: shared, the embedding of encoder, decoder and head.
    {LeftAlone::kEmbedding, R"((^|\.)shared\.weight$)"},
    // embed_tokens, embed_positions, word_embeddings, patch_embed, tok_embeddings; GPT-2: wte, wpe.
    {LeftAlone::kEmbedding, R"((?i)embed|(^|[._])(wte|wpe|emb)([._]|$))"},
    // input_layernorm, norm1, LayerNorm, batch_norm; GPT-2: ln_f, ln_1; ResNet: bn1.
    {LeftAlone::kNormalisation, R"((?i)norm|(^|\.)(ln|bn)(_[a-z0-9]+|[0-9]*)\.)"},
};

// Layers that are stored [ins, outs], of the models that do so: by model_type, or where the fused
// projection into queries, keys and values is [n, 3n].
struct TransposedRow {
  const char* models;  // separated by spaces
  const char* names;
  const char* fused;
};
constexpr TransposedRow kTransposed[] = {
    // Conv1D of transformers (pytorch_utils.py). ImageGPT and DecisionTransformer are made of
    // GPT-2's blocks, and OpenAI's first GPT has the same. GPT-BigCode, GPT-Neo and nanoGPT use
    // these names for Linear layers.
    {"gpt2 openai-gpt imagegpt decision_transformer",
     R"((^|\.)h\.\d+\.(attn|crossattention|mlp)\.(c_attn|q_attn|c_fc|c_proj)\.weight$)",
     R"((^|\.)h\.\d+\.attn\.c_attn\.weight$)"},
};

bool found_in(const RE2& expression, const std::string& name) {
  return RE2::PartialMatch(name, expression);
}

// "GPT2LMHeadModel" -> "gpt2lmheadmodel", "openai-gpt" -> "openaigpt"
std::string plain_letters(std::string_view text) {
  std::string plain;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0) plain += static_cast<char>(std::tolower(byte));
  }
  return plain;
}

}  // namespace

// What config.json says, of the model and of its parts.
struct HuggingFaceConfig {
  std::set<std::string> types;           // model_type, in plain letters
  std::vector<std::string> class_names;  // architectures, likewise
  std::set<int64_t> vocabularies;        // vocab_size

  // models: separated by spaces.
  bool is_one_of(std::string_view models) const {
    while (!models.empty()) {
      const size_t end = std::min(models.find(' '), models.size());
      const std::string model = plain_letters(models.substr(0, end));
      if (types.contains(model)) return true;
      // A class is called after its model; only a config without types must be read so.
      const auto named = [&](const std::string& name) { return name.starts_with(model); };
      if (types.empty() && std::ranges::any_of(class_names, named)) return true;
      models.remove_prefix(std::min(end + 1, models.size()));
    }
    return false;
  }
};

// The number in "classifier.6.weight", and what stands before it.
struct PlaceInSequence {
  std::string before;
  int64_t number = 0;
};

namespace {

void add_part(const Json& part, HuggingFaceConfig& config) {
  if (!part.is_object()) return;
  if (part.contains("model_type") && part["model_type"].is_string()) {
    config.types.insert(plain_letters(part["model_type"].get<std::string>()));
  }
  if (part.contains("vocab_size") && part["vocab_size"].is_number_unsigned() &&
      part["vocab_size"].get<uint64_t>() <= INT64_MAX) {
    config.vocabularies.insert(part["vocab_size"].get<int64_t>());
  }
  if (!part.contains("architectures") || !part["architectures"].is_array()) return;
  for (const Json& name : part["architectures"]) {
    if (name.is_string()) config.class_names.push_back(plain_letters(name.get<std::string>()));
  }
}

std::optional<PlaceInSequence> place_in_sequence(const std::string& name) {
  static const RE2 kPlace(R"(^(.*\.)(\d{1,9})\.weight$)");
  PlaceInSequence place;
  if (!RE2::FullMatch(name, kPlace, &place.before, &place.number)) return std::nullopt;
  return place;
}

}  // namespace

struct Architecture::Facts {
  HuggingFaceConfig config;
  std::vector<std::pair<LeftAlone, std::unique_ptr<RE2>>> roles;
  std::vector<std::unique_ptr<RE2>> transposed;
  std::vector<PlaceInSequence> places;  // of matrices in sequences

  bool is_last(const PlaceInSequence& place) const {
    return std::ranges::none_of(places, [&](const PlaceInSequence& other) {
      return other.before == place.before && other.number > place.number;
    });
  }
};

Architecture::Architecture(std::span<const TensorInfo> tensors, const Json& config)
    : facts_(std::make_unique<Facts>()) {
  add_part(config, facts_->config);
  for (const Json::Member& part : config.members()) add_part(part.value, facts_->config);
  for (const RoleRow& row : kRoles) {
    if (row.beside != nullptr) {
      const RE2 beside(row.beside);
      const auto is_there = [&](const TensorInfo& one) { return found_in(beside, one.name); };
      if (std::ranges::none_of(tensors, is_there)) continue;
    }
    facts_->roles.emplace_back(row.role, std::make_unique<RE2>(row.names));
  }
  for (const TransposedRow& row : kTransposed) {
    const RE2 fused(row.fused);
    const bool shapes_say_so = std::ranges::any_of(tensors, [&](const TensorInfo& tensor) {
      const std::vector<int64_t>& shape = tensor.shape;
      return shape.size() == 2 && shape[0] > 0 && shape[1] % 3 == 0 && shape[1] / 3 == shape[0] &&
             found_in(fused, tensor.name);
    });
    if (shapes_say_so || facts_->config.is_one_of(row.models)) {
      facts_->transposed.push_back(std::make_unique<RE2>(row.names));
    }
  }
  for (const TensorInfo& tensor : tensors) {
    auto place = place_in_sequence(tensor.name);
    if (place && WeightShape::accepts(tensor.shape)) facts_->places.push_back(std::move(*place));
  }
}

Architecture Architecture::beside(const std::filesystem::path& file,
                                  std::span<const TensorInfo> tensors) {
  const std::filesystem::path path = file.parent_path() / "config.json";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return Architecture(tensors);
  Json config;
  std::string problem;
  try {
    Json document = Json::parse(read_small_file(path), path.string());
    WEFT_CHECK(document.is_object(), "{}: not an object", path.string());
    config = std::move(document);
  } catch (const Error& error) {
    problem = error.what();
  }
  Architecture found(tensors, config);
  found.problem_ = problem;
  return found;
}

Architecture::~Architecture() = default;
Architecture::Architecture(Architecture&&) noexcept = default;

std::optional<LeftAlone> Architecture::role_of(const TensorInfo& tensor) const {
  for (const auto& [role, names] : facts_->roles) {
    if (!found_in(*names, tensor.name)) continue;
    // A classifier that is a sequence of layers, as VGG's: the last one is the head.
    const auto place = place_in_sequence(tensor.name);
    if (role == LeftAlone::kHead && place && !facts_->is_last(*place)) return std::nullopt;
    return role;
  }
  // Layers with a number are hidden ones.
  static const RE2 kNumbered(R"((^|\.)\d+\.)");
  if (tensor.shape.size() == 2 && facts_->config.vocabularies.contains(tensor.shape[0]) &&
      !found_in(kNumbered, tensor.name)) {
    return LeftAlone::kVocabulary;
  }
  return std::nullopt;
}

bool Architecture::is_transposed(const TensorInfo& tensor) const {
  return tensor.shape.size() == 2 &&
         std::ranges::any_of(facts_->transposed,
                             [&](const auto& names) { return found_in(*names, tensor.name); });
}

}  // namespace weft
