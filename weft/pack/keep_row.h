// What a mask keeps of a row, side by side: the inner loop of packing.
#pragma once

#include <cstdint>

#include "weft/core/mask.h"

namespace weft {

// A part of a row of a mask.
struct KeepRow {
  const Mask& mask;
  int64_t row = 0;
  int64_t begin = 0;
  int64_t count = 0;
  // Column begin + k, if it is kept, has offset k * step. Null: not needed.
  uint16_t* offsets = nullptr;
  int64_t step = 0;
  // Entries that may be written; slots past the kept entries may hold anything.
  int64_t room = 0;
};

// from: [count], values: [room]
void keep_row(const KeepRow& keep, const float* from, float* values);
// values: [room, 2]. Two rows with the same mask, which needs offsets once.
void keep_two_rows(const KeepRow& keep, const float* first, const float* second, float* values);

}  // namespace weft
