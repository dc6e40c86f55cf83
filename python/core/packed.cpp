// PackedMatrix for Python: a weight matrix without its zeros, and its three products.
//
// It holds one pack, for files and few tokens (the stream layout) or for products (panels), and makes
// the others when a product first asks: panels of Wᵀ for dx, the kept entries for dw.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "python/core/arrays.h"
#include "weft/kernel/kernels.h"
#include "weft/kernel/panel/panel_size.h"
#include "weft/mask/solver.h"
#include "weft/pack/pack.h"
#include "weft/plan/planner.h"

namespace weft::python {
namespace {

class PyPacked {
 public:
  PyPacked(const In<float>& w, const Mask& mask, const Pattern& pattern, Precision values,
           bool stream) {
    WEFT_CHECK(w.ndim() == 2, "a weight of {} dimensions: packed are [outs, ins]", w.ndim());
    const std::vector<int64_t> dims = dims_of(w);
    const MatrixView<const float> view(w.data(), dims[0], dims[1]);
    nb::gil_scoped_release released;
    pack_ = stream ? pack_stream(view, mask, pattern, values)
                   : pack_panels(view, mask, options(pattern, values));
  }
  explicit PyPacked(PackedMatrix pack) : pack_(std::move(pack)) {}

  int64_t outs() const { return pack_.rows(); }
  int64_t ins() const { return pack_.depth(); }
  std::string pattern() const { return pack_.pattern().str(); }
  std::string layout() const { return std::string(layout_name(pack_.layout())); }
  std::string value_type() const { return std::string(precision_name(pack_.value_type())); }
  double density() const { return pack_.density(); }

  // Of all that is held.
  int64_t nbytes() const {
    size_t bytes = pack_.bytes().size();
    if (panels_) bytes += panels_->bytes().size();
    if (transposed_) bytes += transposed_->bytes().size();
    if (kept_) bytes += static_cast<size_t>(kept_->size()) * sizeof(uint16_t);
    return static_cast<int64_t>(bytes);
  }

  // y = x Wᵀ + bias. x: [tokens, ins], y: [tokens, outs]
  Out<float> forward(const In<float>& x, std::optional<In<float>> bias) {
    const int64_t tokens = tokens_of(x, ins(), "x");
    WEFT_CHECK(!bias || static_cast<int64_t>(bias->size()) == outs(), "a bias of {} for {} outputs",
               bias ? bias->size() : 0, outs());
    Out<float> y = new_array<float>({tokens, outs()});
    nb::gil_scoped_release released;
    LinearCall call;
    call.activations = MatrixView<const float>(x.data(), tokens, ins());
    call.packed = &for_tokens(tokens);
    call.bias = bias ? bias->data() : nullptr;
    call.result = MatrixView<float>(y.data(), tokens, outs());
    multiply(call);
    return y;
  }

  // dx = g W. g: [tokens, outs]
  Out<float> backward_data(const In<float>& g) {
    const int64_t tokens = tokens_of(g, outs(), "g");
    Out<float> dx = new_array<float>({tokens, ins()});
    nb::gil_scoped_release released;
    LinearCall call;
    call.product = Product::kBackwardData;
    call.activations = MatrixView<const float>(g.data(), tokens, outs());
    call.packed = &transposed();
    call.result = MatrixView<float>(dx.data(), tokens, ins());
    multiply(call);
    return dx;
  }

  // dw = gᵀ x where the mask keeps it, zero elsewhere.
  Out<float> backward_weight(const In<float>& g, const In<float>& x) {
    const int64_t tokens = tokens_of(g, outs(), "g");
    WEFT_CHECK(tokens_of(x, ins(), "x") == tokens, "g has {} tokens, x has {}", tokens, x.shape(0));
    Out<float> dw = new_array<float>({outs(), ins()});
    nb::gil_scoped_release released;
    if (!kept_) kept_.emplace(unpack(pack_).mask, pack_.pattern());
    LinearCall call;
    call.product = Product::kBackwardWeight;
    call.activations = MatrixView<const float>(x.data(), tokens, ins());
    call.dense = MatrixView<const float>(g.data(), tokens, outs());
    call.kept = &*kept_;
    call.result = MatrixView<float>(dw.data(), outs(), ins());
    multiply(call);
    return dw;
  }

