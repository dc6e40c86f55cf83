// Which tensors of a checkpoint are weights to be made sparse, and why the others are not; and
// which of them are stored [ins, outs].
//
// Without `include`: floating-point tensors of two or four dimensions, also empty ones, whose name
// ends in `weight`, and that are neither embeddings, normalisation layers, heads, routers nor
// position biases (architecture.h). `include` selects by name instead of these rules about names;
// `exclude` removes tensors in both cases. A tensor is stored [ins, outs] if `transposed` matches
// it, if the weft.sparsity of the file says so, or if its architecture is known to. All are regular
// expressions (RE2: linear time on any input), found anywhere in the name.
//
// All commands use these rules.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/checkpoint/architecture.h"
#include "weft/checkpoint/sparsity.h"
#include "weft/checkpoint/stored_weight.h"

namespace weft {

struct NameExpressions {
  std::string include, exclude;         // empty: none
  std::vector<std::string> transposed;  // any of them
  // Heads count as weights: for callers that know the ends of their network.
  bool with_heads = false;
};

class Selection {
 public:
  // Names alone. Throws Error that names a wrong expression.
  Selection(const std::string& include, const std::string& exclude);
  // For the tensors of a checkpoint, as they were before they were packed. Also throws Error if one
  // of `transposed` matches no tensor.
  Selection(const NameExpressions& names, const Checkpoint& checkpoint,
            const std::vector<TensorInfo>& tensors);
  Selection(const NameExpressions& names, const Checkpoint& checkpoint);
  ~Selection();
  Selection(Selection&&) noexcept;

  // nullopt: selected.
  std::optional<LeftAlone> left_alone(const TensorInfo& tensor) const;
  // Only what `include` and `exclude` say of a name: for tensors chosen by a weft.sparsity.
  std::optional<LeftAlone> left_alone_by_name(const std::string& name) const;

  // Whether a tensor that is to be made sparse is stored [ins, outs].
  bool is_transposed(const TensorInfo& tensor) const;
  // What a promise of the file says of it, unless `transposed` matches.
  bool is_transposed(const TensorInfo& tensor, const Promise& promise) const;
  StoredWeight weight(const ShardedTensor& tensor) const;

  // What a user should know: a config.json that cannot be read. Empty: nothing.
  std::string note() const;

 private:
  struct Expressions;
  std::unique_ptr<Expressions> expressions_;
};

// Fit to follow "skipped: ".
std::string reason_text(LeftAlone reason, const TensorInfo& tensor);

// A tensor that was left alone, for reports.
struct SkippedTensor {
  TensorInfo info;
  LeftAlone reason;
};
// Why there is nothing to do, with the first tensor that was skipped as the example.
std::string nothing_selected(const std::vector<SkippedTensor>& skipped);
// The same with reasons that are not all a Selection's. reason: of the first tensor that was
// skipped.
std::string nothing_selected(const std::string& tensor, const std::string& reason);

}  // namespace weft
