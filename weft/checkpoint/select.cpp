#include "weft/checkpoint/select.h"

#include <re2/re2.h>

#include "weft/core/error.h"
#include "weft/core/text.h"
#include "weft/core/weight_shape.h"

namespace weft {
namespace {

std::unique_ptr<RE2> compile(const std::string& text, const char* which) {
  if (text.empty()) return nullptr;
  auto expression = std::make_unique<RE2>(text, RE2::Quiet);
  WEFT_CHECK(expression->ok(), "{} expression '{}': not a regular expression: {}", which,
             printable(text), printable(expression->error()));
  return expression;
}

bool matches(const RE2& expression, const std::string& name) {
  return RE2::PartialMatch(name, expression);
}

// Names in use: embed_tokens, word_embeddings, patch_embed, wte, wpe; input_layernorm, norm1,
// LayerNorm, batch_norm, ln_f, ln1, bn1.
bool is_embedding(const std::string& name) {
  static const RE2 kEmbedding("(?i)embed|(^|[._])(wte|wpe|emb)([._]|$)");
  return matches(kEmbedding, name);
}

bool is_normalisation(const std::string& name) {
  static const RE2 kNorm("(?i)norm|(^|\\.)(ln|bn)(_[a-z0-9]+|[0-9]*)\\.");
  return matches(kNorm, name);
}

}  // namespace

struct Selection::Expressions {
  std::unique_ptr<RE2> include;
  std::unique_ptr<RE2> exclude;
};

Selection::Selection(const std::string& include, const std::string& exclude)
    : expressions_(new Expressions{compile(include, "include"), compile(exclude, "exclude")}) {}
Selection::~Selection() = default;
Selection::Selection(Selection&&) noexcept = default;

std::optional<std::string> Selection::reason_to_skip_name(const std::string& name) const {
  if (expressions_->include && !matches(*expressions_->include, name)) return "not included";
  if (expressions_->exclude && matches(*expressions_->exclude, name)) return "excluded";
  return std::nullopt;
}

std::optional<std::string> Selection::reason_to_skip(const TensorInfo& tensor) const {
  if (const auto reason = reason_to_skip_name(tensor.name)) return reason;
  if (!expressions_->include) {
    if (!tensor.name.ends_with("weight")) return "name does not end in 'weight'";
    if (is_embedding(tensor.name)) return "embedding";
    if (is_normalisation(tensor.name)) return "normalisation";
  }
  if (!is_weight_dtype(tensor.dtype)) {
    return fmt::format("dtype {}: weights are F32, F16, BF16 or F64", dtype_name(tensor.dtype));
  }
  if (!WeightShape::accepts(tensor.shape)) {
    return fmt::format("{} dimension{}: weights have 2 or 4", tensor.shape.size(),
                       tensor.shape.size() == 1 ? "" : "s");
  }
  try {
    WeightShape::of(tensor.shape);
  } catch (const Error& error) {  // an empty tensor may have sizes that overflow: [0, 2^62, 4, 1]
    return error.what();
  }
  return std::nullopt;
}

}  // namespace weft