  Out<float> dense() const { return array_of(unpack(pack_).values, {outs(), ins()}); }
  Out<bool> mask() const { return array_of(unpack(pack_).mask, {outs(), ins()}); }
  nb::bytes bytes() const {
    return nb::bytes(reinterpret_cast<const char*>(pack_.bytes().data()), pack_.bytes().size());
  }
  static PyPacked* from_bytes(const nb::bytes& bytes) {
    return new PyPacked(PackedMatrix::from_bytes(
        {reinterpret_cast<const std::byte*>(bytes.c_str()), bytes.size()}));
  }

 private:
  static PanelOptions options(const Pattern& pattern, Precision values) {
    PanelOptions options{.pattern = pattern, .tile = tile_for(pattern)};
    options.value_type = values;
    return options;
  }

  int64_t tokens_of(const In<float>& a, int64_t cols, const char* name) const {
    WEFT_CHECK(a.ndim() == 2 && static_cast<int64_t>(a.shape(1)) == cols,
               "{} must be [tokens, {}] for a packed [{}, {}]", name, cols, outs(), ins());
    return static_cast<int64_t>(a.shape(0));
  }

  // A stream reads every byte of the weights once per few tokens: from where that is slower, panels.
  const PackedMatrix& for_tokens(int64_t tokens) {
    constexpr int64_t kFew = 16;
    if (pack_.layout() == PackLayout::kPanel || tokens <= kFew) return pack_;
    if (!panels_) {
      const Unpacked all = unpack(pack_);
      panels_ = pack_panels({all.values.data(), outs(), ins()}, all.mask,
                            options(pack_.pattern(), pack_.value_type()));
    }
    return *panels_;
  }

  const PackedMatrix& transposed() {
    if (!transposed_) {
      const Unpacked all = unpack(pack_);
      PanelOptions own = options(pack_.pattern(), pack_.value_type());
      own.ragged = true;
      own.tile = tile_for(pack_.density(), 1, pack_.pattern().group());
      transposed_ = pack_panels_transposed({all.values.data(), outs(), ins()}, all.mask, own);
    }
    return *transposed_;
  }

  PackedMatrix pack_;
  std::optional<PackedMatrix> panels_, transposed_;
  std::optional<KeptEntries> kept_;
};

}  // namespace

void bind_packed(nb::module_& m) {
  nb::class_<PyPacked>(m, "PackedMatrix")
      .def("__init__",
           [](PyPacked* self, const In<float>& w, const Bits& mask, const std::string& pattern,
              const std::string& values, bool stream) {
             new (self) PyPacked(w, mask_of(mask), Pattern::parse(pattern), parse_precision(values),
                                 stream);
           })
      .def("forward", &PyPacked::forward, nb::arg("x"), nb::arg("bias").none() = nb::none())
      .def("backward_data", &PyPacked::backward_data)
      .def("backward_weight", &PyPacked::backward_weight)
      .def("dense", &PyPacked::dense)
      .def("mask", &PyPacked::mask)
      .def("to_bytes", &PyPacked::bytes)
      .def_static("from_bytes", &PyPacked::from_bytes, nb::rv_policy::take_ownership)
      .def_prop_ro("outs", &PyPacked::outs)
      .def_prop_ro("ins", &PyPacked::ins)
      .def_prop_ro("pattern", &PyPacked::pattern)
      .def_prop_ro("layout", &PyPacked::layout)
      .def_prop_ro("value_type", &PyPacked::value_type)
      .def_prop_ro("density", &PyPacked::density)
      .def_prop_ro("nbytes", &PyPacked::nbytes);
}

}  // namespace weft::python
