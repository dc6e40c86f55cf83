#include "bench/conv_peers.h"

#include <memory>
#include <optional>
#include <unordered_map>

#include "weft/core/error.h"
#include "weft/kernel/dense/onednn.h"
#include "weft/kernel/dense/onednn_describe.h"

namespace weft::bench {
namespace {

using Desc = dnnl::memory::desc;
using Dims = dnnl::memory::dims;
using Tag = dnnl::memory::format_tag;
constexpr auto kFp32 = dnnl::memory::data_type::f32;

// A tensor as the caller has it and as oneDNN wants it.
struct Tensor {
  Desc given, used;
  int argument = 0;
  float* data = nullptr;
};

// The primitive of a product, and its three tensors: x, w, y or their gradients.
struct Primitive {
  dnnl::primitive run;
  Tensor x, w, y;
};

Primitive choose(const ConvOperands& call, const dnnl::engine& engine) {
  const ConvShape& s = call.shape;
  const Dims x{s.images, s.ins, s.height, s.width},
      y{s.images, s.outs, s.out_height(), s.out_width()};
  const bool grouped = s.groups > 1;
  const Dims w = grouped ? Dims{s.groups, s.group_outs(), s.group_ins(), s.kernel_h, s.kernel_w}
                         : Dims{s.outs, s.ins, s.kernel_h, s.kernel_w};
  const Desc any_x(x, kFp32, Tag::any), any_w(w, kFp32, Tag::any), any_y(y, kFp32, Tag::any);
  const Desc plain_x(x, kFp32, Tag::nchw), plain_y(y, kFp32, Tag::nchw);
  const Desc plain_w(w, kFp32, grouped ? Tag::goihw : Tag::oihw);
  const Dims strides{s.stride_h, s.stride_w}, pads{s.pad_h, s.pad_w};
  const Dims gaps{s.dilation_h - 1, s.dilation_w - 1};  // oneDNN counts the pixels between taps
  constexpr auto kDirect = dnnl::algorithm::convolution_direct;
  auto* const activations = const_cast<float*>(call.activations);
  auto* const operand = const_cast<float*>(call.operand);
  using Forward = dnnl::convolution_forward;
  const auto forward =
      onednn::describe<Forward>(engine, {}, dnnl::prop_kind::forward_training, kDirect, any_x,
                                any_w, any_y, strides, gaps, pads, pads);
  switch (call.product) {
    case Product::kForward:
      return {Forward(forward),
              {plain_x, forward.src_desc(), DNNL_ARG_SRC, activations},
              {plain_w, forward.weights_desc(), DNNL_ARG_WEIGHTS, operand},
              {plain_y, forward.dst_desc(), DNNL_ARG_DST, call.result}};
    case Product::kBackwardData: {
      using Backward = dnnl::convolution_backward_data;
      const auto backward = onednn::describe_backward<Backward>(
          engine, {}, forward, kDirect, any_x, any_w, any_y, strides, gaps, pads, pads);
      return {Backward(backward),
              {plain_x, backward.diff_src_desc(), DNNL_ARG_DIFF_SRC, call.result},
              {plain_w, backward.weights_desc(), DNNL_ARG_WEIGHTS, operand},
              {plain_y, backward.diff_dst_desc(), DNNL_ARG_DIFF_DST, activations}};
    }
    case Product::kBackwardWeight: {
      using Backward = dnnl::convolution_backward_weights;
      const auto backward = onednn::describe_backward<Backward>(
          engine, {}, forward, kDirect, any_x, any_w, any_y, strides, gaps, pads, pads);
      return {Backward(backward),
              {plain_x, backward.src_desc(), DNNL_ARG_SRC, activations},
              {plain_w, backward.diff_weights_desc(), DNNL_ARG_DIFF_WEIGHTS, call.result},
              {plain_y, backward.diff_dst_desc(), DNNL_ARG_DIFF_DST, operand}};
    }
  }
  throw Error("bench: no such product");
}

// A prepared convolution: what is copied on the way in or out, and the product.
class Prepared {
 public:
  Prepared(const ConvOperands& call, bool blocked)
      : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    Primitive chosen = choose(call, engine_);
    product_ = chosen.run;
    const Tensor& result = call.product == Product::kForward        ? chosen.y
                           : call.product == Product::kBackwardData ? chosen.x
                                                                    : chosen.w;
    for (const Tensor* tensor : {&chosen.x, &chosen.w, &chosen.y}) {
      const dnnl::memory given(tensor->given, engine_, tensor->data);
      if (tensor->given == tensor->used) {
        arguments_[tensor->argument] = given;
        continue;
      }
      const dnnl::memory used(tensor->used, engine_);
      arguments_[tensor->argument] = used;
      const bool is_result = tensor == &result, in_place = blocked && tensor != &chosen.w;
      const Copy copy = is_result ? Copy{dnnl::reorder(used, given), used, given}
                                  : Copy{dnnl::reorder(given, used), given, used};
      if (!in_place) {
        (is_result ? after_ : before_).push_back(copy);
      } else if (!is_result) {
        run_copy(copy);
        stream_.wait();
      }
    }
  }

  void run() {
    for (const Copy& copy : before_) run_copy(copy);
    product_.execute(stream_, arguments_);
    for (const Copy& copy : after_) run_copy(copy);
    stream_.wait();
  }

 private:
  struct Copy {
    dnnl::reorder reorder;
    dnnl::memory from, to;
  };
  void run_copy(Copy copy) { copy.reorder.execute(stream_, copy.from, copy.to); }

  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::primitive product_;
  std::unordered_map<int, dnnl::memory> arguments_;
  std::vector<Copy> before_, after_;
};

ConvPeer prepared(const std::string& name, const ConvOperands& operands, bool blocked) {
  const auto peer = std::make_shared<Prepared>(operands, blocked);
  return {name, [peer] { peer->run(); }};
}

}  // namespace

std::vector<ConvPeer> onednn_convolutions(const ConvOperands& operands) {
  onednn::prepare();
  try {
    return {prepared("oneDNN", operands, false), prepared("oneDNN, blocked", operands, true)};
  } catch (const dnnl::error& error) {
    throw Error(fmt::format("oneDNN: convolution {}: {}", operands.shape.spec(), error.what()));
  }
}

}  // namespace weft::bench
