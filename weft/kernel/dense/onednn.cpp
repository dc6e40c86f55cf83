#include "weft/kernel/dense/onednn.h"

#include <cstdlib>

#include "weft/core/hold_signals.h"
#include "weft/core/isa.h"
#include "weft/kernel/tile/tile_unit.h"

namespace weft::onednn {
namespace {

bool is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0';
}

void hold_to_isa() {
  const std::string isa = current_isa();
  dnnl_cpu_isa_t most;
  if (isa.starts_with("s")) {   // scalar, sse2, ssse3, sse4
    most = dnnl_cpu_isa_sse41;  // the least that oneDNN knows
  } else if (isa == "avx2") {
    most = dnnl_cpu_isa_avx2;
  } else if (isa.starts_with("avx3")) {
    if (is_set("ONEDNN_MAX_CPU_ISA") || is_set("DNNL_MAX_CPU_ISA")) return;  // the user's own
    // AMX only if the system has granted its state, which looking for the tile unit asks for:
    // oneDNN 2.6.3 does not ask, and dies of an illegal instruction in bf16 products. Where weft
    // does not use AMX (WEFT_TILES), oneDNN does not, either.
    most = tile_unit() == TileUnit::kAmx ? dnnl_cpu_isa_avx512_core_amx
                                         : dnnl_cpu_isa_avx512_core_bf16;
  } else {
    return;  // not x86
  }
  // Fails if this process has used oneDNN before; isa() then reports the actual one.
  dnnl_set_max_cpu_isa(most);
}

}  // namespace

void prepare() {
  static const bool done = (hold_to_isa(), true);
  (void)done;
}

std::string isa() {
  prepare();
#if !defined(__x86_64__)
  // oneDNN counts instruction sets of x86 only: of other CPUs it says that they have all of them.
  return current_isa();
#else
  const int now = dnnl_get_effective_cpu_isa();
  if ((now & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core) return "avx3";
  if ((now & dnnl_cpu_isa_avx2) == dnnl_cpu_isa_avx2) return "avx2";
  if ((now & dnnl_cpu_isa_avx) == dnnl_cpu_isa_avx) return "avx";
  return (now & dnnl_cpu_isa_sse41) == dnnl_cpu_isa_sse41 ? "sse4" : current_isa();
#endif
}

// oneDNN's sgemm for AVX-512 points the stack pointer at a buffer of its own (2.6 to 3.7,
// jit_avx512_common_gemm_f32.cpp). The frame of a signal handler would overwrite what lies before
// that buffer on the heap: a run that a signal stopped crashed, or kept going with wrong numbers.
void sgemm(const Sgemm& p) {
  const HoldSignals hold;
  check(dnnl_sgemm(p.transpose_a ? 'T' : 'N', p.transpose_b ? 'T' : 'N', p.c.rows, p.c.cols, p.k,
                   p.alpha, p.a.data, p.a.row_stride, p.b.data, p.b.row_stride, p.beta, p.c.data,
                   p.c.row_stride),
        "sgemm");
}

}  // namespace weft::onednn
