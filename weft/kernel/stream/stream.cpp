// Lanes are rows of A. A group of x is one vector; the indices of a slot pick from it the inputs
// that its values multiply:
//
//   x of a group     x0 x1 x2 x3 ..            one load per token
//   indices          1  0  3  1  2 ..          one per row
//   inputs           x1 x0 x3 x1 x2 ..         one permutation
//   sum[row]      += value[row] * input[row]   one multiply-add
//
// Of groups of two vectors both are permuted; larger ones gather instead. Sums run in order of depth in one accumulator per
// output, as in the panel loop, so both give the same bits.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "weft/kernel/stream/stream.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "weft/core/parallel.h"
#include "weft/kernel/bf16_rows.h"
#include "weft/kernel/operand_check.h"
#include "weft/kernel/stream/stream.h"

// Not in Highway's namespace: the same for every target.
#ifndef WEFT_KERNEL_STREAM
#define WEFT_KERNEL_STREAM
namespace weft {

// What HWY_INLINE is for functions; sanitized it would take minutes to compile.
#if defined(__SANITIZE_ADDRESS__)
#define WEFT_LAMBDA HWY_ATTR
#else
#define WEFT_LAMBDA HWY_ATTR __attribute__((always_inline))
#endif

constexpr int kTokensAtOnce = 4;
constexpr int kBlocksAtOnce = 2;  // of rows, for a token that is alone

// x as the loop wants it: groups `stride` apart, so that an index past the group finds a zero.
struct StreamInputs {
  const float* data = nullptr;  // [tokens, token_stride]
  int64_t token_stride = 0;
  int64_t group_stride = 0;
};

struct StreamOutputs {
  MatrixView<float> y;
  const float* bias;
  bool add;
};

}  // namespace weft
#endif

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// 256 bits are enough where memory is the bound, and keep a nibble per lane in one word.
using D = hn::CappedTag<float, 8>;
using DI = hn::RebindToSigned<D>;
using Vec = hn::VFromD<D>;
using Idx = hn::VFromD<DI>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));
constexpr int kParts = kStreamRows / kLanes;

HWY_INLINE Vec LoadValues(const float* from) { return hn::LoadU(D(), from); }
HWY_INLINE Vec LoadValues(const uint16_t* from) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::RebindToUnsigned<D> d32;
  return hn::BitCast(D(), hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, from))));
}

// How to read the indices of a slot, for the rows of each part: a word with theirs goes into every
// lane, and each lane shifts its own down. Bits are not a template argument: it would make four
// loops of one, and they take their time to compile.
class IndexReader {
 public:
  // largest: of an index. Rows past the last one may hold a larger one, which is never read.
  IndexReader(const StreamView& a, uint32_t largest) : slot_bytes(kStreamRows * a.index_bits / 8) {
    const DU du;
    const auto bits = static_cast<uint32_t>(a.index_bits);
    for (int p = 0; p < kParts; ++p) {
      const uint32_t first_bit = static_cast<uint32_t>(p * kLanes) * bits;
      word_[p] = first_bit / 32 * 4;
      shifts_[p] =
          hn::Add(hn::Mul(hn::Iota(du, 0), hn::Set(du, bits)), hn::Set(du, first_bit % 32));
    }
    ones_ = hn::Set(du, std::min((1u << bits) - 1, largest));
  }

  // One or two bits per index leave a word that reaches into the next slot, or into the values,
  // which follow in the same buffer.
  HWY_INLINE Idx Bits(const uint8_t* HWY_RESTRICT slot, int part) const {
    return hn::And(Shifted(slot, part), hn::BitCast(DI(), ones_));
  }
  // Likewise, with the bits of other rows above them.
  HWY_INLINE Idx Shifted(const uint8_t* HWY_RESTRICT slot, int part) const {
    uint32_t word = 0;
    std::memcpy(&word, slot + word_[part], sizeof(word));
    return hn::BitCast(DI(), hn::Shr(hn::Set(DU(), word), shifts_[part]));
  }
  HWY_INLINE static Idx Bytes(const uint8_t* HWY_RESTRICT slot, int part) {
    const hn::Rebind<uint8_t, DI> d8;
    return hn::PromoteTo(DI(), hn::LoadU(d8, slot + part * kLanes));
  }

  const int64_t slot_bytes;

