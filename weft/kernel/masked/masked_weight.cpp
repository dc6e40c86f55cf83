#include "weft/kernel/masked/masked_weight.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "weft/kernel/masked/masked_weight.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include <algorithm>

#include "weft/core/aligned_buffer.h"
#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/core/transpose.h"
#include "weft/kernel/bf16_rows.h"
#include "weft/kernel/operand_check.h"

#ifndef WEFT_KERNEL_MASKED_JOB_
#define WEFT_KERNEL_MASKED_JOB_
namespace weft {

// Some rows of one block, for the tokens of one panel.
struct MaskedJob {
  const float* g = nullptr;  // [rows, tokens], rows `stride` apart, like those of x
  const float* x = nullptr;  // [block, tokens]
  int64_t stride = 0;
  int64_t tokens = 0;  // a multiple of 8
  int64_t rows = 0;
  const uint32_t* starts = nullptr;  // of the first row
  const uint16_t* index = nullptr;
  float* values = nullptr;  // of all entries, like index
  bool first = true;        // values are not read
};

}  // namespace weft
#endif

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, 8>;
using Vec = hn::VFromD<D>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));
constexpr int kParts = 8 / kLanes;  // vectors that hold the eight partial sums of an entry

// As in panel_kernel.cpp: or g++ may load it again for each of the multiply-adds that use it.
HWY_INLINE void KeepInRegister(Vec& v) {
#if HWY_ARCH_X86 && HWY_COMPILER_GCC_ACTUAL  // clang 14 has no such operands
  asm("" : "+v"(v.raw));
#else
  (void)v;
#endif
}

// Four entries: of each the sum of its partial sums, ((0 + 2) + (1 + 3)) + ((4 + 6) + (5 + 7)),
// added to `values` unless it is the first.
HWY_INLINE void AddUp(const Vec (*sums)[kParts], bool first, float* HWY_RESTRICT values) {
#if HWY_TARGET == HWY_SCALAR
  for (int e = 0; e < 4; ++e) {
    const auto at = [&](int lane) { return hn::GetLane(sums[e][lane]); };
    const float sum = ((at(0) + at(2)) + (at(1) + at(3))) + ((at(4) + at(6)) + (at(5) + at(7)));
    values[e] = first ? sum : values[e] + sum;
  }
#else
  const D d;
  const hn::RepartitionToWide<D> d64;
  const hn::CappedTag<float, 4> d4;
  // In each block of four lanes, the sums of that block of four entries.
  const auto blocks = [&](Vec a, Vec b, Vec c, Vec e) HWY_ATTR {
    const Vec ab = hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
    const Vec ce = hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e));
    const auto wide_ab = hn::BitCast(d64, ab), wide_ce = hn::BitCast(d64, ce);
    return hn::Add(hn::BitCast(d, hn::InterleaveLower(d64, wide_ab, wide_ce)),
                   hn::BitCast(d, hn::InterleaveUpper(d64, wide_ab, wide_ce)));
  };
  const auto part = [&](int p)
                        HWY_ATTR { return blocks(sums[0][p], sums[1][p], sums[2][p], sums[3][p]); };
#if HWY_MAX_BYTES >= 32
  const Vec both = part(0);
  auto sum = hn::Add(hn::LowerHalf(d4, both), hn::UpperHalf(d4, both));
#else
  auto sum = hn::Add(part(0), part(1));
#endif
  if (!first) sum = hn::Add(hn::LoadU(d4, values), sum);
  hn::StoreU(sum, d4, values);
#endif
}

// kEntries entries of one row.
template <int kEntries>
HWY_INLINE void Dots(const MaskedJob& job, const float* HWY_RESTRICT g, const uint16_t* index,
                     float* HWY_RESTRICT values) {
  const D d;
  const float* x[kEntries];
  Vec sums[kEntries][kParts];
  HWY_UNROLL(8)
  for (int e = 0; e < kEntries; ++e) {
    x[e] = job.x + index[e] * job.stride;
    HWY_UNROLL(8)
    for (int p = 0; p < kParts; ++p) sums[e][p] = hn::Zero(d);
  }
  for (int64_t t = 0; t < job.tokens; t += 8) {
    HWY_UNROLL(8)
    for (int p = 0; p < kParts; ++p) {
      Vec shared = hn::Load(d, g + t + p * kLanes);
      KeepInRegister(shared);
      HWY_UNROLL(8)
      for (int e = 0; e < kEntries; ++e) {
        sums[e][p] = hn::MulAdd(shared, hn::Load(d, x[e] + t + p * kLanes), sums[e][p]);
      }
    }
  }
  HWY_UNROLL(8)
  for (int e = 0; e < kEntries; e += 4) AddUp(sums + e, job.first, values + e);
}

