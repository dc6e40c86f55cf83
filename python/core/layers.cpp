// The layers that train (weft/layer), for the modules of weft.nn. Tensors come as addresses: the
// modules own them, have checked dtype, device and strides, and call with what they have at that
// moment. Nothing here keeps an address.
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "python/core/arrays.h"
#include "weft/kernel/conv/pack_conv.h"
#include "weft/layer/conv_layer.h"
#include "weft/layer/fingerprint.h"
#include "weft/layer/linear_layer.h"

namespace weft::python {
namespace {

using Address = uintptr_t;           // 0: none
using Key = std::array<int64_t, 4>;  // seed, step, call, first token: weft::Pass

template <typename T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

Pass pass_of(const Key& key) { return {static_cast<uint64_t>(key[0]), key[1], key[2], key[3]}; }

// Numbers of the saved state, one after the other.
class Blob {
 public:
  void put(int64_t value) {
    const auto* bytes = reinterpret_cast<const char*>(&value);
    bytes_.insert(bytes_.end(), bytes, bytes + sizeof(value));
  }
  nb::bytes take() const { return nb::bytes(bytes_.data(), bytes_.size()); }

 private:
  std::vector<char> bytes_;
};

class BlobReader {
 public:
  BlobReader(const char* data, size_t size) : data_(data), left_(size) {}
  int64_t get() {
    int64_t value = 0;
    WEFT_CHECK(left_ >= sizeof(value), "the saved state of a layer is cut short");
    std::memcpy(&value, data_, sizeof(value));
    data_ += sizeof(value);
    left_ -= sizeof(value);
    return value;
  }
  size_t left() const { return left_; }

 private:
  const char* data_;
  size_t left_;
};

constexpr int64_t kStateVersion = 1;

// What only weft's own trainer or optimiser can do.
void require_trainable(const Recipe& recipe) {
  WEFT_CHECK(
      !recipe.finds_lambda(),
      "recipe '{}': decay=auto finds lambda in short trial runs, which `weft train` makes; give "
      "decay=gradient+lambda=X here",
      recipe.name);
  WEFT_CHECK(
      !recipe.frozen_moment,
      "recipe '{}': moment=frozen needs weft::AdamW, of `weft train` and the C++ library; leave "
      "it out",
      recipe.name);
}

// What linear layers and convolutions have in common.
class PyLayer {
 public:
  explicit PyLayer(std::unique_ptr<Layer> layer) : layer_(std::move(layer)) {}
  virtual ~PyLayer() = default;

  Layer& layer() { return *layer_; }

  void configure(const std::string& recipe, const std::string& pattern, int64_t total_steps,
                 uint64_t seed, int64_t number, const std::string& label, int micro_batches,
                 int64_t replica, int64_t replicas, bool telemetry,
                 std::shared_ptr<Planner> planner) {
    LayerSettings settings;
    settings.recipe = Recipe::parse(recipe);
    require_trainable(settings.recipe);
    settings.pattern = Pattern::parse(pattern);
    settings.total_steps = total_steps;
    settings.seed = seed;
    settings.number = number;
    settings.label = label;
    settings.micro_batches = micro_batches;
    settings.replica = replica;
    settings.replicas = replicas;
    settings.telemetry = telemetry;
    settings.planner = std::move(planner);
    layer_->configure(settings);
  }

  LayerWeights weights(Address values, Address scores) const {
    LayerWeights out(at<const float>(values));
    const auto shape = layer_->score_shape();
    if (shape && scores != 0) {
      out.scores = {at<const float>(scores),
                    static_cast<size_t>(shape->cells * shape->groups * shape->candidates)};
    }
    return out;
  }

  void begin_pass(Address values, Address scores, bool training) {
    if (layer_->is_due(training)) {
      layer_->begin_pass(weights(values, scores), training);
    } else {
      layer_->begin_pass({}, training);
    }
  }
  Key next_pass() {
    const Pass pass = layer_->next_pass();
    return {static_cast<int64_t>(pass.seed), pass.step, pass.call, pass.first_token};
  }
  void add_decay(Address values, Address gradient, double learning_rate, bool wide) {
    if (wide) return layer_->add_decay(at<double>(values), at<double>(gradient), learning_rate);
    layer_->add_decay(at<float>(values), at<float>(gradient), learning_rate);
  }
  void effective(Address values, Address out, bool wide) {
    if (wide) return layer_->effective_values(at<const double>(values), at<double>(out));
    layer_->effective_values(at<const float>(values), at<float>(out));
  }
  void score_gradient(Address values, Address dw, Address out, bool wide) {
    if (wide) {
      return layer_->score_gradient(at<const double>(values), at<const double>(dw),
                                    at<double>(out));
    }
    layer_->score_gradient(at<const float>(values), at<const float>(dw), at<float>(out));
  }
  std::optional<std::array<int64_t, 3>> score_shape() const {
    const auto shape = layer_->score_shape();
    if (!shape) return std::nullopt;
    return std::array<int64_t, 3>{shape->cells, shape->groups, shape->candidates};
  }
  void first_scores(Address scores) {
    const auto shape = layer_->score_shape();
    layer_->first_scores(
        {at<float>(scores), static_cast<size_t>(shape->cells * shape->groups * shape->candidates)});
  }