 private:
  using DU = hn::RebindToUnsigned<D>;
  uint32_t word_[kParts];
  hn::VFromD<DU> shifts_[kParts];
  hn::VFromD<DU> ones_;
};

// The CPU's own prefetching ends with each page of 4 KB. May point past the end, which a prefetch
// does not mind.
template <typename T>
HWY_INLINE void PrefetchAhead(const T* from) {
  constexpr uintptr_t kAhead =
      4096;  // bytes: of 2048, 4096 and 8192 the second was best by a little
  hwy::Prefetch(reinterpret_cast<const T*>(reinterpret_cast<uintptr_t>(from) + kAhead));
}

// body(0), .. body(kCount - 1), inlined, so that each has its number as a constant: what g++
// unrolls by itself comes too late for it to keep an array of sums in registers from one group to
// the next.
template <int kCount, typename Body>
HWY_INLINE void Unrolled(Body body) {
#if defined(__SANITIZE_ADDRESS__)
  for (int i = 0; i < kCount; ++i) body(i);
#else
  const auto with = [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) WEFT_LAMBDA {
    (body(kIndex), ...);
  };
  with(std::make_integer_sequence<int, kCount>());
#endif
}

// Where the inputs of a slot come from.
enum class Pick {
  kPermuteFour,   // a group is four inputs: a copy of it is in each 128 bits
  kPermute,       // a group fits a vector
  kPermuteTwo,    // it fits two
  kGather,        // it does not
  kGatherByByte,  // nor do its indices fit a nibble
};

// Each lane one of the first four of `four`, which every 128 bits repeat. The instruction of x86
// for that looks at two bits of an index and takes one step where a permutation across takes two.
HWY_INLINE Vec PickOfFour(Vec four, Idx index) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  return Vec{_mm256_permutevar_ps(four.raw, index.raw)};
#elif HWY_TARGET == HWY_SCALAR
  return (void)index, four;  // never called
#else
  return hn::TableLookupLanes(four, hn::IndicesFromVec(D(), hn::And(index, hn::Set(DI(), 3))));
#endif
}

// Each lane one of those of `low`, then `high`.
HWY_INLINE Vec PickOfTwo(Vec low, Vec high, Idx index) {
#if HWY_TARGET == HWY_SCALAR
  return (void)high, (void)index, low;  // never called
#else
  const D d;
  const DI di;
  const auto lane = hn::IndicesFromVec(d, hn::And(index, hn::Set(di, kLanes - 1)));
  const auto is_high = hn::RebindMask(d, hn::Gt(index, hn::Set(di, kLanes - 1)));
  return hn::IfThenElse(is_high, hn::TableLookupLanes(high, lane), hn::TableLookupLanes(low, lane));
#endif
}

// sums: [kBlocks, kParts, kTokens, kLanes]
template <int kBlocks, int kTokens>
HWY_INLINE void StoreSums(const StreamView& a, int64_t first_block, const StreamOutputs& out,
                          int64_t first_token, const float* sums) {
  const int64_t first_row = first_block * kStreamRows;
  const int64_t rows = std::min<int64_t>(kBlocks * kStreamRows, a.rows - first_row);
  for (int t = 0; t < kTokens; ++t) {
    float* y = out.y.data + (first_token + t) * out.y.row_stride + first_row;
    for (int64_t r = 0; r < rows; ++r) {
      const float sum = sums[(r / kLanes * kTokens + t) * kLanes + r % kLanes];
      const float with_bias = out.bias ? sum + out.bias[first_row + r] : sum;
      y[r] = out.add ? with_bias + y[r] : with_bias;
    }
  }
}

