#include "bench/peers.h"

#include <dlfcn.h>

#include <cstdlib>
#include <memory>
#include <optional>

#include "weft/core/error.h"
#include "weft/core/isa.h"
#include "weft/core/parallel.h"
#include "weft/kernel/dense/onednn.h"
#include "weft/kernel/dense/onednn_describe.h"
#include "weft/kernel/kernels.h"

namespace weft::bench {
namespace {

// out = op(a) op(b), the three products as a matrix library sees them.
struct Gemm {
  bool transpose_a;
  bool transpose_b;
  int64_t m, n, k;
};

Gemm as_gemm(Product product, MatrixView<const float> a, MatrixView<float> out) {
  return {product == Product::kBackwardWeight, product == Product::kForward, out.rows, out.cols,
          product == Product::kBackwardWeight ? a.rows : a.cols};
}

void run_onednn(Product product, MatrixView<const float> a, MatrixView<const float> b,
                MatrixView<float> out) {
  const Gemm gemm = as_gemm(product, a, out);
  onednn::sgemm({gemm.transpose_a, gemm.transpose_b, gemm.k, a, b, /*alpha=*/1, /*beta=*/0, out});
}

void run_weft(Product product, MatrixView<const float> a, MatrixView<const float> b,
              MatrixView<float> out) {
  const bool weight = product == Product::kBackwardWeight;
  LinearCall call;
  call.product = product;
  call.activations = weight ? b : a;
  call.dense = weight ? a : b;
  call.result = out;
  multiply(call);
}

// OpenBLAS's name for the best it has on this CPU within weft's instruction set.
std::string openblas_core() {
  const std::string isa = current_isa();
#if defined(__x86_64__)
  if (isa.starts_with("s")) return "Nehalem";  // scalar, sse2, ssse3, sse4
  if (isa == "avx2") return __builtin_cpu_is("amd") ? "Zen" : "Haswell";
  if (isa.starts_with("avx3")) {
    return __builtin_cpu_supports("avx512bf16") ? "Cooperlake" : "SkylakeX";
  }
#endif
  return "";  // its own guess
}

// Sets an environment variable for as long as it lives.
class Environ {
 public:
  Environ(const char* name, const std::string& value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    setenv(name, value.c_str(), 1);
  }
  ~Environ() { before_ ? setenv(name_, before_->c_str(), 1) : unsetenv(name_); }
  Environ(const Environ&) = delete;
  Environ& operator=(const Environ&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

// Throws an Error that says why there is none.
DensePeer load_openblas() {
  const std::string core = openblas_core();
  std::optional<Environ> core_type;  // read while the library is loaded
  if (!core.empty()) core_type.emplace("OPENBLAS_CORETYPE", core);
  // Never closed: its threads may outlive any use.
  void* library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
  WEFT_CHECK(library != nullptr, "{}", dlerror());
  const auto find = [&]<typename F>(F*& function, const char* name) {
    function = reinterpret_cast<F*>(dlsym(library, name));
    WEFT_CHECK(function != nullptr, "libopenblas.so.0 has no {}", name);
  };
  void (*sgemm)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
                const float* a, int lda, const float* b, int ldb, float beta, float* c, int ldc);
  void (*set_num_threads)(int);
  char* (*get_corename)();
  char* (*get_config)();
  find(sgemm, "cblas_sgemm");
  find(set_num_threads, "openblas_set_num_threads");
  find(get_corename, "openblas_get_corename");
  find(get_config, "openblas_get_config");
  const std::string running = get_corename();
  WEFT_CHECK(core.empty() || running == core,
             "it runs as on a {}, not a {}: it was loaded earlier in this process", running, core);

  std::string version = get_config();  // "OpenBLAS 0.3.21 NO_LAPACKE ..."
  version = version.substr(0, version.find(' ', version.find(' ') + 1));
  return {version + " " + running, [=](Product product, MatrixView<const float> a,
                                       MatrixView<const float> b, MatrixView<float> out) {
            constexpr int kRowMajor = 101, kPlain = 111, kTransposed = 112;
            const auto i = [](int64_t size) { return static_cast<int>(size); };
            const Gemm gemm = as_gemm(product, a, out);
            set_num_threads(threads());
            sgemm(kRowMajor, gemm.transpose_a ? kTransposed : kPlain,
                  gemm.transpose_b ? kTransposed : kPlain, i(gemm.m), i(gemm.n), i(gemm.k), 1,
                  a.data, i(a.row_stride), b.data, i(b.row_stride), 0, out.data, i(out.row_stride));
          }};
}

DensePeers find_peers() {
  onednn::prepare();
  DensePeers found;
  found.peers.push_back({"oneDNN", run_onednn});
  try {
    found.peers.push_back(load_openblas());
  } catch (const Error& error) {
    found.absent.push_back(fmt::format("OpenBLAS: {}", error.what()));
  }
  found.peers.push_back({"weft", run_weft});
  return found;
}

dnnl::memory::desc plain(MatrixView<const float> matrix, bool transpose) {
  using Dims = dnnl::memory::dims;
  if (transpose) {
    return {Dims{matrix.cols, matrix.rows}, dnnl::memory::data_type::f32,
            Dims{1, matrix.row_stride}};
  }
  return {Dims{matrix.rows, matrix.cols}, dnnl::memory::data_type::f32, Dims{matrix.row_stride, 1}};
}

// `matrix` in the type and layout `wanted`.
dnnl::memory copy_as(const dnnl::memory::desc& wanted, const dnnl::memory::desc& given,
                     const float* data, const dnnl::engine& engine, dnnl::stream& stream) {
  dnnl::memory source(given, engine, const_cast<float*>(data)), copy(wanted, engine);
  dnnl::reorder(source, copy).execute(stream, source, copy);
  stream.wait();
  return copy;
}

}  // namespace

const DensePeers& dense_peers() {
  static const DensePeers found = find_peers();
  return found;
}

std::function<void()> prepare_matmul(Precision type, Product product, MatrixView<const float> a,
                                     MatrixView<const float> b, MatrixView<float> out) {
  onednn::prepare();
  try {
    const Gemm gemm = as_gemm(product, a, out);
    const auto element =
        type == Precision::kBf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
    const auto any = dnnl::memory::format_tag::any;
    const dnnl::memory::desc out_desc = plain(out, false);
    const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    dnnl::stream stream(engine);
    const auto chosen = onednn::describe<dnnl::matmul>(
        engine, {}, dnnl::memory::desc({gemm.m, gemm.k}, element, any),
        dnnl::memory::desc({gemm.k, gemm.n}, element, any), out_desc);
    const std::unordered_map<int, dnnl::memory> arguments = {
        {DNNL_ARG_SRC,
         copy_as(chosen.src_desc(), plain(a, gemm.transpose_a), a.data, engine, stream)},
        {DNNL_ARG_WEIGHTS,
         copy_as(chosen.weights_desc(), plain(b, gemm.transpose_b), b.data, engine, stream)},
        {DNNL_ARG_DST, dnnl::memory(out_desc, engine, out.data)}};
    return [product = dnnl::matmul(chosen), arguments, stream]() mutable {
      product.execute(stream, arguments);
      stream.wait();
    };
  } catch (const dnnl::error& error) {
    throw Error(fmt::format("oneDNN: matmul: {}", error.what()));
  }
}

std::string no_bf16() {
  onednn::prepare();
  const int isa = dnnl_get_effective_cpu_isa();
  const bool native = (isa & dnnl_cpu_isa_avx512_core_bf16) == dnnl_cpu_isa_avx512_core_bf16;
  return native ? "" : fmt::format("none on this CPU with {}", current_isa());
}

}  // namespace weft::bench