  nb::object mask(bool backward) const {
    const Mask& mask = backward ? layer_->state().backward : layer_->state().forward;
    if (mask.rows() == 0) return nb::none();
    return nb::cast(array_of(mask, {mask.rows(), mask.cols()}));
  }
  void give_mask(const Bits& bits) {
    Mask mask = mask_of(bits);
    WEFT_CHECK(mask.rows() == layer_->shape().outs && mask.cols() == layer_->shape().cols(),
               "{}: a mask of [{}, {}] for a weight of [{}, {}]", layer_->label(), mask.rows(),
               mask.cols(), layer_->shape().outs, layer_->shape().cols());
    layer_->give_mask(std::move(mask));
  }

  nb::bytes state() const {
    Blob blob;
    const std::vector<StateArray> arrays = layer_->save_state();
    blob.put(kStateVersion);
    blob.put(static_cast<int64_t>(arrays.size()));
    for (const StateArray& array : arrays) {
      blob.put(static_cast<int64_t>(array.shape.size()));
      for (const int64_t dim : array.shape) blob.put(dim);
      blob.put(static_cast<int64_t>(array.values.size()));
      for (const int64_t value : array.values) blob.put(value);
    }
    return blob.take();
  }
  void load_state(const nb::bytes& bytes) {
    BlobReader reader(bytes.c_str(), bytes.size());
    WEFT_CHECK(reader.get() == kStateVersion && reader.get() == std::ssize(kStateNames),
               "{}: the saved state is not one of this version of weft", layer_->label());
    std::vector<StateArray> arrays;
    for (const std::string_view name : kStateNames) {
      StateArray array;
      array.name = name;
      const int64_t ndim = reader.get();
      WEFT_CHECK(ndim >= 0 && ndim <= 8, "{}: the saved state is damaged", layer_->label());
      for (int64_t i = 0; i < ndim; ++i) array.shape.push_back(reader.get());
      const int64_t size = reader.get();
      WEFT_CHECK(size >= 0 && static_cast<size_t>(size) <= reader.left() / sizeof(int64_t),
                 "{}: the saved state is damaged", layer_->label());
      array.values.reserve(static_cast<size_t>(size));
      for (int64_t i = 0; i < size; ++i) array.values.push_back(reader.get());
      arrays.push_back(std::move(array));
    }
    WEFT_CHECK(reader.left() == 0, "{}: the saved state is too long", layer_->label());
    layer_->load_state(arrays);
  }

  nb::dict telemetry(Address values) {
    LayerTelemetry t = layer_->telemetry(at<const float>(values));
    nb::dict out;
    out["density"] = t.forward_density;
    out["backward_density"] = t.backward_density;
    out["retained"] = t.retained;
    out["flip_rate"] = t.flip_rate;
    out["plan"] = t.plan_text();
    out["mask_seconds"] = t.times.mask;
    out["pack_seconds"] = t.times.pack;
    for (const Product product : kProducts) {
      out[(std::string(product_name(product)) + "_seconds").c_str()] = t.times.of(product);
    }
    for (const Figure& figure : t.figures) out[std::string(figure.name).c_str()] = figure.value;
    return out;
  }
  // What the planner has decided so far: (product, path, reason); nothing before the first pass.
  nb::list plan() {
    nb::list rows;
    const std::optional<LayerPlan> found = layer_->sparse_plan();
    if (!found) return rows;
    for (const Product product : kProducts) {
      rows.append(nb::make_tuple(std::string(product_name(product)), (*found)[product].path(),
                                 (*found)[product].reason()));
    }
    return rows;
  }

  uint64_t fingerprint(Address values) const {
    return weft::fingerprint(at<const float>(values),
                             layer_->shape().outs * layer_->shape().cols());
  }

  // How a sample of the gradient is drawn on torch's own operators; nothing: it is not sampled.
  std::optional<Sampling> sampling(const Key& key, int64_t first_group) {
    return layer_->sampling(pass_of(key), first_group);
  }

 protected:
  std::unique_ptr<Layer> layer_;
};

class PyLinear : public PyLayer {
 public:
  PyLinear(int64_t outs, int64_t ins) : PyLayer(std::make_unique<LinearLayer>(outs, ins)) {}

