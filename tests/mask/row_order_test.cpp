// Row orders: the search, masks and packs by them, and products that undo them.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "tests/linear_problem.h"
#include "tests/products.h"
#include "tests/support.h"
#include "weft/core/parallel.h"
#include "weft/core/rng.h"
#include "weft/kernel/conv/sparse_conv.h"
#include "weft/mask/retained.h"
#include "weft/mask/row_order.h"
#include "weft/mask/verify.h"
#include "weft/pack/group_check.h"

namespace weft::test {
namespace {

std::vector<float> gaussian(const WeightShape& shape, uint64_t stream) {
  const Rng rng(test_seed(), stream);
  std::vector<float> values(static_cast<size_t>(shape.outs * shape.cols()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(rng.normal(i));
  return values;
}

std::vector<int64_t> shuffled(int64_t rows, uint64_t stream) {
  std::vector<int64_t> order = identity_order(rows);
  Dice dice(stream);
  for (int64_t i = rows - 1; i > 0; --i) {
    std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(dice.below(i + 1))]);
  }
  return order;
}

double kept_by(const std::vector<float>& weights, const WeightShape& shape, const Pattern& pattern,
               bool transposable, std::span<const int64_t> order) {
  const Solver& solver = default_solver(transposable);
  return retained(weights.data(), shape, find_mask(solver, weights.data(), shape, pattern, order))
      .kept;
}

struct OrderCase {
  WeightShape shape;
  const char* pattern;
};
const std::vector<OrderCase> kCases = {
    {{64, 32, 1}, "2:4x2"},  {{67, 30, 1}, "2:4x4"},  {{150, 33, 1}, "2:4x16"},
    {{40, 16, 9}, "2:4x4"},  {{37, 10, 6}, "1:4x2"},  {{130, 24, 1}, "4:8x4"},
    {{90, 20, 1}, "3:5x16"}, {{3, 16, 1}, "2:4x2"},   {{9, 8, 1}, "1:4x32"},
    {{1, 8, 1}, "2:4x2"},    {{200, 64, 1}, "1:2x32"}};

// ---- the search

TEST(RowOrder, IsAnOrderThatRetainsMore) {
  uint64_t stream = 0;
  for (const auto& [shape, text] : kCases) {
    const Pattern pattern = Pattern::parse(text);
    const std::vector<float> weights = gaussian(shape, ++stream);
    for (const bool transposable : {false, true}) {
      const auto found = find_row_order(weights.data(), shape, pattern, transposable, {});
      ASSERT_TRUE(is_row_order(found, shape.outs)) << text;
      const double before = kept_by(weights, shape, pattern, transposable, {});
      const double after = kept_by(weights, shape, pattern, transposable, found);
      EXPECT_GE(after, before) << text << " of " << shape.outs << ", seed " << test_seed();
      // One or a few cells, or cells of the same rows: nothing to gain.
      if (shape.outs >= 64 && !transposable) {
        EXPECT_GT(after, 1.005 * before) << text;
      }
    }
  }
}

TEST(RowOrder, NeverLosesWhatItBeganWith) {
  const WeightShape shape{100, 24, 1};
  const std::vector<float> weights = gaussian(shape, 20);
  for (const char* text : {"2:4x2", "2:4x8", "4:8x4"}) {
    const Pattern pattern = Pattern::parse(text);
    for (const bool transposable : {false, true}) {
      std::vector<int64_t> order = shuffled(shape.outs, 3);
      double kept = kept_by(weights, shape, pattern, transposable, order);
      for (uint64_t again = 0; again < 6; ++again) {
        RowOrderOptions options{Rng(again), 3, order};
        order = find_row_order(weights.data(), shape, pattern, transposable, options);
        const double now = kept_by(weights, shape, pattern, transposable, order);
        ASSERT_GE(now, kept) << text << ", search " << again;
        kept = now;
      }
    }
  }
}

TEST(RowOrder, DependsOnTheSeedAndNotOnThreads) {
  const ThreadsGuard guard;
  const WeightShape shape{300, 40, 1};
  const Pattern pattern = Pattern::parse("2:4x8");
  const std::vector<float> weights = gaussian(shape, 21);
  const auto search = [&](uint64_t seed) {
    return find_row_order(weights.data(), shape, pattern, false, {Rng(seed), 8, {}});
  };
  set_threads(1);
  const auto want = search(1);
  for (const int count : {1, 2, 3, 7}) {
    set_threads(count);
    EXPECT_EQ(search(1), want) << count << " threads";
  }
  EXPECT_NE(search(2), want);
}

// Rows of few patterns, large where the pattern keeps, in any order: those of one pattern share.
TEST(RowOrder, FindsWhatWasPlanted) {
  const WeightShape shape{512, 128, 1};
  for (const char* text : {"2:4x4", "2:4x16", "2:4x32", "1:4x8"}) {
    const Pattern pattern = Pattern::parse(text);
    Dice dice(5);
    const int64_t kinds = shape.outs / pattern.share();
    const Mask kept =
        draw_mask(kinds, shape.ins, Pattern(pattern.keep(), pattern.group()), Fill::kFull, dice);
    std::vector<float> weights = gaussian(shape, 22);
    const std::vector<int64_t> places = shuffled(shape.outs, 23);
    for (int64_t r = 0; r < shape.outs; ++r) {
      const int64_t kind = places[static_cast<size_t>(r)] % kinds;
      for (int64_t c = 0; c < shape.ins; ++c) {
        float& weight = weights[static_cast<size_t>(r * shape.ins + c)];
        weight = std::copysign(kept.at(kind, c) ? 1.0f + std::abs(weight) : 0.01f, weight);
      }
    }
    const auto found = find_row_order(weights.data(), shape, pattern, false, {});
    const Pattern alone(pattern.keep(), pattern.group());
    const double best = kept_by(weights, shape, alone, false, {});
    EXPECT_LT(kept_by(weights, shape, pattern, false, {}), 0.9 * best) << text;
    EXPECT_GT(kept_by(weights, shape, pattern, false, found), 0.995 * best) << text;
  }
}

TEST(RowOrder, WithoutSharingOrRowsIsAsTheyLie) {
  const std::vector<float> weights = gaussian({8, 8, 1}, 24);
  EXPECT_EQ(find_row_order(weights.data(), {8, 8, 1}, Pattern(2, 4), false, {}), identity_order(8));
  EXPECT_TRUE(find_row_order(nullptr, {0, 8, 1}, Pattern(2, 4, 2), false, {}).empty());
  EXPECT_EQ(find_row_order(nullptr, {8, 0, 1}, Pattern(2, 4, 2), false, {}), identity_order(8));
}

TEST(RowOrder, RefusesWhatItCannotUse) {
  std::vector<float> weights = gaussian({16, 8, 1}, 25);
  const Pattern pattern(2, 4, 2);
  const std::vector<int64_t> twice = {0, 1, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  EXPECT_TRUE(
      contains(message_of([&] {
                 find_row_order(weights.data(), {16, 8, 1}, pattern, false, {Rng(0), 1, twice});
               }),
               "not a permutation of 0..15"));
  weights[5 * 8 + 3] = NAN;
  for (const bool search : {true, false}) {
    const std::string message = message_of([&] {
      if (search) find_row_order(weights.data(), {16, 8, 1}, pattern, false, {});
      find_mask(default_solver(false), weights.data(), {16, 8, 1}, pattern,
                std::span<const int64_t>(shuffled(16, 1)));
    });
    EXPECT_TRUE(contains(message, "weight [5, 3] is nan")) << message;
  }
}

// ---- masks

TEST(RowOrder, MasksAreSharedByPlacesAndLieAsRowsDo) {
  uint64_t stream = 100;
  for (const auto& [shape, text] : kCases) {
    const Pattern pattern = Pattern::parse(text);
    const std::vector<float> weights = gaussian(shape, ++stream);
    const auto order = shuffled(shape.outs, stream);
    const Mask mask = find_mask(default_solver(false), weights.data(), shape, pattern,
                                std::span<const int64_t>(order));
    EXPECT_EQ(undo_row_order(in_row_order(mask, order), order), mask);
    EXPECT_EQ(count_groups_in(mask, shape, pattern, order).violations, 0) << text;
    EXPECT_TRUE(rows_share(in_row_order(mask, order), pattern)) << text;
    if (shape.outs >= 64) {
      EXPECT_GT(count_groups_in(mask, shape, pattern).violations, 0) << text;
    }
    const Mask both = find_mask(default_solver(true), weights.data(), shape, pattern,
                                std::span<const int64_t>(order));
    EXPECT_EQ(count_groups_in(both, shape, pattern, order).violations, 0) << text;
    EXPECT_EQ(count_groups_out(both, shape, pattern, order).violations, 0) << text;
  }
}

TEST(RowOrder, AViolationIsNamedByItsOutput) {
  const std::vector<int64_t> order = {7, 6, 5, 4, 3, 2, 1, 0};
  Mask mask(8, 4);
  mask.set(6, 0, true);  // places 1 and 5 share: outputs 6 and 2
  mask.set(6, 1, true);
  mask.set(2, 3, true);
  const GroupCount count = count_groups_in(mask, {8, 4, 1}, Pattern(2, 4, 2), order);
  EXPECT_EQ(count.violations, 1);
  ASSERT_TRUE(count.first_violation);
  EXPECT_EQ(count.first_violation->out, 2);
  EXPECT_EQ(count.first_violation->in, 3);
}

// ---- packs

struct OrderedWeights {
  Sparse sparse;
  std::vector<int64_t> order;
};

OrderedWeights draw_ordered(int64_t rows, int64_t depth, const Pattern& pattern, Data data,
                            uint64_t stream, bool transposable = false) {
  Dice dice(stream);
  std::vector<int64_t> order = shuffled(rows, stream + 1);
  Mask in_places = transposable ? draw_transposable_mask(rows, depth, pattern, Fill::kFull, dice)
                                : draw_mask(rows, depth, pattern, Fill::kFull, dice);
  return {draw_sparse(undo_row_order(in_places, order), data, dice, 3), std::move(order)};
}

PanelOptions options_of(const Pattern& pattern, const PackTile& tile, const OrderedWeights& w) {
  PanelOptions options{pattern, tile};
  options.row_order = w.order;
  return options;
}

const std::vector<Pattern> kShared = {{2, 4, 2},  {1, 4, 4}, {2, 4, 16},
                                      {1, 2, 32}, {3, 5, 2}, {2, 4}};

TEST(OrderedPack, UnpacksToRowsAsTheyWere) {
  uint64_t stream = 200;
  for (const Pattern& pattern : kShared) {
    for (const int64_t rows : {1, 7, pattern.block(), pattern.block() + 3, 150}) {
      const OrderedWeights w = draw_ordered(rows, 37, pattern, Data::kIntegers, ++stream);
      const PackedMatrix packed =
          pack_panels(w.sparse.weights.view(), w.sparse.mask, options_of(pattern, {16, 32}, w));
      EXPECT_TRUE(packed.ordered());
      const PackedMatrix read = PackedMatrix::from_bytes(packed.bytes());
      for (const PackedMatrix* one : {&packed, &read}) {
        const Unpacked whole = unpack(*one);
        ASSERT_EQ(whole.mask, w.sparse.mask) << pattern.str() << ", " << rows << " rows";
        for (const auto& e : w.sparse.entries(Precision::kFp32)) {
          ASSERT_EQ(whole.values[static_cast<size_t>(e.row * 37 + e.col)], e.value);
        }
      }
    }
  }
}

TEST(OrderedPack, WhatIsNoOrderIsRefused) {
  const Pattern pattern(2, 4, 2);
  OrderedWeights w = draw_ordered(19, 20, pattern, Data::kIntegers, 300);
  const PackTile tile{16, 32};
  const PackedMatrix packed =
      pack_panels(w.sparse.weights.view(), w.sparse.mask, options_of(pattern, tile, w));
  const auto changed = [&](size_t from_end, uint8_t value) {
    std::vector<std::byte> bytes(packed.bytes().begin(), packed.bytes().end());
    bytes[bytes.size() - from_end] = std::byte{value};
    return message_of([&] { PackedMatrix::from_bytes(bytes); });
  };
  const auto first = static_cast<uint8_t>(w.order[0]);
  EXPECT_EQ(changed(19 * 4, first), "(no Error)");
  EXPECT_TRUE(contains(changed(19 * 4, static_cast<uint8_t>(w.order[1])), "not a permutation of"));
  EXPECT_TRUE(contains(changed(19 * 4, 19), "not a permutation of"));
  EXPECT_TRUE(contains(changed(1, 0xff), "not a permutation of"));  // negative
  EXPECT_TRUE(contains(changed(19 * 4 + 1, 1), "padding byte"));    // before the order
  std::vector<std::byte> bytes(packed.bytes().begin(), packed.bytes().end());
  bytes.pop_back();
  EXPECT_TRUE(contains(message_of([&] { PackedMatrix::from_bytes(bytes); }), "header asks for"));
  bytes.push_back(std::byte{0});
  bytes[28] = std::byte{2};
  EXPECT_TRUE(contains(message_of([&] { PackedMatrix::from_bytes(bytes); }), "ordered is 2"));

  const auto pack = [&] {
    pack_panels(w.sparse.weights.view(), w.sparse.mask, options_of(pattern, tile, w));
  };
  std::swap(w.order[0], w.order[1]);  // rows of two cells
  EXPECT_TRUE(contains(message_of(pack), "differ"));
  w.order[0] = w.order[1];
  EXPECT_TRUE(contains(message_of(pack), "not a permutation of 0..18"));
  w.order.pop_back();
  EXPECT_TRUE(contains(message_of(pack), "not a permutation of 0..18"));
  w.order = identity_order(20);
  EXPECT_TRUE(contains(message_of([&] {
                         pack_panels_transposed(w.sparse.weights.view(), w.sparse.mask,
                                                options_of(Pattern(2, 4), tile, w));
                       }),
                       "takes no row order"));
}

// ---- products

struct ProductCase {
  PackTile tile;
  int64_t rows, depth, cols;
};
// One stripe and many, remainders, more rows than a tile of C has, a depth that is copied in parts.
const std::vector<ProductCase> kProducts = {{{16, 32}, 1, 5, 1},      {{16, 64}, 90, 30, 20},
                                            {{8, 32}, 71, 50, 90},    {{24, 16}, 133, 40, 250},
                                            {{16, 192}, 300, 21, 19}, {{16, 64}, 300, 200, 40},
                                            {{16, 64}, 70, 4100, 3}};

TEST(OrderedProducts, ForwardIsExactForAnyThreads) {
  const ThreadsGuard guard;
  // A team of another size takes a sanitizer long to begin.
  const std::vector<int> counts = sanitized() ? std::vector{2} : std::vector{1, 2, 5};
  uint64_t stream = 400;
  for (const ProductCase& size : kProducts) {
    for (const Pattern& pattern : kShared) {
      const OrderedWeights w =
          draw_ordered(size.rows, size.depth, pattern, Data::kIntegers, ++stream);
      const PackedMatrix packed =
          pack_panels(w.sparse.weights.view(), w.sparse.mask, options_of(pattern, size.tile, w));
      Dice dice(stream);
      TestMatrix x(size.cols, size.depth, 2), bias(1, size.rows), before(size.cols, size.rows, 5);
      x.fill(Data::kIntegers, dice);
      bias.fill(Data::kIntegers, dice);
      before.fill(Data::kIntegers, dice);
      for (const bool with_bias : {false, true}) {
        for (const float beta : {0.0f, 1.0f}) {
          TestMatrix want(size.cols, size.rows, 5);
          for (int64_t t = 0; t < size.cols; ++t) {
            for (int64_t o = 0; o < size.rows; ++o) {
              want.at(t, o) = (with_bias ? bias.at(0, o) : 0) + beta * before.at(t, o);
            }
          }
          for (const auto& e : w.sparse.entries(Precision::kFp32)) {
            for (int64_t t = 0; t < size.cols; ++t) {
              want.at(t, e.row) += x.at(t, e.col) * static_cast<float>(e.value);
            }
          }
          for_each_isa([&](const std::string& isa) {
            for (const int count : counts) {
              set_threads(count);
              TestMatrix y(before);
              if (beta == 0) y.fill(NAN);
              sparse_forward(x.view(), packed, with_bias ? bias.data() : nullptr, beta, y.view());
              ASSERT_EQ(y.damage(), "");
              ASSERT_TRUE(same_bits(y, want))
                  << pattern.str() << ", " << size.rows << " x " << size.depth << ", " << size.cols
                  << " tokens, " << count << " threads, beta " << beta << ", " << isa;
            }
          });
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// Floats have the very bits of a pack as rows lie, unshared: the sums are the same.
TEST(OrderedProducts, HaveTheBitsOfAPlainPack) {
  const OrderedWeights w = draw_ordered(200, 300, Pattern(2, 4, 16), Data::kFloats, 500);
  const PackedMatrix ordered = pack_panels(w.sparse.weights.view(), w.sparse.mask,
                                           options_of(Pattern(2, 4, 16), {32, 64}, w));
  const PackedMatrix plain =
      pack_panels(w.sparse.weights.view(), w.sparse.mask, {Pattern(2, 4), {32, 64}});
  Dice dice(501);
  TestMatrix x(130, 300), y(130, 200), want(130, 200);
  x.fill(Data::kFloats, dice);
  sparse_forward(x.view(), ordered, nullptr, 0, y.view());
  sparse_forward(x.view(), plain, nullptr, 0, want.view());
  EXPECT_TRUE(same_bits(y, want));
}

// The transpose of a mask that is transposable in places: its depth as stored, ragged; its rows
// share.
TEST(OrderedProducts, BackwardDataSharesInputs) {
  uint64_t stream = 600;
  for (const Pattern& pattern : {Pattern(2, 4, 2), Pattern(2, 4, 8), Pattern(1, 4, 4)}) {
    for (const auto& [outs, ins] : {std::pair{64, 96}, {70, 37}, {33, 130}}) {
      const OrderedWeights w = draw_ordered(outs, ins, pattern, Data::kIntegers, ++stream, true);
      PanelOptions options{pattern, {16, 32}};
      options.ragged = true;
      const PackedMatrix packed =
          pack_panels_transposed(w.sparse.weights.view(), w.sparse.mask, options);
      Dice dice(stream);
      TestMatrix g(41, outs), dx(41, ins), want(41, ins);
      g.fill(Data::kIntegers, dice);
      want.fill(0.0f);
      for (const auto& e : w.sparse.entries(Precision::kFp32)) {
        for (int64_t t = 0; t < 41; ++t) {
          want.at(t, e.col) += g.at(t, e.row) * static_cast<float>(e.value);
        }
      }
      sparse_backward_data(g.view(), packed, 0, dx.view());
      EXPECT_TRUE(same_bits(dx, want)) << pattern.str() << ", " << outs << " x " << ins;
    }
  }
}

// A gradient whose rows share by an order: rows of dw go where they belong.
TEST(OrderedProducts, BackwardWeightPutsRowsBack) {
  uint64_t stream = 700;
  for (const ProductCase& size : kProducts) {
    const Pattern pattern(2, 4, 4);
    const OrderedWeights g =
        draw_ordered(size.rows, size.depth, pattern, Data::kIntegers, ++stream);
    const PackedMatrix packed =
        pack_panels(g.sparse.weights.view(), g.sparse.mask, options_of(pattern, size.tile, g));
    Dice dice(stream);
    TestMatrix x(size.depth, size.cols), dw(size.rows, size.cols), want(size.rows, size.cols);
    x.fill(Data::kIntegers, dice);
    dw.fill(1.0f);
    want.fill(1.0f);
    for (const auto& e : g.sparse.entries(Precision::kFp32)) {
      for (int64_t c = 0; c < size.cols; ++c) {
        want.at(e.row, c) += static_cast<float>(e.value) * x.at(e.col, c);
      }
    }
    sparse_backward_weight(packed, x.view(), 1, dw.view());
    EXPECT_TRUE(same_bits(dw, want)) << size.rows << " x " << size.depth;
  }
}

TEST(OrderedProducts, ForwardOfAConvolution) {
  const ThreadsGuard guard;
  uint64_t stream = 800;
  for (const Pattern& pattern : {Pattern(2, 4, 2), Pattern(2, 4, 16), Pattern(1, 4, 4)}) {
    ConvShape shape;
    shape.images = 3;
    shape.ins = 10;
    shape.outs = 75;
    shape.height = 6;
    shape.width = 5;
    shape.kernel_h = shape.kernel_w = 3;
    shape.pad_h = shape.pad_w = 1;
    const WeightShape weights = shape.weight_shape();
    Dice dice(++stream);
    std::vector<float> w(static_cast<size_t>(shape.w_size())), x(size_t(shape.x_size()));
    for (float& value : w) value = draw(Data::kIntegers, dice);
    for (float& value : x) value = draw(Data::kIntegers, dice);
    const std::vector<int64_t> order = shuffled(shape.outs, stream);
    const Mask mask = find_mask(default_solver(false), w.data(), weights, pattern,
                                std::span<const int64_t>(order));
    PanelOptions options{pattern, {16, 32}};
    std::vector<float> bias(size_t(shape.outs));
    for (float& value : bias) value = draw(Data::kIntegers, dice);
    const PackedConv plain =
        pack_conv(w.data(), mask, shape, {Pattern(pattern.keep(), pattern.group()), {16, 32}});
    options.row_order = order;
    const PackedConv ordered = pack_conv(w.data(), mask, shape, options);
    std::vector<float> want(static_cast<size_t>(shape.y_size()), 2.0f);
    sparse_conv_forward(shape, x.data(), plain, bias.data(), 1, want.data());
    for (const int count : {1, 3}) {
      set_threads(count);
      std::vector<float> y(want.size(), 2.0f);
      sparse_conv_forward(shape, x.data(), ordered, bias.data(), 1, y.data());
      EXPECT_EQ(y, want) << pattern.str();
    }
    shape.groups = 5;
    EXPECT_TRUE(contains(message_of([&] { pack_conv(w.data(), mask, shape, options); }),
                         "would mix the 5 groups"));
  }
}

}  // namespace
}  // namespace weft::test