void MaskedRows(const MaskedJob& job) {
  constexpr int kAtOnce = kParts == 1 ? 8 : 4;  // shorter vectors need the registers
  for (int64_t r = 0; r < job.rows; ++r) {
    const float* g = job.g + r * job.stride;
    uint32_t at = job.starts[r];
    const uint32_t end = job.starts[r + 1];
    for (; at + kAtOnce <= end; at += kAtOnce) {
      Dots<kAtOnce>(job, g, job.index + at, job.values + at);
    }
    if (at < end) Dots<4>(job, g, job.index + at, job.values + at);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {
namespace {

HWY_EXPORT(MaskedRows);

// `from` [tokens, cols] transposed; tokens up to a multiple of 8 are zero.
void turn(MatrixView<const float> from, float* to, int64_t stride) {
  transpose({from.data, from.row_stride, from.rows, from.cols, to, stride});
  const int64_t padding = (8 - from.rows % 8) % 8;
  for (int64_t c = 0; c < from.cols; ++c) std::fill_n(to + c * stride + from.rows, padding, 0.0f);
}

// Some rows, for `tokens` tokens: g [tokens, rows], x transposed into panels of kept.tokens().
void masked_rows(const KeptEntries& kept, MatrixView<const float> g, const float* x_panels,
                 int64_t first_row, bool first, float* values) {
  thread_local AlignedBuffer<float> scratch;
  const int64_t stride = kept.tokens();
  scratch.reserve(static_cast<size_t>(g.cols * stride));
  MaskedJob job;
  job.g = scratch.data();
  job.stride = stride;
  job.rows = g.cols;
  job.index = kept.index();
  job.values = values;
  for (int64_t token = 0; token < g.rows; token += stride) {
    const int64_t tokens = std::min(stride, g.rows - token);
    turn(g.rows_from(token, tokens), scratch.data(), stride);
    job.tokens = (tokens + 7) / 8 * 8;
    job.first = first && token == 0;
    for (int64_t b = 0; b < kept.blocks(); ++b) {
      job.x = x_panels + token * kept.cols() + b * kept.block() * stride;
      job.starts = kept.starts(b) + first_row;
      HWY_DYNAMIC_DISPATCH(MaskedRows)(job);
    }
  }
}

// Rows [first, last) of the result.
void put_rows(const KeptEntries& kept, const float* values, int64_t first, int64_t last, float beta,
              MatrixView<float> dw) {
  const uint16_t* index = kept.index();
  for (int64_t r = first; r < last; ++r) {
    if (beta == 0.0f) std::fill_n(dw.row(r), dw.cols, 0.0f);
    for (int64_t b = 0; b < kept.blocks(); ++b) {
      float* to = dw.row(r) + b * kept.block();
      const uint32_t begin = kept.starts(b)[r], end = kept.starts(b)[r + 1];
      for (uint32_t e = begin; e < end; ++e) {
        if (e > begin && index[e] == index[e - 1]) break;  // the last one, repeated
        to[index[e]] += values[e];
      }
    }
  }
}

}  // namespace

void masked_backward_weight(MatrixView<const float> g, MatrixView<const float> x,
                            const KeptEntries& kept, float beta, MatrixView<float> dw) {
  WEFT_CHECK(beta == 0.0f || beta == 1.0f, "beta {}: accepted are 0 and 1", beta);
  WEFT_CHECK(g.rows == x.rows && g.cols == kept.rows() && x.cols == kept.cols() &&
                 dw.rows == kept.rows() && dw.cols == kept.cols(),
             "g [{}, {}], x [{}, {}], dw [{}, {}] and entries of a [{}, {}] matrix do not match",
             g.rows, g.cols, x.rows, x.cols, dw.rows, dw.cols, kept.rows(), kept.cols());
  const int64_t outs = dw.rows, ins = dw.cols, panel = kept.tokens();
  // Tokens whose xᵀ takes 4 MB: more would not stay in L3 beside what others have there, and fewer
  // would let threads wait for each other more often.
  const int64_t tokens_at_once =
      std::max<int64_t>(1, (int64_t{1} << 20) / (panel * std::max<int64_t>(ins, 1))) * panel;
  // Rows of gᵀ that stay in L2 while the blocks of xᵀ go by, and enough parts for the threads.
  const int64_t parts = threads() == 1 ? 1 : 4 * threads();
  const int64_t rows = std::clamp<int64_t>(std::min(51200 / panel, outs / parts), 16, 1024);
  constexpr int64_t kStrip = 64;  // columns of x transposed at once
  const int64_t strips = (ins + kStrip - 1) / kStrip;
  thread_local AlignedBuffer<float> x_transposed, results;
  x_transposed.reserve(
      static_cast<size_t>(ins * std::min(tokens_at_once, (x.rows + panel - 1) / panel * panel)));
  results.reserve(static_cast<size_t>(kept.size()));
  float* const x_panels = x_transposed.data();
  float* const values = results.data();
  if (x.rows == 0) std::fill_n(values, kept.size(), 0.0f);

  for (int64_t first = 0; first < x.rows; first += tokens_at_once) {
    const int64_t tokens = std::min(tokens_at_once, x.rows - first);
    const auto some_g = g.rows_from(first, tokens), some_x = x.rows_from(first, tokens);
    parallel_for((tokens + panel - 1) / panel * strips, [&](int64_t item) {
      const int64_t token = item / strips * panel, col = item % strips * kStrip;
      const auto part = some_x.rows_from(token, std::min(panel, tokens - token));
      turn(part.cols_from(col, std::min(kStrip, ins - col)), x_panels + token * ins + col * panel,
           panel);
    });
    parallel_for((outs + rows - 1) / rows, [&](int64_t item) {
      const int64_t row = item * rows;
      masked_rows(kept, some_g.cols_from(row, std::min(rows, outs - row)), x_panels, row,
                  first == 0, values);
    });
  }
  parallel_for((outs + rows - 1) / rows, [&](int64_t item) {
    put_rows(kept, values, item * rows, std::min(outs, (item + 1) * rows), beta, dw);
  });
}

void masked_backward_weight(MatrixView<const Bf16> g, MatrixView<const Bf16> x,
                            const KeptEntries& kept, float beta, MatrixView<float> dw) {
  check_operand("masked_backward_weight", "g", g, g.rows, g.cols);
  check_operand("masked_backward_weight", "x", x, g.rows, x.cols);
  masked_backward_weight(expanded(CopyOf::kFirst, g), expanded(CopyOf::kSecond, x), kept, beta, dw);
}

}  // namespace weft
#endif
