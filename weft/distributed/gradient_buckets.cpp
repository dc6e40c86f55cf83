#include "weft/distributed/gradient_buckets.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <bit>
#include <map>
#include <utility>

namespace weft {

// A parameter, and where its gradient lies.
struct GradientBuckets::Slot {
  torch::Tensor parameter;
  LayerModule* masked = nullptr;  // whose mask says what travels; null: all of it
  size_t bucket = 0;
  int64_t offset = 0, count = 0;  // in the bucket, of this step
  bool arrived = false;
};

struct GradientBuckets::Bucket {
  torch::Tensor values;
  int64_t count = 0;  // of this step
  size_t first = 0, end = 0;
  size_t missing = 0;  // slots that have not arrived
  std::unique_ptr<Transfer> sum;
};

// A shared_ptr; in newer libtorch an intrusive_ptr.
using NodePointer =
    decltype(torch::autograd::impl::grad_accumulator(std::declval<const torch::Tensor&>()));

struct GradientBuckets::Parts {
  std::vector<Slot> slots;
  std::vector<Bucket> buckets;
  std::vector<std::shared_ptr<LayerModule>> layers;
  std::map<const void*, LayerModule*> scores;  // parameters that do not travel
  size_t begun = 0;                            // buckets whose sum has begun
  // A parameter holds its node weakly. It knows the hook by a number.
  std::vector<NodePointer> nodes;
  std::vector<uintptr_t> hooks;
};

namespace {

using torch::autograd::variable_list;

// Calls `then` when the gradient of a parameter is whole.
class Arrival : public torch::autograd::FunctionPostHook {
 public:
  explicit Arrival(std::function<void()> then) : then_(std::move(then)) {}
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    then_();
    return outputs;
  }

 private:
  std::function<void()> then_;
};

// Calls visit(begin, end) for the places that a mask keeps, run by run.
template <typename Visit>
void for_each_kept(const Mask& mask, Visit visit) {
  for (int64_t row = 0; row < mask.rows(); ++row) {
    const uint64_t* words = mask.row_words(row);
    const int64_t first = row * mask.cols();
    for (int64_t word = 0; word * 64 < mask.cols(); ++word) {
      for (uint64_t bits = words[word]; bits != 0; bits &= bits - 1) {
        visit(first + word * 64 + std::countr_zero(bits));
      }
    }
  }
}

}  // namespace

GradientBuckets::GradientBuckets(torch::nn::Module& model, std::shared_ptr<ProcessGroup> ranks,
                                 Options options)
    : model_(model),
      ranks_(std::move(ranks)),
      options_(options),
      parts_(std::make_unique<Parts>()) {
  std::map<const void*, LayerModule*> masked;
  for (const auto& [name, layer] : layers_of(model_)) {
    parts_->layers.push_back(layer);
    if (layer->scores.defined()) {
      parts_->scores[layer->scores.unsafeGetTensorImpl()] = layer.get();
    }
    const bool floats = layer->weight.scalar_type() == torch::kFloat;
    if (layer->settings().recipe.gradient->masked && floats) {
      masked[layer->weight.unsafeGetTensorImpl()] = layer.get();
    }
  }
  std::vector<torch::Tensor> parameters = model_.parameters();
  for (auto one = parameters.rbegin(); one != parameters.rend(); ++one) {
    const void* key = one->unsafeGetTensorImpl();
    if (!one->requires_grad() || parts_->scores.contains(key)) continue;
    Slot slot;
    slot.parameter = *one;
    if (options_.kept_only && masked.contains(key)) slot.masked = masked.at(key);
    Bucket* last = parts_->buckets.empty() ? nullptr : &parts_->buckets.back();
    const int64_t elements = options_.bucket_bytes / one->element_size();
    if (last == nullptr || last->values.scalar_type() != one->scalar_type() ||
        last->count + one->numel() > elements) {
      Bucket bucket;
      bucket.first = parts_->slots.size();
      bucket.values = torch::empty({0}, one->options().requires_grad(false));
      parts_->buckets.push_back(std::move(bucket));
      last = &parts_->buckets.back();
    }
    slot.bucket = parts_->buckets.size() - 1;
    last->count += one->numel();
    parts_->slots.push_back(std::move(slot));
    last->end = parts_->slots.size();
  }
  for (Bucket& bucket : parts_->buckets) {
    bucket.values = torch::empty({bucket.count}, bucket.values.options());
  }
  for (size_t i = 0; i < parts_->slots.size(); ++i) {
    auto node = torch::autograd::impl::grad_accumulator(parts_->slots[i].parameter);
    parts_->hooks.push_back(
        node->add_post_hook(std::make_unique<Arrival>([this, i] { arrived(i); })));
    parts_->nodes.push_back(std::move(node));
  }
}