  // x: [tokens, ins], y: [tokens, outs]; bf16: they are, and so are g and dx
  void forward(Address values, Address scores, Address x, int64_t tokens, Address bias, Address y,
               bool bf16) {
    in_precision(bf16, [&]<typename T>(T) {
      const auto [outs, ins, taps] = own().shape();
      own().forward<T>(weights(values, scores), {at<const T>(x), tokens, ins},
                       at<const float>(bias), {at<T>(y), tokens, outs});
    });
  }
  void backward_data(Address values, Address scores, Address g, int64_t tokens, Address dx,
                     bool bf16) {
    in_precision(bf16, [&]<typename T>(T) {
      const auto [outs, ins, taps] = own().shape();
      own().backward_data<T>(weights(values, scores), {at<const T>(g), tokens, outs},
                             {at<T>(dx), tokens, ins});
    });
  }
  void backward_weight(Address values, Address scores, Address g, Address x, int64_t tokens,
                       const Key& key, Address dw, bool bf16) {
    in_precision(bf16, [&]<typename T>(T) {
      const auto [outs, ins, taps] = own().shape();
      own().backward_weight<T>(weights(values, scores), {at<const T>(g), tokens, outs},
                               {at<const T>(x), tokens, ins}, pass_of(key),
                               {at<float>(dw), outs, ins});
    });
  }
  bool sample_scales(Address g, int64_t tokens, const Key& key, Address scales) {
    const int64_t first_token = key[3], group = own().sample_pattern().group();
    const std::optional<Sampling> sample = sampling(key, first_token / group);
    if (!sample) return false;
    const int64_t outs = own().shape().outs;
    weft::sample_scales({at<const float>(g), tokens, outs}, sample->options,
                        {at<float>(scales), tokens, outs});
    return true;
  }

 private:
  // Calls run with a number of the type that activations have.
  template <typename Run>
  void in_precision(bool bf16, const Run& run) {
    own().set_precision(bf16 ? Precision::kBf16 : Precision::kFp32);
    if (bf16) return run(Bf16());
    run(0.0f);
  }
  LinearLayer& own() { return static_cast<LinearLayer&>(*layer_); }
};

using Sizes = std::array<int64_t, 4>;  // images, channels, height, width

class PyConv : public PyLayer {
 public:
  explicit PyConv(const ConvShape& geometry) : PyLayer(std::make_unique<ConvLayer>(geometry)) {}

  Sizes out_sizes(const Sizes& x) {
    const ConvShape shape = own().shape_for(x);
    return {shape.images, shape.outs, shape.out_height(), shape.out_width()};
  }
  void forward(Address values, Address scores, Address x, const Sizes& sizes, const Sizes& strides,
               Address bias, Address y) {
    own().forward<float>(weights(values, scores), {at<const float>(x), sizes, strides},
                         at<const float>(bias), {at<float>(y), out_sizes(sizes)});
  }
  void backward_data(Address values, Address scores, Address g, const Sizes& strides, Address dx,
                     const Sizes& x_sizes) {
    own().backward_data<float>(weights(values, scores),
                               {at<const float>(g), out_sizes(x_sizes), strides},
                               {at<float>(dx), x_sizes});
  }
  void backward_weight(Address values, Address scores, Address g, const Sizes& g_strides, Address x,
                       const Sizes& sizes, const Sizes& strides, const Key& key, Address dw) {
    own().backward_weight<float>(weights(values, scores),
                                 {at<const float>(g), out_sizes(sizes), g_strides},
                                 {at<const float>(x), sizes, strides}, pass_of(key), at<float>(dw));
  }
  // g: [images, outs, height, width]
  bool sample_scales(Address g, const Sizes& g_sizes, const Key& key, Address scales) {
    // Groups begin with every image, as in ConvLayer.
    const int64_t positions = g_sizes[2] * g_sizes[3], group = own().sample_pattern().group();
    const int64_t first_image = positions == 0 ? 0 : key[3] / positions;
    const auto sample = sampling(key, first_image * ((positions + group - 1) / group));
    if (!sample) return false;
    ConvShape shape;  // a sample sees images, outputs and positions: as a kernel of one tap does
    shape.images = g_sizes[0];
    shape.ins = shape.outs = g_sizes[1];
    shape.groups = own().geometry().groups;
    shape.height = g_sizes[2];
    shape.width = g_sizes[3];
    sample_conv_scales(at<const float>(g), shape, sample->options, at<float>(scales));
    return true;
  }

