// Gram matrices against naive sums over samples.
#include "weft/prune/gram.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/prune/matrices.h"

namespace weft {
namespace {

using test::contains;
using test::message_of;

TEST(GramBuilder, IsTheNaiveSumAtEveryBorderOfAChunk) {
  for (const int64_t samples : {1, 2, 511, 512, 513, 1025}) {
    for (const int64_t cols : {1, 13, 97}) {
      SCOPED_TRACE(fmt::format("{} samples of {}, seed {}", samples, cols, test_seed()));
      const Matrix x = draw_matrix(Kind::kIntegers, samples, cols, 20);
      const std::vector<float> narrow(x.values.begin(), x.values.end());
      GramBuilder wide_builder(cols), narrow_builder(cols);
      wide_builder.add(x.view());
      for (int64_t s = 0; s < samples; s += 100) {  // pieces
        narrow_builder.add(MatrixView<const float>(narrow.data(), samples, cols)
                               .rows_from(s, std::min<int64_t>(100, samples - s)));
      }
      const Gram expected = naive_gram(x);
      for (GramBuilder* builder : {&wide_builder, &narrow_builder}) {
        const Gram gram = builder->finish();
        EXPECT_EQ(gram.samples, samples);
        EXPECT_LT(farthest({cols, cols, gram.second}, {cols, cols, expected.second}), 1e-14);
        EXPECT_LT(farthest({1, cols, gram.mean}, {1, cols, expected.mean}), 1e-14);
      }
    }
  }
}

TEST(GramBuilder, SumsWideMatricesAndStridedOnes) {
  const int64_t cols = 2 * 384 + 7, samples = 30;
  const Matrix x = draw_matrix(Kind::kIntegers, samples, cols + 2, 21);
  Matrix inner(samples, cols);
  for (int64_t s = 0; s < samples; ++s) {
    for (int64_t c = 0; c < cols; ++c) inner.at(s, c) = x.at(s, c + 1);
  }
  GramBuilder builder(cols);
  builder.add(x.view().cols_from(1, cols));
  EXPECT_LT(farthest({cols, cols, builder.finish().second}, {cols, cols, naive_gram(inner).second}),
            1e-14);
}

TEST(GramBuilder, RefusesWhatIsNotSamples) {
  GramBuilder builder(3);
  EXPECT_TRUE(contains(message_of([&] { builder.add(Matrix(1, 4).view()); }), "4 values"));
  EXPECT_TRUE(contains(message_of([&] { builder.finish(); }), "no samples"));
  EXPECT_TRUE(contains(message_of([] { GramBuilder(0); }), "0 columns"));
}

TEST(Gram, CenteredIsTheCovariance) {
  const Matrix x = draw_inputs(50, 9, 22);
  const Gram gram = naive_gram(x);
  Matrix moved = x;
  for (int64_t s = 0; s < x.rows; ++s) {
    for (int64_t c = 0; c < x.cols; ++c) moved.at(s, c) -= gram.mean[static_cast<size_t>(c)];
  }
  EXPECT_LT(farthest({9, 9, gram.centered().second}, {9, 9, naive_gram(moved).second}), 1e-14);
  Gram unknown = gram;
  unknown.mean.clear();
  EXPECT_TRUE(contains(message_of([&] { unknown.centered(); }), "not known"));
}

TEST(Gram, EnergiesOfRowsAreTheirOutputs) {
  const Matrix x = draw_inputs(40, 11, 23), d = draw_matrix(Kind::kGaussian, 400, 11, 24);
  const std::vector<double> energies = row_energies(d.view(), naive_gram(x).view());
  const Matrix outputs = naive_product(d, turned(x));
  for (int64_t r = 0; r < d.rows; ++r) {
    double expected = 0.0;
    for (int64_t s = 0; s < x.rows; ++s) expected += outputs.at(r, s) * outputs.at(r, s) / 40;
    ASSERT_NEAR(energies[static_cast<size_t>(r)], expected, 1e-12 * expected) << "row " << r;
  }
}

}  // namespace
}  // namespace weft
