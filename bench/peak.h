// The most that this CPU can do: multiply-adds on registers alone, with the instruction set that
// weft runs on (`force_isa`, WEFT_ISA). Every other figure is a share of this one.
#pragma once

namespace weft::bench {

// Fp32 GFLOP/s of `threads` threads together, a multiply-add counted as two; the best of several
// runs, because whatever disturbs one makes it slower. Takes about 0.1 s.
double fma_peak_gflops(int threads);
// The same of bf16 products on the tile unit in use, which is not none (kernel/tile/tile_unit.h).
double tile_peak_gflops(int threads);

}  // namespace weft::bench
