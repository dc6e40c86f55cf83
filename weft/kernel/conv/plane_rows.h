// Stores a block of sums into planes: to[r, i] = from[r, i] + bias[r] for i < count.
#pragma once

#include <cstdint>

namespace weft {

struct PlaneRows {
  const float* from = nullptr;  // on a cache line
  int64_t from_step = 0;        // a multiple of a line
  int64_t rows = 0;
  int64_t count = 0;
  const float* bias = nullptr;  // [rows], or null
  float* to = nullptr;
  int64_t to_step = 0;
  // Past the caches, where lines are whole: for results that do not fit them. A plane is on another
  // page for every row, so a store would first wait for its line to be read.
  bool past_caches = false;
};
void put_plane_rows(const PlaneRows& block);

}  // namespace weft
