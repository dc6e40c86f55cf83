#include "weft/train/layers/products.h"

#include <chrono>

#include "weft/kernel/dense.h"
#include "weft/kernel/dense_conv.h"
#include "weft/kernel/sparse.h"
#include "weft/train/recipes/masked_copy.h"

namespace weft {
namespace {

// Adds the time that it lives to a sum.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  ~Stopwatch() {
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

double& time_of(LayerTimes& times, Product product) {
  return times.products[static_cast<size_t>(product)];
}

// The sample of g as a dense matrix, for a dense product.
AlignedBuffer<float> sampled(const float* g, const float* scales, int64_t size,
                             const std::optional<Fp8>& rounding) {
  AlignedBuffer<float> sample(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) {
    sample.data()[i] = scales[i] == 0.0f ? 0.0f : g[i] * scales[i];
  }
  if (rounding) {
    const std::span<float> all(sample.data(), sample.size());
    round_to_fp8(all, *rounding, all);
  }
  return sample;
}

}  // namespace

void LayerProducts::set(const LayerOperands& operands) {
  operands_ = operands;
  dense_forward_.forget();
  dense_backward_.forget();
  forget_packs();
}

template <typename Request>
bool LayerProducts::planned_sparse(const std::string& key, const Request& request,
                                   Product product) {
  auto found = plans_.find(key);
  if (found == plans_.end()) found = plans_.emplace(key, planner_->plan(request)).first;
  return found->second[product].choice == Choice::kSparse;
}

const float* LayerProducts::dense_copy(DenseCopy& copy, const Operand& operand) {
  const Stopwatch watch(times_.pack);
  return copy.of(operand, shape_);
}

std::string LayerProducts::choices() const {
  return fmt::format("{}/{}/{}", choices_[0], choices_[1], choices_[2]);
}

void LayerProducts::note(Product product, bool sparse) {
  choices_[static_cast<size_t>(product)] = choice_name(sparse ? Choice::kSparse : Choice::kDense);
}

void LinearProducts::forget_packs() {
  packed_forward_ = packed_backward_ = false;
  kept_.reset();
}

bool LinearProducts::sparse_at(int64_t tokens, Product product, const Pattern& pattern,
                               bool masked_gradient) {
  if (tokens == 0) return false;
  const PlanRequest request{{tokens, shape_.ins, shape_.outs},
                            pattern,
                            operands_.transposable,
                            products_per_pack_,
                            masked_gradient};
  const std::string key = fmt::format("{} {} {}", tokens, pattern.str(), masked_gradient);
  return planned_sparse(key, request, product);
}

std::optional<LayerPlan> LinearProducts::plan_for(const Pattern& pattern, bool transposable,
                                                  bool masked_gradient) {
  if (tokens_ == 0) return std::nullopt;
  PlanRequest request{
      {tokens_, shape_.ins, shape_.outs}, pattern, transposable, products_per_pack_};
  LayerPlan plan = planner().plan(request);
  if (masked_gradient) {
    request.masked_gradient = true;
    const auto gradient = static_cast<size_t>(Product::kBackwardWeight);
    plan.products[gradient] = planner().plan(request).products[gradient];
  }
  return plan;
}

void LinearProducts::forward(MatrixView<const float> x, const float* bias, MatrixView<float> y) {
  tokens_ = x.rows;
  const Operand& w = operands_.forward;
  const bool sparse = w.mask != nullptr && sparse_at(x.rows, Product::kForward, operands_.planned);
  note(Product::kForward, sparse);
  if (sparse && !packed_forward_) {
    const Stopwatch watch(times_.pack);
    forward_pack_ = pack_panels({w.values, shape_.outs, shape_.ins}, *w.mask, w.pack_options(),
                                std::move(forward_pack_));
    packed_forward_ = true;
  }
  const float* dense = sparse ? nullptr : dense_copy(dense_forward_, w);
  const Stopwatch watch(time_of(times_, Product::kForward));
  if (sparse) {
    sparse_forward(x, forward_pack_, bias, 0.0f, y);
  } else {
    dense_forward(x, {dense, shape_.outs, shape_.ins}, bias, 0.0f, y);
  }
}

void LinearProducts::backward_data(MatrixView<const float> g, MatrixView<float> dx) {
  const Operand& w = operands_.backward;
  const bool sparse =
      w.mask != nullptr && sparse_at(g.rows, Product::kBackwardData, operands_.planned);
  note(Product::kBackwardData, sparse);
  if (sparse && !packed_backward_) {
    const Stopwatch watch(times_.pack);
    backward_pack_ = pack_panels_transposed({w.values, shape_.outs, shape_.ins}, *w.mask,
                                            w.pack_options(), std::move(backward_pack_));
    packed_backward_ = true;
  }
  const float* dense = sparse ? nullptr : dense_copy(dense_backward_, w);
  const Stopwatch watch(time_of(times_, Product::kBackwardData));
  if (sparse) {
    sparse_backward_data(g, backward_pack_, 0.0f, dx);
  } else {
    dense_backward_data(g, {dense, shape_.outs, shape_.ins}, 0.0f, dx);
  }
}

void LinearProducts::backward_weight(MatrixView<const float> g, MatrixView<const float> x,
                                     const std::optional<Sampling>& sampling,
                                     MatrixView<float> dw) {
  const bool sparse =
      sampling && sparse_at(g.rows, Product::kBackwardWeight, sampling->options.pattern);
  note(Product::kBackwardWeight, sparse);
  if (sparse) {
    {
      const Stopwatch watch(times_.pack);
      gradient_pack_ =
          pack_panels_sampled(g, sampling->options, tile_for(sampling->options.pattern),
                              sampling->rounding, std::move(gradient_pack_));
    }
    const Stopwatch watch(time_of(times_, Product::kBackwardWeight));
    sparse_backward_weight(gradient_pack_, x, 0.0f, dw);
    return;
  }
  if (!sampling && operands_.masked_gradient) return masked_weight(g, x, dw);
  const Stopwatch watch(time_of(times_, Product::kBackwardWeight));
  if (!sampling) return dense_backward_weight(g, x, 0.0f, dw);
  AlignedBuffer<float> scales(static_cast<size_t>(g.rows * g.cols));
  sample_scales(g, sampling->options, {scales.data(), g.rows, g.cols});
  const auto sample = sampled(g.data, scales.data(), g.rows * g.cols, sampling->rounding);
  dense_backward_weight({sample.data(), g.rows, g.cols}, x, 0.0f, dw);
}

void LinearProducts::masked_weight(MatrixView<const float> g, MatrixView<const float> x,
                                   MatrixView<float> dw) {
  const Mask& mask = *operands_.forward.mask;
  const bool sparse =
      sparse_at(g.rows, Product::kBackwardWeight, operands_.planned, /*masked_gradient=*/true);
  note(Product::kBackwardWeight, sparse);
  if (sparse && !kept_) {
    const Stopwatch watch(times_.pack);
    kept_.emplace(mask, operands_.planned);
  }
  const Stopwatch watch(time_of(times_, Product::kBackwardWeight));
  if (sparse) return masked_backward_weight(g, x, *kept_, 0.0f, dw);
  dense_backward_weight(g, x, 0.0f, dw);
  masked_copy(dw.data, mask, dw.data);
}

bool ConvProducts::sparse_at(const ConvShape& shape, Product product, const Pattern& pattern) {
  if (shape.images == 0) return false;
  const ConvRequest request{shape, pattern, operands_.transposable, products_per_pack_};
  return planned_sparse(shape.spec() + " " + pattern.str(), request, product);
}

std::optional<LayerPlan> ConvProducts::plan_for(const Pattern& pattern, bool transposable,
                                                bool masked_gradient) {
  if (last_.images == 0) return std::nullopt;
  LayerPlan plan = planner().plan({last_, pattern, transposable, products_per_pack_});
  if (masked_gradient) {  // computed dense, and masked
    ProductPlan& gradient = plan.products[static_cast<size_t>(Product::kBackwardWeight)];
    gradient = ProductPlan();
    gradient.kind = ProductKind::kBackwardWeight;
    gradient.reason = "masked";
  }
  return plan;
}

void ConvProducts::forward(const ConvShape& shape, const float* x, const float* bias, float* y) {
  last_ = shape;
  const Operand& w = operands_.forward;
  const bool sparse = w.mask != nullptr && sparse_at(shape, Product::kForward, operands_.planned);
  note(Product::kForward, sparse);
  if (sparse && !packed_forward_) {
    const Stopwatch watch(times_.pack);
    forward_pack_ = pack_conv(w.values, *w.mask, shape, w.pack_options());
    packed_forward_ = true;
  }
  const float* dense = sparse ? nullptr : dense_copy(dense_forward_, w);
  const Stopwatch watch(time_of(times_, Product::kForward));
  if (sparse) {
    sparse_conv_forward(shape, x, forward_pack_, bias, 0.0f, y);
  } else {
    dense_conv_forward(shape, x, dense, bias, 0.0f, y);
  }
}

void ConvProducts::backward_data(const ConvShape& shape, const float* g, float* dx) {
  const Operand& w = operands_.backward;
  const bool sparse =
      w.mask != nullptr && sparse_at(shape, Product::kBackwardData, operands_.planned);
  note(Product::kBackwardData, sparse);
  if (sparse && !packed_backward_) {
    const Stopwatch watch(times_.pack);
    backward_pack_ = pack_conv_transposed(w.values, *w.mask, shape, w.pack_options());
    packed_backward_ = true;
  }
  const float* dense = sparse ? nullptr : dense_copy(dense_backward_, w);
  const Stopwatch watch(time_of(times_, Product::kBackwardData));
  if (sparse) {
    sparse_conv_backward_data(shape, g, backward_pack_, 0.0f, dx);
  } else {
    dense_conv_backward_data(shape, g, dense, 0.0f, dx);
  }
}

void ConvProducts::backward_weight(const ConvShape& shape, const float* g, const float* x,
                                   const std::optional<Sampling>& sampling, float* dw) {
  const bool sparse =
      sampling && sparse_at(shape, Product::kBackwardWeight, sampling->options.pattern);
  note(Product::kBackwardWeight, sparse);
  if (sparse) {
    {
      const Stopwatch watch(times_.pack);
      gradient_pack_ =
          pack_conv_sampled(g, shape, sampling->options, tile_for(sampling->options.pattern),
                            sampling->rounding, std::move(gradient_pack_));
    }
    const Stopwatch watch(time_of(times_, Product::kBackwardWeight));
    sparse_conv_backward_weight(shape, gradient_pack_, x, 0.0f, dw);
    return;
  }
  const Stopwatch watch(time_of(times_, Product::kBackwardWeight));
  if (!sampling) {
    dense_conv_backward_weight(shape, g, x, 0.0f, dw);
    if (operands_.masked_gradient) masked_copy(dw, *operands_.forward.mask, dw);
    return;
  }
  AlignedBuffer<float> scales(static_cast<size_t>(shape.y_size()));
  sample_conv_scales(g, shape, sampling->options, scales.data());
  const auto sample = sampled(g, scales.data(), shape.y_size(), sampling->rounding);
  dense_conv_backward_weight(shape, sample.data(), x, 0.0f, dw);
}

}  // namespace weft
