// ConvLayer: the three products of a two-dimensional convolution that trains (layer.h). Groups run
// along the input channels at one tap; samples of the gradient run along the positions of one
// image.
//
// Weights are [outs, ins / groups, kernel_h, kernel_w]. Activations are given with their strides:
// NCHW without gaps is computed in place, anything else (channels last) through a copy.
#pragma once

#include <array>

#include "weft/kernel/conv/conv_shape.h"
#include "weft/kernel/conv/pack_conv.h"
#include "weft/layer/layer.h"

namespace weft {

template <typename T>
struct ImageView {
  T* data = nullptr;
  std::array<int64_t, 4> sizes{};    // images, channels, height, width
  std::array<int64_t, 4> strides{};  // of the same, in elements

  ImageView() = default;
  ImageView(T* data, std::array<int64_t, 4> sizes, std::array<int64_t, 4> strides)
      : data(data), sizes(sizes), strides(strides) {}
  ImageView(T* data, std::array<int64_t, 4> sizes)
      : ImageView(data, sizes, {sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], sizes[3], 1}) {
  }
  operator ImageView<const T>() const { return {data, sizes, strides}; }

  int64_t size() const { return sizes[0] * sizes[1] * sizes[2] * sizes[3]; }
  bool is_nchw() const { return strides == ImageView(data, sizes).strides; }
};

class ConvLayer : public Layer {
 public:
  // geometry: all but images, height and width, which come with every call.
  explicit ConvLayer(const ConvShape& geometry)
      : Layer(geometry.weight_shape(), geometry.groups), geometry_(geometry) {
    configure({});
  }

  const ConvShape& geometry() const { return geometry_; }
  // The geometry for images of that size. Throws Error if they do not fit.
  ConvShape shape_for(const std::array<int64_t, 4>& x_sizes) const;

  template <typename T>
  void forward(const LayerWeights& weights, ImageView<const T> x, const float* bias,
               ImageView<T> y);
  template <typename T>
  void backward_data(const LayerWeights& weights, ImageView<const T> g, ImageView<T> dx);
  template <typename T>
  void backward_weight(const LayerWeights& weights, ImageView<const T> g, ImageView<const T> x,
                       const Pass& pass, float* dw);

 private:
  std::string kind() const override { return "convolution"; }
  std::optional<LayerPlan> plan_for(const Pattern& pattern) override;
  void forget_inputs() override { last_ = {}; }
  void forget_packs() override { packed_forward_ = packed_backward_ = false; }
  void free_packs() override;
  int64_t first_group_of(const Pass& pass, const ConvShape& shape) const;
  // pattern: nothing for an operand that is dense.
  std::optional<Request> request_at(const ConvShape& shape, const std::optional<Pattern>& pattern,
                                    bool masked_gradient = false) const;
  template <typename T>
  void compare_with_exact(const LayerWeights& weights, const ConvShape& shape, const T* g,
                          const T* dx);
  template <typename T>
  void sampled_weight(const ConvShape& shape, const T* g, const T* x, const Sampling& sampling,
                      const Way& way, float* dw);
  template <typename T>
  void masked_weight(const ConvShape& shape, const T* g, const T* x, const Pattern& planned_as,
                     const Way& way, float* dw);

  ConvShape geometry_;
  ConvShape last_;  // input
  bool packed_forward_ = false, packed_backward_ = false;
  PackedConv forward_pack_, backward_pack_, gradient_pack_;
  KeptOfMask kept_;  // of a masked gradient
};

}  // namespace weft