 private:
  ConvLayer& own() { return static_cast<ConvLayer&>(*layer_); }
};

std::string objection(int64_t outs, int64_t ins, int64_t taps, int64_t groups,
                      const std::string& recipe, const std::string& pattern) {
  const Recipe parsed = Recipe::parse(recipe);
  require_trainable(parsed);
  const Pattern wanted = Pattern::parse(pattern);
  parsed.check(wanted);
  return Layer::objection({outs, ins, taps}, groups, parsed, wanted);
}

}  // namespace

void bind_layers(nb::module_& m) {
  using Release = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<Planner>(m, "Planner")
      .def("__init__", [](Planner* self,
                          const std::string& mode) { new (self) Planner(parse_plan_mode(mode)); })
      .def("saved", &Planner::saved)
      .def("remember", [](Planner& self, const std::string& json) { self.remember(json); });

  nb::class_<PyLayer>(m, "Layer")
      .def("configure", &PyLayer::configure, nb::arg("recipe"), nb::arg("pattern"),
           nb::arg("total_steps"), nb::arg("seed"), nb::arg("number"), nb::arg("label"),
           nb::arg("micro_batches"), nb::arg("replica"), nb::arg("replicas"), nb::arg("telemetry"),
           nb::arg("planner"))
      .def("begin_pass", &PyLayer::begin_pass, Release())
      .def("next_pass", &PyLayer::next_pass)
      .def("add_decay", &PyLayer::add_decay, Release())
      .def("sample_group", [](PyLayer& self) { return self.layer().sample_pattern().group(); })
      .def("count_step", [](PyLayer& self) { self.layer().count_step(); })
      .def(
          "bring_up_to_date",
          [](PyLayer& self, Address values, Address scores) {
            self.layer().bring_up_to_date(self.weights(values, scores));
          },
          Release())
      .def(
          "weights_changed",
          [](PyLayer& self, Address values, Address scores) {
            self.layer().weights_changed(self.weights(values, scores));
          },
          Release())
      .def("forget_operands", [](PyLayer& self) { self.layer().forget_operands(); })
      .def("effective", &PyLayer::effective, Release())
      .def("score_gradient", &PyLayer::score_gradient, Release())
      .def("first_scores", &PyLayer::first_scores)
      .def("mask", &PyLayer::mask, nb::arg("backward") = false)
      .def("give_mask", &PyLayer::give_mask)
      .def("state", &PyLayer::state)
      .def("load_state", &PyLayer::load_state)
      .def("telemetry", &PyLayer::telemetry)
      .def("plan", &PyLayer::plan)
      .def("fingerprint", &PyLayer::fingerprint)
      .def_prop_ro("stamp", [](PyLayer& self) { return self.layer().stamp(); })
      .def_prop_ro("step", [](PyLayer& self) { return self.layer().state().step; })
      .def_prop_ro("sparse", [](PyLayer& self) { return self.layer().state().sparse(); })
      .def_prop_ro("always_dense", [](PyLayer& self) { return self.layer().always_dense(); })
      .def_prop_ro("decays", [](PyLayer& self) { return !self.layer().recipe().decay->none(); })
      .def_prop_ro("fp8", [](PyLayer& self) { return self.layer().recipe().fp8; })
      .def_prop_ro("masks_gradient",
                   [](PyLayer& self) {
                     return self.layer().recipe().gradient->masked && self.layer().state().sparse();
                   })
      .def_prop_ro("score_shape", &PyLayer::score_shape)
      .def_prop_ro("trains_scores", [](PyLayer& self) { return self.layer().trains_scores(); });

  nb::class_<PyLinear, PyLayer>(m, "LinearLayer")
      .def(nb::init<int64_t, int64_t>())
      .def("forward", &PyLinear::forward, Release())
      .def("backward_data", &PyLinear::backward_data, Release())
      .def("backward_weight", &PyLinear::backward_weight, Release())
      .def("sample_scales", &PyLinear::sample_scales, Release());

  nb::class_<PyConv, PyLayer>(m, "ConvLayer")
      .def("__init__",
           [](PyConv* self, int64_t ins, int64_t outs, std::array<int64_t, 2> kernel,
              std::array<int64_t, 2> stride, std::array<int64_t, 2> padding,
              std::array<int64_t, 2> dilation, int64_t groups) {
             ConvShape s;
             s.ins = ins, s.outs = outs, s.groups = groups;
             s.kernel_h = kernel[0], s.kernel_w = kernel[1];
             s.stride_h = stride[0], s.stride_w = stride[1];
             s.pad_h = padding[0], s.pad_w = padding[1];
             s.dilation_h = dilation[0], s.dilation_w = dilation[1];
             new (self) PyConv(s);
           })
      .def("out_sizes", &PyConv::out_sizes)
      .def("forward", &PyConv::forward, Release())
      .def("backward_data", &PyConv::backward_data, Release())
      .def("backward_weight", &PyConv::backward_weight, Release())
      .def("sample_scales", &PyConv::sample_scales, Release());

  m.def("objection", &objection);
}

}  // namespace weft::python
