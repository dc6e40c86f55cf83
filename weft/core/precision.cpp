#include "weft/core/precision.h"

#include "weft/core/error.h"
#include "weft/core/text.h"

namespace weft {

std::string_view precision_name(Precision precision) {
  return precision == Precision::kFp32 ? "fp32" : "bf16";
}

Precision parse_precision(std::string_view text) {
  if (text == "fp32") return Precision::kFp32;
  WEFT_CHECK(text == "bf16", "precision '{}': accepted are fp32 and bf16", printable(text));
  return Precision::kBf16;
}

}  // namespace weft
