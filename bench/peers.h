// The dense products that a sparse one is measured against, all on the threads (`set_threads`) and
// the instruction set (`force_isa`, WEFT_ISA) that weft runs on.
//
//   oneDNN    sgemm on the whole matrices, with oneDNN's own threads
//   OpenBLAS  likewise, loaded on first use and told which CPU it runs on: left alone, Debian's
//             0.3.21 takes newer Intel CPUs for a Prescott and runs at a quarter of their speed
//   weft      weft's own dense path: oneDNN in blocks that do not depend on the threads
//
// The instruction set counts when this is called first: neither library can change it later.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "weft/core/matrix_view.h"
#include "weft/core/precision.h"
#include "weft/kernel/product.h"

namespace weft::bench {

// Operands are taken in the order of the formula:
//
//   forward          a = x: [tokens, ins]    b = w: [outs, ins]    out = x wᵀ: [tokens, outs]
//   backward data    a = g: [tokens, outs]   b = w: [outs, ins]    out = g w: [tokens, ins]
//   backward weight  a = g: [tokens, outs]   b = x: [tokens, ins]  out = gᵀ x: [outs, ins]
struct DensePeer {
  std::string name;  // "OpenBLAS 0.3.21 Zen"
  std::function<void(Product, MatrixView<const float> a, MatrixView<const float> b,
                     MatrixView<float> out)>
      run;
};

struct DensePeers {
  std::vector<DensePeer> peers;     // oneDNN first
  std::vector<std::string> absent;  // "OpenBLAS: ...", why it is not among them
};

const DensePeers& dense_peers();

// A product whose operands are already in the type and layout that oneDNN's matmul wants, so that
// calling it costs the product and nothing else. Copies a and b; keeps `out`, in fp32.
std::function<void()> prepare_matmul(Precision type, Product product, MatrixView<const float> a,
                                     MatrixView<const float> b, MatrixView<float> out);

// Why there is no bf16 product to compare with, as in "none on this CPU"; empty if there is one.
std::string no_bf16();

}  // namespace weft::bench