// kBlocks blocks of rows times kTokens tokens.
template <typename T, int kBlocks, int kTokens, Pick kPick>
HWY_INLINE void MultiplyBlocks(const StreamView& a, int64_t first_block, const StreamInputs& x,
                               const StreamOutputs& out, int64_t first_token) {
  const D d;
  const IndexReader reader(a, kPick == Pick::kPermute      ? kLanes - 1
                              : kPick == Pick::kPermuteTwo ? 2 * kLanes - 1
                                                           : 255);
  const int64_t block_slots = a.groups * a.keep;
  const int64_t block_bytes = block_slots * reader.slot_bytes;
  const uint8_t* indices = a.indices + first_block * block_bytes;
  const T* values = static_cast<const T*>(a.values) + first_block * block_slots * kStreamRows;
  const float* group = x.data + first_token * x.token_stride;

  Vec sums[kBlocks * kParts * kTokens];
  Unrolled<kBlocks * kParts * kTokens>([&](int i) WEFT_LAMBDA { sums[i] = hn::Zero(d); });
  for (int64_t g = 0; g < a.groups; ++g, group += x.group_stride) {
    Vec inputs[kTokens], high[kTokens];
    Unrolled<kTokens>([&](int t) WEFT_LAMBDA {
      const float* of_token = group + t * x.token_stride;
      if constexpr (kPick == Pick::kPermuteFour) {
        inputs[t] = hn::LoadDup128(d, of_token);
      } else if constexpr (kPick == Pick::kPermute || kPick == Pick::kPermuteTwo) {
        inputs[t] = hn::LoadU(d, of_token);
      }
      if constexpr (kPick == Pick::kPermuteTwo) high[t] = hn::LoadU(d, of_token + kLanes);
    });
    for (int s = 0; s < a.keep; ++s, indices += reader.slot_bytes, values += kStreamRows) {
      Unrolled<kBlocks * kParts>([&](int i) WEFT_LAMBDA {
        const int block = i / kParts, part = i % kParts;
        const T* block_values = values + block * block_slots * kStreamRows;
        const uint8_t* block_indices = indices + block * block_bytes;
        if (part == 0) {
          PrefetchAhead(block_values);
          if (s == 0) PrefetchAhead(block_indices);
        }
        const Idx index = kPick == Pick::kGatherByByte  ? IndexReader::Bytes(block_indices, part)
                          : kPick == Pick::kPermuteFour ? reader.Shifted(block_indices, part)
                                                        : reader.Bits(block_indices, part);
        const Vec value = LoadValues(block_values + part * kLanes);
        Unrolled<kTokens>([&](int t) WEFT_LAMBDA {
          Vec input;
          if constexpr (kPick == Pick::kPermuteFour) {
            input = PickOfFour(inputs[t], index);
          } else if constexpr (kPick == Pick::kPermute) {
            input = hn::TableLookupLanes(inputs[t], hn::IndicesFromVec(d, index));
          } else if constexpr (kPick == Pick::kPermuteTwo) {
            input = PickOfTwo(inputs[t], high[t], index);
          } else {
            input = hn::GatherIndex(d, group + t * x.token_stride, index);
          }
          Vec& sum = sums[i * kTokens + t];
          sum = hn::MulAdd(value, input, sum);
        });
      });
    }
  }
  HWY_ALIGN float flat[kBlocks * kParts * kTokens * kLanes];  // [blocks, parts, tokens, lanes]
  Unrolled<kBlocks * kParts * kTokens>(
      [&](int i) WEFT_LAMBDA { hn::Store(sums[i], d, flat + i * kLanes); });
  StoreSums<kBlocks, kTokens>(a, first_block, out, first_token, flat);
}

// A token that is alone adds to too few sums to keep the multiply-adds busy: it takes two blocks.
template <typename T, Pick kPick>
HWY_NOINLINE void MultiplyRange(const StreamView& a, int64_t first_block, int64_t last_block,
                                const StreamInputs& x, const StreamOutputs& out) {
  const int64_t tokens = out.y.rows, whole = tokens / kTokensAtOnce * kTokensAtOnce;
  for (int64_t block = first_block; block < last_block; block += kBlocksAtOnce) {
    const bool two = block + kBlocksAtOnce <= last_block;
    for (int64_t one = block; one < block + (two ? 2 : 1); ++one) {
      for (int64_t token = 0; token < whole; token += kTokensAtOnce) {
        MultiplyBlocks<T, 1, kTokensAtOnce, kPick>(a, one, x, out, token);
      }
    }
    for (int64_t token = whole; token < tokens; ++token) {
      two ? MultiplyBlocks<T, kBlocksAtOnce, 1, kPick>(a, block, x, out, token)
          : MultiplyBlocks<T, 1, 1, kPick>(a, block, x, out, token);
    }
  }
}