GradientBuckets::~GradientBuckets() {
  for (size_t i = 0; i < parts_->nodes.size(); ++i) {
    parts_->nodes[i]->del_post_hook(parts_->hooks[i]);
  }
}

// Masks change between steps, and with them what travels.
void GradientBuckets::lay_out() {
  traffic_ = {};
  for (Bucket& bucket : parts_->buckets) {
    bucket.count = 0;
    bucket.missing = bucket.end - bucket.first;
    for (size_t i = bucket.first; i < bucket.end; ++i) {
      Slot& slot = parts_->slots[i];
      slot.arrived = false;
      slot.offset = bucket.count;
      const bool sparse = slot.masked != nullptr && slot.masked->state().sparse();
      slot.count = sparse ? slot.masked->state().forward.count() : slot.parameter.numel();
      bucket.count += slot.count;
      traffic_.whole_bytes += slot.parameter.numel() * slot.parameter.element_size();
    }
    traffic_.bytes += bucket.count * bucket.values.element_size();
  }
  for (const auto& [key, layer] : parts_->scores) {
    if (!layer->scores.requires_grad()) continue;
    traffic_.whole_bytes += layer->scores.numel() * layer->scores.element_size();
  }
}

void GradientBuckets::begin() {
  lay_out();
  parts_->begun = 0;
  active_ = true;
}

void GradientBuckets::arrived(size_t index) {
  if (!active_) return;
  Slot& slot = parts_->slots[index];
  if (slot.arrived) return;
  fill(slot);
  slot.arrived = true;
  --parts_->buckets[slot.bucket].missing;
  if (options_.overlap) begin_ready_sums(/*all=*/false);
}

void GradientBuckets::fill(Slot& slot) {
  const torch::NoGradGuard no_grad;
  torch::Tensor room = parts_->buckets[slot.bucket].values.narrow(0, slot.offset, slot.count);
  const torch::Tensor gradient = slot.parameter.grad();
  if (!gradient.defined()) {
    room.zero_();
  } else if (slot.count == slot.parameter.numel()) {
    room.copy_(gradient.reshape({-1}));
  } else {
    const torch::Tensor whole = gradient.contiguous();
    const float* from = whole.data_ptr<float>();
    float* to = room.data_ptr<float>();
    for_each_kept(slot.masked->state().forward, [&](int64_t place) { *to++ = from[place]; });
  }
}

void GradientBuckets::begin_ready_sums(bool all) {
  for (; parts_->begun < parts_->buckets.size(); ++parts_->begun) {
    Bucket& bucket = parts_->buckets[parts_->begun];
    if (bucket.missing > 0 && !all) return;
    // What the pass did not reach. A gradient that is not there is zero, on every rank.
    for (size_t i = bucket.first; i < bucket.end; ++i) {
      Slot& slot = parts_->slots[i];
      if (!slot.arrived) fill(slot);
    }
    if (bucket.count > 0) {
      bucket.sum = ranks_->begin_sum(bucket.values.narrow(0, 0, bucket.count));
    }
  }
}

void GradientBuckets::take_sum(Slot& slot) {
  const torch::NoGradGuard no_grad;
  torch::Tensor& gradient = slot.parameter.mutable_grad();
  if (!gradient.defined()) return;
  const torch::Tensor sum = parts_->buckets[slot.bucket].values.narrow(0, slot.offset, slot.count);
  if (slot.count == slot.parameter.numel()) {
    gradient = sum.view(slot.parameter.sizes());
    return;
  }
  // The rest is zero already: the gradient is masked.
  if (!gradient.is_contiguous()) gradient = gradient.contiguous();
  const float* from = sum.data_ptr<float>();
  float* to = gradient.data_ptr<float>();
  for_each_kept(slot.masked->state().forward, [&](int64_t place) { to[place] = *from++; });
}

void GradientBuckets::finish() {
  active_ = false;
  begin_ready_sums(/*all=*/true);
  for (Bucket& bucket : parts_->buckets) {
    const auto start = std::chrono::steady_clock::now();
    if (bucket.sum) ranks_->wait(*bucket.sum);
    bucket.sum.reset();
    traffic_.wait_seconds +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    for (size_t i = bucket.first; i < bucket.end; ++i) take_sum(parts_->slots[i]);
  }
  for (const auto& [key, layer] : parts_->scores) layer->follow_weight_gradient();
}

}  // namespace weft
