// The loop of the masked gradient (masked_weight.h): dot products of rows of gᵀ with the rows of xᵀ
// that a mask keeps.
//
//           tokens ──►                          one row of gᵀ, eight rows of xᵀ out of L1 (with
//   gᵀ[o]   ▓▓▓▓▓▓▓▓  ▓▓▓▓▓▓▓▓  ...              AVX-512; four elsewhere), partial sums in registers
//   xᵀ[i]   ▓▓▓▓▓▓▓▓  ▓▓▓▓▓▓▓▓  ...   i: kept in row o
//
// Each entry has sixteen partial sums on every CPU, of tokens equal modulo 16, which are added in
// one order: the result does not depend on the length of vectors, only on whether the CPU has fused
// multiply-add.
#pragma once

#include <cstdint>

namespace weft {

constexpr int64_t kPartialSums = 16;
constexpr int64_t whole_sums(int64_t tokens) {
  return (tokens + kPartialSums - 1) / kPartialSums * kPartialSums;
}

// Some rows, for the tokens and the columns of one panel of xᵀ.
struct MaskedJob {
  const float* g = nullptr;  // [rows, tokens]
  int64_t g_stride = 0;      // from row to row
  const float* x = nullptr;  // [columns of the panel, tokens], on a cache line
  int64_t x_stride = 0;      // a multiple of kPartialSums
  int64_t tokens = 0;        // a multiple of kPartialSums
  int64_t rows = 0;
  const uint32_t* starts = nullptr;  // of the first row (kept_entries.h)
  const uint16_t* index = nullptr;
  float* values = nullptr;  // of all entries, like index
  bool first = true;        // values are not read
};

// values[e] (+)= Σ_t g[row, t] · x[index[e], t] for the entries e of all rows.
void run_masked_rows(const MaskedJob& job);

}  // namespace weft