template <typename T>
HWY_INLINE void WithPick(const StreamView& a, int64_t first_block, int64_t last_block,
                         const StreamInputs& x, const StreamOutputs& out) {
  if (a.index_bits == 8) {
    return MultiplyRange<T, Pick::kGatherByByte>(a, first_block, last_block, x, out);
  }
#if HWY_TARGET != HWY_SCALAR
  if (x.group_stride == 4 && a.index_bits == 2) {
    return MultiplyRange<T, Pick::kPermuteFour>(a, first_block, last_block, x, out);
  }
  if (x.group_stride <= kLanes) {
    return MultiplyRange<T, Pick::kPermute>(a, first_block, last_block, x, out);
  }
  if (x.group_stride <= 2 * kLanes) {
    return MultiplyRange<T, Pick::kPermuteTwo>(a, first_block, last_block, x, out);
  }
#endif
  MultiplyRange<T, Pick::kGather>(a, first_block, last_block, x, out);
}

void MultiplyStream(const StreamView& a, int64_t first_block, int64_t last_block,
                    const StreamInputs& x, const StreamOutputs& out) {
  if (a.value_type == Precision::kFp32) return WithPick<float>(a, first_block, last_block, x, out);
  return WithPick<uint16_t>(a, first_block, last_block, x, out);
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {
namespace {

constexpr int64_t kPadding = 64;  // the last group is read as a whole vector, or gathered from

// Copies x so that unused slots read a zero: after every group, unless all slots of whole groups
// are used. A short last group is followed by zeros in any case.
AlignedBuffer<float> spread(MatrixView<const float> x, const StreamView& a, StreamInputs& inputs) {
  inputs.group_stride = a.full ? a.group : a.group + 1;
  inputs.token_stride = a.groups * inputs.group_stride + kPadding;
  AlignedBuffer<float> buffer(static_cast<size_t>(x.rows * inputs.token_stride));
  for (int64_t t = 0; t < x.rows; ++t) {
    float* to = buffer.data() + t * inputs.token_stride;
    std::fill_n(to, inputs.token_stride, 0.0f);
    for (int64_t segment = 0; segment < a.depth; segment += a.segment) {
      for (int64_t c = 0; c < a.segment; c += a.group, to += inputs.group_stride) {
        const int64_t width = std::min<int64_t>(a.group, a.segment - c);
        std::copy_n(x.row(t) + segment + c, width, to);
      }
    }
  }
  inputs.data = buffer.data();
  return buffer;
}

template <typename T>
void check_stream(MatrixView<const T> x, const PackedMatrix& a, float beta, MatrixView<T> y) {
  check_beta(beta);
  check_operand("x", x, x.rows, a.depth());
  check_operand("y", y, x.rows, a.rows());
}

}  // namespace

HWY_EXPORT(MultiplyStream);

void stream_forward(MatrixView<const float> x, const PackedMatrix& packed, const float* bias,
                    float beta, MatrixView<float> y) {
  check_stream(x, packed, beta, y);
  const StreamView a = packed.stream();
  StreamInputs inputs;
  const AlignedBuffer<float> spread_x = spread(x, a, inputs);
  const StreamOutputs out = {y, bias, beta != 0.0f};
  // Waking the threads takes 2 us on a Zen 3 with 2 cores: 256 x 256 in 2:4 with one token took 7.2
  // us on one thread and 7.9 on two, 128 x 128 took 1.9 and 3.6, 768 x 256 took 18 and 12. So what
  // is not more than the first of these is one item, and stays on one thread.
  constexpr int64_t kBlocksPerItem = 4, kSmall = 1 << 15;
  const int64_t work = a.groups * a.keep * a.blocks * kStreamRows * x.rows;
  const int64_t blocks = work <= kSmall ? std::max<int64_t>(1, a.blocks) : kBlocksPerItem;
  parallel_for((a.blocks + blocks - 1) / blocks, [&](int64_t item) {
    const int64_t first = item * blocks;
    HWY_DYNAMIC_DISPATCH(MultiplyStream)
    (a, first, std::min(a.blocks, first + blocks), inputs, out);
  });
}

void stream_forward(MatrixView<const Bf16> x, const PackedMatrix& a, const float* bias, float beta,
                    MatrixView<Bf16> y) {
  check_stream(x, a, beta, y);
  const MatrixView<float> sums(fp32_copy(CopyOf::kResult, y.rows * y.cols), y.rows, y.cols);
  if (beta != 0.0f) expand(y, sums);
  stream_forward(expanded(CopyOf::kFirst, x), a, bias, beta, sums);
  round_to_bf16(sums, y);
}

}  // namespace weft
#endif
