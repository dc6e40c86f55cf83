// What every source that calls oneDNN needs: its instruction set, its threads, its errors. Only for
// weft's own sources, so that users of the library need no header of oneDNN.
#pragma once

#include <oneapi/dnnl/dnnl.h>

#include <string>

#include "weft/core/error.h"
#include "weft/core/matrix_view.h"
#include "weft/core/parallel.h"

namespace weft::onednn {

// Holds oneDNN to the instruction set that weft runs on when this is called first; call it before
// anything else of oneDNN. oneDNN can be told only once and only before its first use, so a later
// `force_isa` no longer reaches it.
void prepare();

// What oneDNN really is held to, in weft's names (sse4, avx, avx2, avx3); calls prepare.
std::string isa();

inline void check(dnnl_status_t status, const char* what) {
  WEFT_CHECK(status == dnnl_success, "oneDNN: {} failed: {}", what,
             status == dnnl_out_of_memory       ? "out of memory"
             : status == dnnl_invalid_arguments ? "invalid arguments"
             : status == dnnl_unimplemented     ? "not implemented on this CPU"
                                                : "runtime error");
}

// While it lives, oneDNN runs on the calling thread alone. Inside an active parallel region oneDNN
// does so by itself; but a region of one thread (a single item, OMP_THREAD_LIMIT=1) does not count
// as one, and there it would start threads of its own and sum in another order.
class OneThread {
 public:
  OneThread() : before_(threads()) {
    if (before_ != 1) set_threads(1);
  }
  ~OneThread() {
    if (before_ != 1) set_threads(before_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

// c = alpha · op(a) op(b) + beta · c, where op(a): [m, k], op(b): [k, n], c: [m, n]. With beta 0, c
// is only written.
struct Sgemm {
  bool transpose_a;
  bool transpose_b;
  int64_t k;                  // > 0
  MatrixView<const float> a;  // [m, k], or [k, m] if transposed
  MatrixView<const float> b;  // [k, n], or [n, k] if transposed
  float alpha;
  float beta;
  MatrixView<float> c;
};

// After prepare(), and with a OneThread alive where bits must not depend on the number of threads.
void sgemm(const Sgemm& product);

}  // namespace weft::onednn
