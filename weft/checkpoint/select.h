// Which tensors of a checkpoint are weights to be made sparse, and why the others are not.
//
// Without patterns: floating-point tensors of two or four dimensions, also empty ones, whose name
// ends in `weight`, embeddings and normalisation layers aside. `include` selects by name instead of
// these two rules about names; `exclude` takes out of either. Both are regular expressions (RE2:
// linear time on any input), found anywhere in the name.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/checkpoint/header.h"

namespace weft {

class Selection {
 public:
  // Empty text: no such expression. Throws Error that names a wrong expression.
  Selection(const std::string& include, const std::string& exclude);
  ~Selection();
  Selection(Selection&&) noexcept;

  // nullopt: selected. Otherwise the reason, fit to follow "skipped: ".
  std::optional<std::string> reason_to_skip(const TensorInfo& tensor) const;

  // Only what `include` and `exclude` say of a name: for tensors chosen by a weft.plan.
  std::optional<std::string> reason_to_skip_name(const std::string& name) const;

 private:
  struct Expressions;
  std::unique_ptr<Expressions> expressions_;
};

}  // namespace weft
