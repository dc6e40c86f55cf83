// Way: how one product is computed. Dense or sparse, and in which arithmetic.
#pragma once

#include <string>

#include "weft/core/precision.h"

namespace weft {

struct Way {
  bool sparse = false;
  Precision compute = Precision::kFp32;

  std::string text() const;  // "sparse", "dense bf16"
  friend bool operator==(const Way&, const Way&) = default;
};

}  // namespace weft
