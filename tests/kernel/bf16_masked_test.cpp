// The masked weight gradient of bf16 operands: that of floats.
#include <gtest/gtest.h>

#include "tests/kernel/bf16_matrix.h"
#include "tests/products.h"
#include "weft/kernel/masked/masked_weight.h"

namespace weft::test {
namespace {

TEST(Bf16Masked, IsThatOfFloats) {
  Dice dice(1);
  for (const int64_t tokens : {0, 1, 37}) {
    const Mask mask = draw_mask(12, 20, {2, 4}, Fill::kFull, dice);
    const KeptEntries kept(mask, {2, 4});
    TestMatrix g(tokens, 12, 1), x(tokens, 20, 2);
    for (TestMatrix* m : {&g, &x}) {
      m->fill(Data::kFloats, dice);
      round_values(*m);
    }
    for (const float beta : {0.0f, 1.0f}) {
      TestMatrix want(12, 20), got(12, 20);
      want.fill(2.0f), got.fill(2.0f);
      masked_backward_weight(g.view(), x.view(), kept, beta, want.view());
      masked_backward_weight(Bf16Matrix(g).view(), Bf16Matrix(x).view(), kept, beta, got.view());
      EXPECT_TRUE(same_bits(got, want)) << tokens;
    }
  }
}

}  // namespace
}  // namespace weft::test
