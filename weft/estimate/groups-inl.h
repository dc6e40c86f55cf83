// Groups of tokens, one per lane: entry i of all of them is a vector, row i of the magnitudes.
//
// Decisions are made in integers. Floats only propose the units of π, by the same operations in the
// same order on every instruction set and without fused multiply-add; integers then make them sum
// to keep · 2^24 whatever was proposed.
//
// Included by sources that Highway compiles, once for each instruction set.
#include <hwy/highway.h>

#include "weft/core/pattern.h"
#include "weft/estimate/mvue.h"

#if defined(WEFT_ESTIMATE_GROUPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_ESTIMATE_GROUPS_INL_H_
#undef WEFT_ESTIMATE_GROUPS_INL_H_
#else
#define WEFT_ESTIMATE_GROUPS_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;
using DI = hn::RebindToSigned<DF>;
using DU = hn::RebindToUnsigned<DF>;
using VF = hn::VFromD<DF>;
using VI = hn::VFromD<DI>;
using VU = hn::VFromD<DU>;

constexpr int kUnitBits = 24;
constexpr int32_t kUnit = 1 << kUnitBits;
static_assert(kUnit == kProbabilityUnit && (Pattern::kMaxGroup + 1) < (1 << (31 - kUnitBits)));

// ---- Philox 4x32-10, as core/rng.h, for the neighbours of one cell

struct Products {
  VU high, low;
};

HWY_INLINE Products MultiplyWide(VU a, uint32_t factor) {
  const DU d;
#if HWY_TARGET == HWY_SCALAR
  const uint64_t product = uint64_t{hn::GetLane(a)} * factor;
  return {hn::Set(d, static_cast<uint32_t>(product >> 32)),
          hn::Set(d, static_cast<uint32_t>(product))};
#else
  const hn::RepartitionToWide<DU> wide;
  const VU f = hn::Set(d, factor);
  const auto even = hn::MulEven(a, f);
  const auto odd = hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(wide, a))), f);
  return {hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<32>(even))),
          hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd)), hn::BitCast(d, even))};
#endif
}

struct Words {
  VU of[4];
};

// Lane l: Rng(key, stream).words(cell + l). Cells are below 2^32.
HWY_INLINE Words DrawWords(uint64_t key, uint64_t stream, uint32_t cell) {
  const DU d;
  Words c = {{hn::Add(hn::Iota(d, 0), hn::Set(d, cell)), hn::Zero(d),
              hn::Set(d, static_cast<uint32_t>(stream)),
              hn::Set(d, static_cast<uint32_t>(stream >> 32))}};
  auto key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const Products p = MultiplyWide(c.of[0], 0xD2511F53), q = MultiplyWide(c.of[2], 0xCD9E8D57);
    c = {{hn::Xor(hn::Xor(q.high, c.of[1]), hn::Set(d, key0)), q.low,
          hn::Xor(hn::Xor(p.high, c.of[3]), hn::Set(d, key1)), p.low}};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return c;
}

// ---- π

constexpr int32_t kExponents = 0x7f800000;  // the bits of infinity
constexpr int32_t kOne = 0x3f800000;        // the bits of 1.0

// kRows: how many entries a group has, if known when compiled, else 0.
template <int kRows>
class Groups {
 public:
  static constexpr int kCapacity = kRows > 0 ? kRows : Pattern::kMaxGroup;

  HWY_INLINE Groups(const float* from, int64_t stride, int count) : count_(count) {
    const DF df;
    const DI di;
    most_ = hn::Zero(di);
    for (int i = 0; i < rows(); ++i) {
      bits_[i] = hn::BitCast(di, hn::Abs(hn::LoadU(df, from + i * stride)));
      most_ = hn::Max(most_, bits_[i]);
    }
    if (HWY_UNLIKELY(!hn::AllFalse(di, NotFinite(most_)))) *this = KeepWhatIsNotFinite(*this);
    nonzero_ = hn::Zero(di);
    for (int i = 0; i < rows(); ++i) nonzero_ = hn::Sub(nonzero_, Ones(IsThere(i)));
  }

