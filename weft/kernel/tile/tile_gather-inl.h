// Gathering, in AVX-512: rows of a panel, two at a time, interleaved into pairs. For sources that
// are compiled for AVX-512BW; always inlined, so that no copy of it is left for other CPUs to run.
#pragma once

#include <immintrin.h>

#include "weft/kernel/tile/tile_ops.h"

namespace weft {

// The 32 entries of a step, of 32 columns a half: two tiles for each of kHalves halves from
// first_half on.
template <int kHalves>
inline __attribute__((always_inline)) void gather_pairs(const Bf16* panel, const uint16_t* rows,
                                                        int first_half, Bf16 (&to)[4][16][16][2]) {
  for (int pair = 0; pair < 16; ++pair) {
    const Bf16* even = panel + int64_t{rows[2 * pair]} * 64;
    const Bf16* odd = panel + int64_t{rows[2 * pair + 1]} * 64;
    for (int h = first_half; h < first_half + kHalves; ++h) {
      const __m512i a = _mm512_load_si512(even + 32 * h);
      const __m512i b = _mm512_load_si512(odd + 32 * h);
      _mm512_store_si512(&to[2 * h][pair], _mm512_unpacklo_epi16(a, b));
      _mm512_store_si512(&to[2 * h + 1][pair], _mm512_unpackhi_epi16(a, b));
    }
  }
  // To the compiler a tile is loaded from nowhere (g++ 12's intrinsic names no memory): without
  // this it might move these stores after the load, or drop them.
  __asm__ volatile("" ::: "memory");
}

}  // namespace weft
