#include "weft/checkpoint/select.h"

#include <re2/re2.h>

#include <algorithm>

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

// What is wrong with a shape that WeightShape does not take, if anything.
std::string shape_problem(const std::vector<int64_t>& shape) {
  try {
    WeightShape::of(shape);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

std::vector<TensorInfo> infos_of(const Checkpoint& checkpoint) {
  std::vector<TensorInfo> infos;
  for (const ShardedTensor& tensor : checkpoint.tensors()) infos.push_back(tensor.info);
  return infos;
}

}  // namespace

struct Selection::Expressions {
  std::unique_ptr<RE2> include;
  std::unique_ptr<RE2> exclude;
  std::vector<std::unique_ptr<RE2>> transposed;
  bool with_heads = false;
  Architecture architecture;
  Sparsity sparsity;

  bool says_transposed(const TensorInfo& tensor) const {
    return WeightShape::accepts(tensor.shape) &&
           std::ranges::any_of(transposed,
                               [&](const auto& each) { return matches(*each, tensor.name); });
  }
};

Selection::Selection(const std::string& include, const std::string& exclude)
    : expressions_(new Expressions{compile(include, "include"),
                                   compile(exclude, "exclude"),
                                   {},
                                   false,
                                   Architecture({}),
                                   {}}) {}

Selection::Selection(const NameExpressions& names, const Checkpoint& checkpoint,
                     const std::vector<TensorInfo>& tensors)
    : expressions_(new Expressions{compile(names.include, "include"),
                                   compile(names.exclude, "exclude"),
                                   {},
                                   names.with_heads,
                                   Architecture::beside(checkpoint.paths().front(), tensors),
                                   checkpoint.sparsity()}) {
  for (const std::string& text : names.transposed) {
    WEFT_CHECK(!text.empty(), "transposed expression '': accepted is a regular expression");
    expressions_->transposed.push_back(compile(text, "transposed"));
    const RE2& expression = *expressions_->transposed.back();
    WEFT_CHECK(std::ranges::any_of(tensors,
                                   [&](const TensorInfo& tensor) {
                                     return WeightShape::accepts(tensor.shape) &&
                                            matches(expression, tensor.name);
                                   }),
               "{}: transposed expression '{}': no tensor of 2 or 4 dimensions has such a name",
               checkpoint.paths().front().string(), printable(text));
  }
}

Selection::Selection(const NameExpressions& names, const Checkpoint& checkpoint)
    : Selection(names, checkpoint, infos_of(checkpoint)) {}

Selection::~Selection() = default;
Selection::Selection(Selection&&) noexcept = default;

std::optional<LeftAlone> Selection::left_alone_by_name(const std::string& name) const {
  if (expressions_->include && !matches(*expressions_->include, name)) {
    return LeftAlone::kNotIncluded;
  }
  if (expressions_->exclude && matches(*expressions_->exclude, name)) return LeftAlone::kExcluded;
  return std::nullopt;
}

std::optional<LeftAlone> Selection::left_alone(const TensorInfo& tensor) const {
  if (const auto reason = left_alone_by_name(tensor.name)) return reason;
  if (!expressions_->include) {
    if (!tensor.name.ends_with("weight")) return LeftAlone::kNotNamedWeight;
    const auto role = expressions_->architecture.role_of(tensor);
    if (role && !(expressions_->with_heads && role == LeftAlone::kHead)) return role;
  }
  if (!is_weight_dtype(tensor.dtype)) return LeftAlone::kDtype;
  if (!WeightShape::accepts(tensor.shape)) return LeftAlone::kDimensions;
  // An empty tensor may have sizes that overflow: [0, 2^62, 4, 1].
  if (!shape_problem(tensor.shape).empty()) return LeftAlone::kTooLarge;
  return std::nullopt;
}

bool Selection::is_transposed(const TensorInfo& tensor) const {
  const auto promise = expressions_->sparsity.tensors.find(tensor.name);
  return expressions_->says_transposed(tensor) ||
         expressions_->architecture.is_transposed(tensor) ||
         (promise != expressions_->sparsity.tensors.end() && promise->second.transposed);
}

bool Selection::is_transposed(const TensorInfo& tensor, const Promise& promise) const {
  return promise.transposed || expressions_->says_transposed(tensor);
}

StoredWeight Selection::weight(const ShardedTensor& tensor) const {
  return {tensor, is_transposed(tensor.info)};
}

std::string Selection::note() const {
  const std::string& problem = expressions_->architecture.problem();
  if (problem.empty()) return "";
  return problem + ": tensors are classified by name and shape only";
}

std::string reason_text(LeftAlone reason, const TensorInfo& tensor) {
  switch (reason) {
    case LeftAlone::kNotIncluded: return "not included";
    case LeftAlone::kExcluded: return "excluded";
    case LeftAlone::kNotPromised: return "not in the file's weft.sparsity";
    case LeftAlone::kNotNamedWeight: return "name does not end in 'weight'";
    case LeftAlone::kEmbedding: return "embedding";
    case LeftAlone::kNormalisation: return "normalisation";
    case LeftAlone::kHead: return "head";
    case LeftAlone::kRouter: return "router of experts";
    case LeftAlone::kPositionBias: return "position bias";
    case LeftAlone::kVocabulary:
      return fmt::format("one row for each of the {} words of config.json",
                         tensor.shape.empty() ? 0 : tensor.shape[0]);
    case LeftAlone::kDtype:
      return fmt::format("dtype {}: weights are F32, F16, BF16 or F64", dtype_name(tensor.dtype));
    case LeftAlone::kDimensions:
      return fmt::format("{} dimension{}: weights have 2 or 4", tensor.shape.size(),
                         tensor.shape.size() == 1 ? "" : "s");
    case LeftAlone::kTooLarge: return shape_problem(tensor.shape);
  }
  return "";
}

std::string nothing_selected(const std::vector<SkippedTensor>& skipped) {
  if (skipped.empty()) return "the file has no tensors";
  const TensorInfo& first = skipped.front().info;
  return nothing_selected(first.name, reason_text(skipped.front().reason, first));
}

std::string nothing_selected(const std::string& tensor, const std::string& reason) {
  return fmt::format("none is selected; for example '{}' is skipped: {}", printable(tensor),
                     reason);
}

}  // namespace weft