  HWY_INLINE int rows() const { return kRows > 0 ? kRows : count_; }
  HWY_INLINE VI nonzero() const { return nonzero_; }
  HWY_INLINE VI units(int i) const { return units_[i]; }
  HWY_INLINE auto IsThere(int i) const { return hn::Gt(bits_[i], hn::Zero(DI())); }

  // keep < rows()
  HWY_INLINE void FindUnits(int keep) {
    const DF df;
    for (int i = 0; i < rows(); ++i) {
      units_[i] = hn::Zero(DI());
      x_[i] = hn::Zero(df);
    }
    ScaleAndSum(hn::FirstN(DI(), hn::Lanes(df)));
    VF left = hn::Set(df, static_cast<float>(keep));  // of keep, for entries that are not certain
    // Of the last one of keep none can be certain, but one that is alone.
    for (int round = 1; round < keep; ++round) {
      if (!SetCertainApart(left)) break;
    }
    const VF per_magnitude =
        hn::IfThenElseZero(hn::Gt(sum_, hn::Zero(df)),
                           hn::Div(hn::Mul(left, hn::Set(df, static_cast<float>(kUnit))), sum_));
    MakeSumExact(keep, per_magnitude);
    FillUp(keep, [&](int i, auto lanes) {
      units_[i] = hn::IfThenElse(lanes, hn::Set(DI(), kUnit), units_[i]);
    });
  }

  // Calls take(i, lanes) for zeros, from the front, where there are fewer than keep others.
  template <typename Take>
  HWY_INLINE void FillUp(int keep, Take take) const {
    const DI di;
    VI missing = hn::Sub(hn::Set(di, keep), nonzero_);
    if (HWY_LIKELY(hn::AllFalse(di, hn::Gt(missing, hn::Zero(di))))) return;
    for (int i = 0; i < rows(); ++i) {
      const auto lanes = hn::And(hn::Gt(missing, hn::Zero(di)), hn::Not(IsThere(i)));
      missing = hn::Add(missing, Ones(lanes));
      take(i, lanes);
    }
  }

 private:
  using MI = decltype(hn::Gt(VI(), VI()));

  static HWY_INLINE VI Ones(MI lanes) { return hn::VecFromMask(DI(), lanes); }  // -1
  static HWY_INLINE MI NotFinite(VI bits) { return hn::Gt(bits, hn::Set(DI(), kExponents - 1)); }

  // As if there were nothing else in the group, and they were all 1. What is rare works on a copy:
  // called as a member, it would keep all others in memory, out of registers.
  static HWY_NOINLINE Groups KeepWhatIsNotFinite(Groups g) {
    const VI one = hn::Set(DI(), kOne);
    const MI lanes = NotFinite(g.most_);
    for (int i = 0; i < g.rows(); ++i) {
      const VI replaced = hn::IfThenElseZero(NotFinite(g.bits_[i]), one);
      g.bits_[i] = hn::IfThenElse(lanes, replaced, g.bits_[i]);
    }
    g.most_ = hn::IfThenElse(lanes, one, g.most_);
    return g;
  }

  // x = magnitudes times a power of two that brings the largest to 2^40, so that no sum overflows;
  // what then underflows is too small to be worth a unit. Subnormals come to 2^-22 at least.
  HWY_INLINE void ScaleAndSum(MI lanes) {
    const DF df;
    const DI di;
    const VI exponent = hn::Max(hn::And(most_, hn::Set(di, kExponents)), hn::Set(di, 40 << 23));
    const VI product = hn::Set(di, static_cast<int32_t>(uint32_t{127 + 40 + 127} << 23));
    const VF scale = hn::BitCast(df, hn::Sub(product, exponent));
    const auto certain = hn::Set(di, kUnit);
    VF sum = hn::Zero(df);
    for (int i = 0; i < rows(); ++i) {
      const VF scaled = hn::Mul(hn::BitCast(df, bits_[i]), scale);
      const MI open = hn::AndNot(hn::Eq(units_[i], certain), lanes);
      x_[i] = hn::IfThenElse(hn::RebindMask(df, open), scaled, x_[i]);
      sum = hn::Add(sum, x_[i]);
    }
    sum_ = hn::IfThenElse(hn::RebindMask(df, lanes), sum, sum_);
  }

