#include "weft/kernel/conv/onednn_conv.h"

#include <cstddef>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <unordered_map>

#include "weft/core/error.h"
#include "weft/core/hold_signals.h"
#include "weft/core/parallel.h"
#include "weft/kernel/dense/onednn.h"
#include "weft/kernel/dense/onednn_describe.h"

namespace weft::onednn {
namespace {

using Desc = dnnl::memory::desc;
using Dims = dnnl::memory::dims;
constexpr auto kFloat = dnnl::memory::data_type::f32;

const dnnl::engine& cpu() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

// Else by output channels: the images are what dw sums over.
bool cut_by_images(Product product) { return product != Product::kBackwardWeight; }

dnnl::memory at(const Desc& desc, const float* data) {
  return {desc, cpu(), const_cast<float*>(data)};
}

// Memory that a thread keeps for the next piece: fresh pages for every piece took a quarter of the
// time of a 64 x 56 x 56 layer. More than 64 MB are not kept.
struct Kept {
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory;
  size_t size = 0;
};

// Hands out that memory, for as long as it lives.
class Arena {
 public:
  Arena(Kept& kept, size_t bytes) : kept_(kept) {
    if (kept.size >= bytes) return;
    kept = {};
    kept.memory.reset(static_cast<std::byte*>(std::aligned_alloc(kAlign, rounded(bytes))));
    if (!kept.memory) throw std::bad_alloc();
    kept.size = rounded(bytes);
  }
  ~Arena() {
    if (kept_.size > size_t{64} << 20) kept_ = {};
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  dnnl::memory take(const Desc& desc) {
    dnnl::memory memory(desc, cpu(), kept_.memory.get() + used_);
    used_ += rounded(desc.get_size());
    return memory;
  }
  static size_t rounded(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

 private:
  static constexpr size_t kAlign = 64;
  Kept& kept_;
  size_t used_ = 0;
};

dnnl::primitive_attr own_scratch() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

// A primitive and the scratch memory that it wants.
struct Step {
  dnnl::primitive primitive;
  Desc scratch;

  void run(Arena& arena, std::unordered_map<int, dnnl::memory> arguments) const {
    const HoldSignals hold;  // some convolutions are sgemm inside: see onednn::sgemm
    dnnl::stream stream(cpu());
    if (scratch.get_size() > 0) arguments[DNNL_ARG_SCRATCHPAD] = arena.take(scratch);
    primitive.execute(stream, arguments);
    stream.wait();
  }
  size_t bytes() const { return Arena::rounded(scratch.get_size()); }
};

// x, w or y of a piece: as the caller has it, as oneDNN wants it, and if that is not the same, the
// copy from the one to the other, or, for the result, back.
struct Tensor {
  Desc given, used;
  bool copied = false;
  Step copy = {};

  void copy_in() {
    if (given != used) make_copy(given, used, own_scratch());
  }
  // Backward primitives cannot add to what is there; the copy can.
  void copy_out(bool accumulate) {
    dnnl::primitive_attr attributes = own_scratch();
    if (accumulate) {
      dnnl::post_ops add;
      add.append_sum(1);
      attributes.set_post_ops(add);
    }
    if (accumulate || given != used) make_copy(used, given, attributes);
  }
  size_t bytes() const { return copied ? Arena::rounded(used.get_size()) + copy.bytes() : 0; }

 private:
  void make_copy(const Desc& from, const Desc& to, const dnnl::primitive_attr& attributes) {
    const dnnl::reorder::primitive_desc chosen(cpu(), from, cpu(), to, attributes);
    copy = {dnnl::reorder(chosen), chosen.scratchpad_desc()};
    copied = true;
  }
};

// Everything about a piece that costs time to make and does not depend on the data. Only read once
// it is made, and all memory is the running thread's, so threads may share it.
struct Plan {
  Step product;
  Tensor x, w, y;

  size_t bytes() const { return product.bytes() + x.bytes() + w.bytes() + y.bytes(); }
};

struct PlanKey {
  Product product;
  ConvShape shape;
  int64_t x_channels, y_channels;
  bool bias, accumulate;
  auto operator<=>(const PlanKey&) const = default;
};

Desc plain_images(int64_t images, int64_t channels, int64_t all_channels, int64_t height,
                  int64_t width) {
  return {Dims{images, channels, height, width}, kFloat,
          Dims{all_channels * height * width, height * width, width, 1}};
}

Desc plain_weights(const ConvShape& s) {
  using Tag = dnnl::memory::format_tag;
  if (s.groups == 1) {
    return {Dims{s.outs, s.ins, s.kernel_h, s.kernel_w}, kFloat, Tag::oihw};
  }
  return {Dims{s.groups, s.outs / s.groups, s.ins / s.groups, s.kernel_h, s.kernel_w}, kFloat,
          Tag::goihw};
}

Desc plain_bias(int64_t outs) { return {Dims{outs}, kFloat, dnnl::memory::format_tag::a}; }

// Layouts are left to oneDNN. Held to NCHW it falls back to im2col and sgemm, or for some weight
// gradients to a reference loop. On a Zen 3, one thread, forward, backward data and backward weight
// in GFLOP/s, copies included, against NCHW: 16x128x28x28 -> 128 with 3x3 89, 93, 69 against 47,
// 59, 0.3; 16x512x7x7 -> 512 with 3x3 72, 80, 64 against 55, 43, 0.3.
Desc any_layout(const Desc& desc) { return {dims_of(desc), kFloat, dnnl::memory::format_tag::any}; }

Plan choose(const PlanKey& key, const Desc& x, const Desc& w, const Desc& y) {
  const ConvShape& s = key.shape;
  const Desc any_x = any_layout(x), any_w = any_layout(w), any_y = any_layout(y);
  const Dims strides{s.stride_h, s.stride_w}, pads{s.pad_h, s.pad_w};
  const Dims gaps{s.dilation_h - 1, s.dilation_w - 1};  // oneDNN counts the pixels between taps
  constexpr auto kTraining = dnnl::prop_kind::forward_training;
  constexpr auto kDirect = dnnl::algorithm::convolution_direct;
  using Forward = dnnl::convolution_forward;
  const Forward::primitive_desc forward =
      key.bias ? describe<Forward>(cpu(), own_scratch(), kTraining, kDirect, any_x, any_w,
                                   plain_bias(s.outs), any_y, strides, gaps, pads, pads)
               : describe<Forward>(cpu(), own_scratch(), kTraining, kDirect, any_x, any_w, any_y,
                                   strides, gaps, pads, pads);
  if (key.product == Product::kForward) {
    return {{Forward(forward), forward.scratchpad_desc()},
            {x, forward.src_desc()},
            {w, forward.weights_desc()},
            {y, forward.dst_desc()}};
  }
  if (key.product == Product::kBackwardData) {
    using Backward = dnnl::convolution_backward_data;
    const auto backward = describe_backward<Backward>(cpu(), own_scratch(), forward, kDirect, any_x,
                                                      any_w, any_y, strides, gaps, pads, pads);
    return {{Backward(backward), backward.scratchpad_desc()},
            {x, backward.diff_src_desc()},
            {w, backward.weights_desc()},
            {y, backward.diff_dst_desc()}};
  }
  using Backward = dnnl::convolution_backward_weights;
  const auto backward = describe_backward<Backward>(cpu(), own_scratch(), forward, kDirect, any_x,
                                                    any_w, any_y, strides, gaps, pads, pads);
  return {{Backward(backward), backward.scratchpad_desc()},
          {x, backward.src_desc()},
          {w, backward.diff_weights_desc()},
          {y, backward.diff_dst_desc()}};
}

Tensor& result_of(Plan& plan, Product product) {
  return product == Product::kForward        ? plan.y
         : product == Product::kBackwardData ? plan.x
                                             : plan.w;
}

std::shared_ptr<const Plan> make_plan(const PlanKey& key) {
  const OneThread one_thread;  // a primitive divides its work when it is made
  const ConvShape& s = key.shape;
  Plan plan = choose(key, plain_images(s.images, s.ins, key.x_channels, s.height, s.width),
                     plain_weights(s),
                     plain_images(s.images, s.outs, key.y_channels, s.out_height(), s.out_width()));
  Tensor& result = result_of(plan, key.product);
  for (Tensor* tensor : {&plan.x, &plan.w, &plan.y}) {
    tensor == &result ? tensor->copy_out(key.accumulate) : tensor->copy_in();
  }
  return std::make_shared<const Plan>(std::move(plan));
}

// Plans by shape; the oldest makes room for a new one.
std::shared_ptr<const Plan> find_plan(const PlanKey& key) {
  constexpr size_t kMost = 256;
  static std::mutex mutex;
  static std::map<PlanKey, std::shared_ptr<const Plan>> plans;
  static std::deque<PlanKey> ages;
  {
    const std::lock_guard lock(mutex);
    const auto found = plans.find(key);
    if (found != plans.end()) return found->second;
  }
  const auto plan = make_plan(key);  // takes milliseconds: others need not wait
  const std::lock_guard lock(mutex);
  if (plans.emplace(key, plan).second) ages.push_back(key);
  if (ages.size() > kMost) {
    plans.erase(ages.front());
    ages.pop_front();
  }
  return plan;
}

// The operand that all pieces have, as the first of them wants it.
struct Alike {
  Desc used;
  dnnl::memory memory;
};

// Not by the plan's copy, which is for one thread: this only moves numbers, and all may help.
Alike copy_alike(Arena& arena, const Tensor& tensor, const float* data) {
  dnnl::memory given = at(tensor.given, data), used = arena.take(tensor.used);
  dnnl::stream stream(cpu());
  dnnl::reorder(given, used).execute(stream, given, used);
  stream.wait();
  return {tensor.used, used};
}

void run_piece(const ConvTensors& call, const ConvPiece& piece, const Plan& plan,
               const std::optional<Alike>& alike) {
  static thread_local Kept kept;
  Arena arena(kept, plan.bytes());
  const OneThread one_thread;
  const auto operand = [&](const Tensor& tensor, const float* data, bool may_be_alike) {
    if (!tensor.copied) return at(tensor.given, data);
    if (may_be_alike && alike && alike->used == tensor.used) return alike->memory;
    const dnnl::memory used = arena.take(tensor.used);
    tensor.copy.run(arena, {{DNNL_ARG_FROM, at(tensor.given, data)}, {DNNL_ARG_TO, used}});
    return used;
  };
  const auto x = [&] { return operand(plan.x, call.x + piece.x, !cut_by_images(call.product)); };
  const auto w = [&] { return operand(plan.w, call.w + piece.w, cut_by_images(call.product)); };
  const auto y = [&] { return operand(plan.y, call.y + piece.y, false); };
  const auto run = [&](const Tensor& tensor, int64_t offset, int argument,
                       std::unordered_map<int, dnnl::memory> arguments) {
    const dnnl::memory given = at(tensor.given, call.result + offset);
    const dnnl::memory used = tensor.copied ? arena.take(tensor.used) : given;
    arguments[argument] = used;
    plan.product.run(arena, std::move(arguments));
    if (tensor.copied) tensor.copy.run(arena, {{DNNL_ARG_FROM, used}, {DNNL_ARG_TO, given}});
  };
  switch (call.product) {
    case Product::kForward: {
      std::unordered_map<int, dnnl::memory> operands = {{DNNL_ARG_SRC, x()},
                                                        {DNNL_ARG_WEIGHTS, w()}};
      if (call.bias != nullptr)
        operands[DNNL_ARG_BIAS] = at(plain_bias(piece.shape.outs), call.bias);
      return run(plan.y, piece.y, DNNL_ARG_DST, std::move(operands));
    }
    case Product::kBackwardData:
      return run(plan.x, piece.x, DNNL_ARG_DIFF_SRC,
                 {{DNNL_ARG_DIFF_DST, y()}, {DNNL_ARG_WEIGHTS, w()}});
    case Product::kBackwardWeight:
      return run(plan.w, piece.w, DNNL_ARG_DIFF_WEIGHTS,
                 {{DNNL_ARG_DIFF_DST, y()}, {DNNL_ARG_SRC, x()}});
  }
}

}  // namespace

void run_conv(const ConvTensors& call, const std::vector<ConvPiece>& pieces, bool same_operand) {
  prepare();
  try {
    const auto plan_of = [&](const ConvPiece& piece) {
      return find_plan({call.product, piece.shape, piece.x_channels, piece.y_channels,
                        call.bias != nullptr, call.accumulate});
    };
    static thread_local Kept kept;
    std::optional<Arena> arena;
    std::optional<Alike> alike;
    if (same_operand && pieces.size() > 1) {
      const auto plan = plan_of(pieces.front());
      const Tensor& tensor = cut_by_images(call.product) ? plan->w : plan->x;
      if (tensor.copied) {
        arena.emplace(kept, tensor.used.get_size());
        alike = copy_alike(*arena, tensor, cut_by_images(call.product) ? call.w : call.x);
      }
    }
    const auto item = [&](int64_t i) {
      const ConvPiece& piece = pieces[static_cast<size_t>(i)];
      run_piece(call, piece, *plan_of(piece), alike);
    };
    pieces.size() == 1 ? item(0) : parallel_for(std::ssize(pieces), item);
  } catch (const dnnl::error& error) {
    throw Error(
        fmt::format("oneDNN: convolution {}: {}", pieces.front().shape.str(), error.what()));
  }
}

}  // namespace weft::onednn
