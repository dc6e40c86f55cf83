// From slots, all cells side by side, to cells, one entry after the other: the transpose that turns
// a KeptSample into a part of a panel pack.
#pragma once

#include <cstdint>

namespace weft {

struct PlaceJob {
  int64_t cells = 0;
  int64_t slots = 0;
  int64_t share = 1;
  int64_t stride = 0;                // a multiple of 16, >= cells
  const float* values = nullptr;     // [slots, share, stride]
  const int32_t* indices = nullptr;  // [slots, stride]
  int32_t base = 0;                  // offset = base + index * line
  int32_t line = 0;
  const uint32_t* next = nullptr;  // [cells]: the entry of the pack that slot 0 goes to
  uint16_t* offsets = nullptr;     // [entries]
  float* to = nullptr;             // [entries, share]
};
void place_slots(const PlaceJob& job);

}  // namespace weft