  // Entries that c = left / sum would give π >= 1 get 1, and leave the sum. False if there are
  // none.
  HWY_INLINE bool SetCertainApart(VF& left) {
    const DF df;
    const DI di;
    const VF before = left, limit = sum_;
    sum_ = hn::Zero(df);
    for (int i = 0; i < rows(); ++i) {
      const auto certain =
          hn::And(hn::Ge(hn::Mul(before, x_[i]), limit), hn::Gt(x_[i], hn::Zero(df)));
      units_[i] = hn::IfThenElse(hn::RebindMask(di, certain), hn::Set(di, kUnit), units_[i]);
      x_[i] = hn::IfThenZeroElse(certain, x_[i]);
      left = hn::Sub(left, hn::IfThenElseZero(certain, hn::Set(df, 1.0f)));
      sum_ = hn::Add(sum_, x_[i]);
    }
    if (hn::AllTrue(df, hn::Eq(left, before))) return false;
    const MI tiny = hn::RebindMask(di, hn::Lt(sum_, hn::Set(df, 0x1p-40f)));
    if (HWY_UNLIKELY(!hn::AllFalse(di, tiny))) *this = RescaleWhatIsLeft(*this, tiny);
    return true;
  }

  // What is left may be so small beside what went that it underflowed, or nothing.
  static HWY_NOINLINE Groups RescaleWhatIsLeft(Groups g, MI lanes) {
    const DI di;
    g.most_ = hn::Zero(di);
    for (int i = 0; i < g.rows(); ++i) {
      const MI open = hn::Ne(g.units_[i], hn::Set(di, kUnit));
      g.most_ = hn::Max(g.most_, hn::IfThenElseZero(open, g.bits_[i]));
    }
    g.ScaleAndSum(lanes);
    return g;
  }

  // Units that sum to keep · kUnit, or 1 for every entry if there are no more than keep. Entry by
  // entry, what was proposed is moved to between 1 and kUnit, and to where the entries after it can
  // still have 1 to kUnit each: the last ones take up the rounding, a few units.
  HWY_INLINE void MakeSumExact(int keep, VF per_magnitude) {
    const DI di;
    VI budget = hn::ShiftLeft<kUnitBits>(hn::Min(nonzero_, hn::Set(di, keep)));
    VI after = nonzero_;
    for (int i = 0; i < rows(); ++i) {
      const MI there = IsThere(i);
      after = hn::Add(after, Ones(there));
      const VI least = hn::Sub(budget, hn::ShiftLeft<kUnitBits>(after));
      const VI most = hn::Sub(budget, after);
      VI units = hn::Max(units_[i], hn::NearestInt(hn::Mul(x_[i], per_magnitude)));
      units = hn::Max(units, hn::Max(least, hn::Set(di, 1)));
      units = hn::Min(units, hn::Min(most, hn::Set(di, kUnit)));
      units_[i] = hn::IfThenElseZero(there, units);
      budget = hn::Sub(budget, units_[i]);
    }
  }

  VI bits_[kCapacity];   // of the magnitudes
  VI units_[kCapacity];  // kUnit for those set apart
  VF x_[kCapacity];      // scaled; zero for those set apart
  VI most_;
  VI nonzero_;  // how many
  VF sum_ = hn::Zero(DF());
  int count_;
};

// ---- draws

HWY_INLINE VI Uniform(VU word) { return hn::BitCast(DI(), hn::ShiftRight<32 - kUnitBits>(word)); }

