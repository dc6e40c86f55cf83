// Vectors of floats from and to bfloat16 in memory, with the rounding of core/bf16.h. For sources
// that Highway compiles for several instruction sets: included once for each of them.
#if defined(WEFT_CORE_BF16_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_CORE_BF16_INL
#undef WEFT_CORE_BF16_INL
#else
#define WEFT_CORE_BF16_INL
#endif

#include <hwy/highway.h>

#include "weft/core/bf16.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

template <class D>
HWY_INLINE hwy::HWY_NAMESPACE::VFromD<D> LoadBf16(D d, const Bf16* from) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::RebindToUnsigned<D> d32;
  const hn::Rebind<uint16_t, D> d16;
  const auto bits = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(from));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
}

template <class D, class V = hwy::HWY_NAMESPACE::VFromD<D>>
HWY_INLINE void StoreBf16(D d, V v, Bf16* to) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::RebindToUnsigned<D> d32;
  const hn::RebindToSigned<D> di32;
  const hn::Rebind<uint16_t, D> d16;
  const auto bits = hn::BitCast(d32, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7fff))));
  const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(d32, 0x0040));
  const auto nan = hn::RebindMask(d32, hn::IsNaN(v));
  const auto upper = hn::BitCast(di32, hn::IfThenElse(nan, quiet, rounded));
  hn::StoreU(hn::DemoteTo(d16, upper), d16, reinterpret_cast<uint16_t*>(to));
  (void)d;
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#endif  // per target
