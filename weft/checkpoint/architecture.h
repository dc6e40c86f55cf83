// Architecture: what is known of a model by the names and shapes of its tensors, and by the
// config.json of Hugging Face beside its file.
//
// It answers two questions: which matrices are not weights of hidden layers (embeddings, heads,
// routers), and which are stored [ins, outs]. One table answers both, a row per convention; see
// architecture.cpp.
//
//   model_type, or else architectures   which layers are stored [ins, outs]
//   vocab_size                          a head or embedding of any name: a row for every word
//
// of the model and of its parts (text_config, decoder ...). Without config.json names and shapes
// decide alone: attn.c_attn of [n, 3n] is GPT-2's Conv1D, of [3n, n] a Linear.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "weft/checkpoint/header.h"
#include "weft/core/json.h"

namespace weft {

// Why a tensor is left alone. reason_text (select.h) has the words.
enum class LeftAlone : uint8_t {
  kNotIncluded,
  kExcluded,
  kNotPromised,  // by the weft.sparsity of the file
  kNotNamedWeight,
  kEmbedding,
  kNormalisation,
  kHead,
  kRouter,
  kPositionBias,
  kVocabulary,  // a row for every word, by the config.json of the model
  kDtype,
  kDimensions,
  kTooLarge,
};

class Architecture {
 public:
  // tensors: of the whole checkpoint, as they were before they were packed. config: config.json, or
  // null if there is none.
  explicit Architecture(std::span<const TensorInfo> tensors, const Json& config = nullptr);
  // With the config.json in the folder of a file.
  static Architecture beside(const std::filesystem::path& file,
                             std::span<const TensorInfo> tensors);
  ~Architecture();
  Architecture(Architecture&&) noexcept;

  // What the tensor is, if it is no weight of a hidden layer.
  std::optional<LeftAlone> role_of(const TensorInfo& tensor) const;
  bool is_transposed(const TensorInfo& tensor) const;

  // What was wrong with config.json, which then counts as absent; or nothing.
  const std::string& problem() const { return problem_; }

 private:
  struct Facts;
  std::unique_ptr<Facts> facts_;
  std::string problem_;
};

}  // namespace weft