// Entry i is kept if one of u, u + kUnit, ... is on its part of the line. Calls emit(i, how
// many are kept before it, how many with it, its units) in order.
template <int kRows, typename Emit>
HWY_INLINE void DrawExact(const Groups<kRows>& groups, VU word, Emit emit) {
  const DI di;
  VI line = hn::Sub(hn::Set(di, kUnit - 1), Uniform(word));
  VI before = hn::Zero(di);
  for (int i = 0; i < groups.rows(); ++i) {
    const VI units = groups.units(i);
    line = hn::Add(line, units);
    const VI picked = hn::ShiftRight<kUnitBits>(line);
    emit(i, before, picked, units);
    before = picked;
  }
}

// The factor of a kept entry of `units` units.
HWY_INLINE VF ScaleOf(VI units) {
  const DF df;
  return hn::Div(hn::Set(df, static_cast<float>(kUnit)), hn::ConvertTo(df, units));
}

// The entry whose part of the line contains `point`, with its units; zero elsewhere.
HWY_INLINE void Pick(VI point, const VI* units, int rows, VI* picked) {
  const DI di;
  VI end = hn::Zero(di);
  for (int i = 0; i < rows; ++i) {
    const auto passed = hn::Lt(point, end);
    end = hn::Add(end, units[i]);
    picked[i] = hn::IfThenElseZero(hn::AndNot(passed, hn::Lt(point, end)), units[i]);
  }
}

// As mvue.h says; with one or two entries that are not zero, those are kept as they are.
HWY_INLINE void SampleTwoDraw(const float* from, int64_t from_stride, int rows, VU word0, VU word1,
                              float* to, int64_t to_stride) {
  const DF df;
  const DI di;
  const VI unit = hn::Set(di, kUnit);
  const VF one = hn::Set(df, 1.0f);
  Groups<0> groups(from, from_stride, rows);
  groups.FindUnits(1);
  VI t[4], first[4], rest[4], second[4];
  VF odds[4];
  for (int i = 0; i < rows; ++i) {
    t[i] = groups.units(i);
    odds[i] = hn::Div(hn::ConvertTo(df, t[i]), hn::ConvertTo(df, hn::Sub(unit, t[i])));
  }
  Pick(Uniform(word0), t, rows, first);
  VI length = unit;  // of the line without the first
  for (int i = 0; i < rows; ++i) {
    length = hn::Sub(length, first[i]);
    rest[i] = hn::Sub(t[i], first[i]);
  }
  const VF point = hn::Mul(hn::ConvertTo(df, Uniform(word1)),
                           hn::Mul(hn::ConvertTo(df, length), hn::Set(df, 0x1p-24f)));
  // Rounded up, it could be just past the end.
  Pick(hn::Min(hn::ConvertTo(di, point), hn::Sub(length, hn::Set(di, 1))), rest, rows, second);

  const auto few = hn::Lt(groups.nonzero(), hn::Set(di, 3));
  for (int i = 0; i < rows; ++i) {
    VF others = hn::Zero(df);
    for (int j = 0; j < rows; ++j) {
      if (j != i) others = hn::Add(others, odds[j]);
    }
    const VF share = hn::Mul(hn::ConvertTo(df, t[i]), hn::Set(df, 0x1p-24f));
    const VF inverse = hn::Div(one, hn::Mul(share, hn::Add(one, others)));
    const auto drawn = hn::Gt(hn::Add(first[i], second[i]), hn::Zero(di));
    const VF scale = hn::IfThenElseZero(hn::RebindMask(df, drawn), inverse);
    const VF as_it_is = hn::IfThenElseZero(hn::RebindMask(df, groups.IsThere(i)), one);
    hn::StoreU(hn::IfThenElse(hn::RebindMask(df, few), as_it_is, scale), df, to + i * to_stride);
  }
  groups.FillUp(2, [&](int i, auto lanes) {
    float* at = to + i * to_stride;
    hn::StoreU(hn::IfThenElse(hn::RebindMask(df, lanes), one, hn::LoadU(df, at)), df, at);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#endif  // per target
