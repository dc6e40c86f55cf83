// Products in bf16 on tile units, against naive ones in double: every unit that runs here (the
// emulated one always does), patterns shared by 16 and 32 rows, shapes from the tile, any number of
// threads; the tile layout, its bytes and what is wrong with them; which unit is taken, and why.
#include <gtest/gtest.h>

#include <numeric>
#include <optional>

#include "tests/emulator/emulator.h"
#include "tests/products.h"
#include "tests/support.h"
#include "weft/core/parallel.h"
#include "weft/kernel/tile/tile.h"
#include "weft/kernel/tile/tile_ops.h"
#include "weft/kernel/tile/tile_product.h"
#include "weft/mask/row_order.h"
#include "weft/pack/tiles.h"
#include "weft/pack/transpose_bf16.h"

namespace weft::test {
namespace {

const std::vector<Pattern> kTilePatterns = {{2, 4, 16}, {2, 4, 32}, {1, 4, 16}, {1, 8, 16},
                                            {1, 2, 32}, {3, 8, 32}, {5, 7, 16}, {1, 1, 16}};

// All of them: what the CPU lacks is executed instruction by instruction, so that the code of every
// unit runs wherever tests do. Not under sanitizers, whose code is made of more instructions than
// are known here: they watch the emulated unit, and what the CPU has.
std::vector<TileUnit> units() {
#if defined(__x86_64__)
  // With half of what a unit needs the CPU would keep vectors that the handler does not see.
  const std::vector<std::string> isas = available_isas();
  const bool half = std::ranges::find(isas, "avx3") != isas.end();
  if (!sanitized() && !half) {
    return {TileUnit::kEmulated, TileUnit::kAvx512Bf16, TileUnit::kAmx};
  }
#endif
  std::vector<TileUnit> here = available_tile_units();
  std::erase(here, TileUnit::kNone);
  return here;
}

std::optional<MissingInstructions> stand_in(TileUnit unit) {
  const std::vector<TileUnit> here = available_tile_units();
  if (std::ranges::find(here, unit) != here.end()) return std::nullopt;
  return std::optional<MissingInstructions>(std::in_place);
}

// Of exactly as many elements as there are, so that a sanitizer sees whoever reads further.
struct Bf16Matrix {
  int64_t rows, cols, stride;
  std::unique_ptr<Bf16[]> values;

  Bf16Matrix(int64_t rows, int64_t cols, int64_t gap = 0)
      : rows(rows),
        cols(cols),
        stride(cols + gap),
        values(new Bf16[static_cast<size_t>(std::max<int64_t>(0, (rows - 1) * stride + cols))]) {}
  Bf16Matrix(const TestMatrix& from, int64_t gap) : Bf16Matrix(from.rows, from.cols, gap) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c)
        values[static_cast<size_t>(r * stride + c)] = to_bf16(from.at(r, c));
    }
  }
  double at(int64_t r, int64_t c) const {
    return to_float(values[static_cast<size_t>(r * stride + c)]);
  }
  MatrixView<const Bf16> view() const { return {values.get(), rows, cols, stride}; }
  MatrixView<Bf16> view() { return {values.get(), rows, cols, stride}; }
};

Bf16Matrix draw_bf16(int64_t rows, int64_t cols, Data data, Dice& dice, int64_t gap = 0) {
  TestMatrix values(rows, cols);
  values.fill(data, dice);
  return Bf16Matrix(values, gap);
}

// C as it is, each element once.
class Collect : public TileSink {
 public:
  Collect(int64_t rows, int64_t cols) : c(rows, cols, 3), seen_(rows, cols) { c.fill(NAN); }
  void take(const Range& range, const float* tile, int64_t stride) const override {
    for (int64_t r = 0; r < range.rows; ++r) {
      for (int64_t col = 0; col < range.cols; ++col) {
        c.at(range.first_row + r, range.first_col + col) = tile[r * stride + col];
        ++seen_.at(range.first_row + r, range.first_col + col).terms;
      }
    }
  }
  bool once() const {
    return std::ranges::all_of(seen_.elements, [](const Expected& e) { return e.terms == 1; });
  }
  mutable TestMatrix c;

 private:
  mutable ExpectedMatrix seen_;
};

struct TileShape {
  int64_t rows, depth, cols;
};

// One and two blocks of rows, panels and stripes, and one more or less of each.
std::vector<TileShape> shapes_around(const Pattern& pattern) {
  const int64_t block = pattern.block(), panel = tile_panel(pattern).depth;
  return {{1, 1, 1},
          {block, 64, 64},
          {block - 1, panel - 1, 63},
          {block + 1, panel + 1, 65},
          {2 * block + 1, 2 * panel + 1, 17},
          {block, pattern.group() + 1, 129},
          {0, 8, 8},
          {block, 0, 5},
          {8, 8, 0}};
}

class TileProblem {
 public:
  TileProblem(const Pattern& pattern, const TileShape& shape, Data data, Fill fill, bool transposed,
              bool ragged, uint64_t stream)
      : shape_(shape),
        dice_(stream),
        sparse_(draw_sparse(draw_mask(shape.rows, shape.depth, pattern, fill, dice_), data, dice_)),
        dense_(transposed ? draw_bf16(shape.cols, shape.depth, data, dice_, 3)
                          : draw_bf16(shape.depth, shape.cols, data, dice_, 5)),
        transposed_(transposed) {
    PanelOptions options{pattern, tile_panel(pattern), Precision::kBf16};
    options.ragged = ragged;
    packed = tiles_of(pack_panels(sparse_.weights.view(), sparse_.mask, options));
  }

  const Sparse& sparse() const { return sparse_; }
  Bf16Matrix& dense() { return dense_; }

  ExpectedMatrix expected() const {
    ExpectedMatrix want(shape_.rows, shape_.cols);
    for (const Sparse::Entry& e : sparse_.entries(Precision::kBf16)) {
      for (int64_t c = 0; c < shape_.cols; ++c) {
        want.add(e.row, c, e.value, transposed_ ? dense_.at(c, e.col) : dense_.at(e.col, c));
      }
    }
    return want;
  }

  TestMatrix result(TileUnit unit) const {
    Collect sink(shape_.rows, shape_.cols);
    multiply_tiles(packed, shape_.cols, {dense_.view(), transposed_}, sink, unit);
    EXPECT_TRUE(sink.once());
    EXPECT_EQ(sink.c.damage(), "");
    return std::move(sink.c);
  }

  PackedMatrix packed;

 private:
  TileShape shape_;
  Dice dice_;
  Sparse sparse_;
  Bf16Matrix dense_;
  bool transposed_;
};

class TileUnits : public ::testing::TestWithParam<TileUnit> {
 protected:
  // Every trap takes 10 us, and AVX512-BF16 needs thousands for a tile: then less is tried.
  bool slow() const { return missing_.has_value(); }

  std::vector<Pattern> patterns() const {
    return slow() ? std::vector<Pattern>{{2, 4, 16}, {1, 2, 32}} : kTilePatterns;
  }
  std::vector<TileShape> shapes(const Pattern& pattern) const {
    if (!slow()) return shapes_around(pattern);
    return {{pattern.block() + 1, 70, 17}, {17, 8, 65}, {3, 0, 5}};
  }

 private:
  std::optional<MissingInstructions> missing_ = stand_in(GetParam());
};
INSTANTIATE_TEST_SUITE_P(All, TileUnits, ::testing::ValuesIn(units()),
                         [](const auto& info) { return std::string(tile_unit_name(info.param)); });

TEST_P(TileUnits, SparseProductsAreRight) {
  uint64_t stream = 0;
  for (const Pattern& pattern : patterns()) {
    for (const TileShape& shape : shapes(pattern)) {
      for (const Data data : {Data::kIntegers, Data::kFloats}) {
        const bool transposed = ++stream % 2 == 0;
        const Fill fill = stream % 3 == 0 ? Fill::kPartly : Fill::kFull;
        const TileProblem problem(pattern, shape, data, fill, transposed, stream % 5 == 0, stream);
        SCOPED_TRACE(fmt::format("{} {}x{}x{} stream {}", pattern.str(), shape.rows, shape.depth,
                                 shape.cols, stream));
        EXPECT_EQ(mismatch(problem.result(GetParam()).view(), problem.expected(), data), "");
      }
    }
  }
}

TEST_P(TileUnits, ResultsDoNotDependOnThreads) {
  const int before = threads();
  const TileShape shape = slow() ? TileShape{65, 40, 130} : TileShape{129, 600, 300};
  const TileProblem problem({2, 4, 16}, shape, Data::kFloats, Fill::kFull, true, false, 7);
  set_threads(1);
  const TestMatrix one = problem.result(GetParam());
  for (const int count : {2, 7}) {
    set_threads(count);
    EXPECT_TRUE(same_bits(problem.result(GetParam()), one)) << count << " threads";
  }
  set_threads(before);
}

TEST_P(TileUnits, DenseResultsDoNotDependOnThreads) {
  const int before = threads();
  Dice dice(8);
  const TileShape s = slow() ? TileShape{70, 40, 40} : TileShape{333, 100, 200};
  const Bf16Matrix a = draw_bf16(s.rows, s.depth, Data::kFloats, dice);
  const Bf16Matrix w = draw_bf16(s.depth, s.cols, Data::kFloats, dice);
  DenseTiles b;
  b.pack(w.view(), false);
  std::optional<TestMatrix> one;
  for (const int count : {1, 2, 7}) {
    set_threads(count);
    TestMatrix c(s.rows, s.cols);
    multiply_dense_tiles(DenseTileCall<float>{a.view(), &b, nullptr, 0, c.view()}, GetParam());
    if (!one) one.emplace(c);
    EXPECT_TRUE(same_bits(c, *one)) << count << " threads";
  }
  set_threads(before);
}

// Entries that only fill a tile meet a row of zeros, not a NaN of the activations.
TEST_P(TileUnits, NaNReachesTheRowsThatKeepAWeightForIt) {
  TileProblem problem({1, 4, 16}, {64, 40, 70}, Data::kIntegers, Fill::kPartly, false, false, 11);
  problem.dense().values[static_cast<size_t>(9 * problem.dense().stride + 65)] = to_bf16(NAN);
  problem.dense().values[static_cast<size_t>(33 * problem.dense().stride + 2)] = to_bf16(INFINITY);
  const TestMatrix c = problem.result(GetParam());
  for (int64_t r = 0; r < 64; ++r) {
    for (int64_t col = 0; col < 70; ++col) {
      const bool nan = col == 65 && problem.sparse().mask.at(r, 9);
      const bool touched = col == 2 && problem.sparse().mask.at(r, 33);
      if (nan) {
        EXPECT_TRUE(std::isnan(c.at(r, col))) << r << ", " << col;
      } else if (!touched) {
        EXPECT_TRUE(std::isfinite(c.at(r, col))) << r << ", " << col;
      } else {
        EXPECT_FALSE(std::isfinite(c.at(r, col))) << r << ", " << col;
      }
    }
  }
}

TEST_P(TileUnits, DenseProductsAreRight) {
  uint64_t stream = 100;
  for (const TileShape& s : std::vector<TileShape>{{1, 1, 1},
                                                   {32, 32, 32},
                                                   {31, 33, 31},
                                                   {33, 31, 65},
                                                   {64, 64, 32},
                                                   {100, 70, 40},
                                                   {3, 0, 4},
                                                   {0, 4, 4},
                                                   {4, 4, 0}}) {
    if (slow() && s.rows * s.depth * s.cols > 40000) continue;
    for (const Data data : {Data::kIntegers, Data::kFloats}) {
      Dice dice(++stream);
      const bool transposed = stream % 2 == 0, beta = stream % 3 == 0;
      const Bf16Matrix a = draw_bf16(s.rows, s.depth, data, dice, 3);
      TestMatrix w(transposed ? s.cols : s.depth, transposed ? s.depth : s.cols, 2);
      w.fill(data, dice);
      TestMatrix bias(1, s.cols), c(s.rows, s.cols, 4);
      bias.fill(data, dice);
      c.fill(beta ? 2.0f : NAN);
      ExpectedMatrix want(s.rows, s.cols);
      for (int64_t r = 0; r < s.rows; ++r) {
        for (int64_t col = 0; col < s.cols; ++col) {
          for (int64_t k = 0; k < s.depth; ++k) {
            const float v = transposed ? w.at(col, k) : w.at(k, col);
            want.add(r, col, a.at(r, k), to_float(to_bf16(v)));
          }
          want.add(r, col, bias.at(0, col), 1);
          if (beta) want.add(r, col, 2, 1);
        }
      }
      DenseTiles b;
      b.pack(std::as_const(w).view(), transposed);
      multiply_dense_tiles(
          DenseTileCall<float>{a.view(), &b, bias.data(), beta ? 1.0f : 0.0f, c.view()},
          GetParam());
      SCOPED_TRACE(fmt::format("{}x{}x{} stream {}", s.rows, s.depth, s.cols, stream));
      EXPECT_EQ(mismatch(c.view(), want, data), "");
      EXPECT_EQ(c.damage(), "");
      // In bf16: the same, rounded once.
      Bf16Matrix narrow(s.rows, s.cols);
      std::fill_n(narrow.values.get(), s.rows * s.cols, to_bf16(beta ? 2.0f : NAN));
      multiply_dense_tiles(
          DenseTileCall<Bf16>{a.view(), &b, bias.data(), beta ? 1.0f : 0.0f, narrow.view()},
          GetParam());
      for (int64_t r = 0; r < s.rows; ++r) {
        for (int64_t col = 0; col < s.cols; ++col) {
          EXPECT_EQ(narrow.at(r, col), to_float(to_bf16(c.at(r, col))));
        }
      }
    }
  }
}

TEST(Tiles, DensePacksOfBothTypesAgree) {
  Dice dice(1);
  TestMatrix w(45, 37);
  w.fill(Data::kFloats, dice);
  const Bf16Matrix rounded(w, 1);
  for (const bool transposed : {false, true}) {
    DenseTiles a, b;
    a.pack(std::as_const(w).view(), transposed);
    b.pack(rounded.view(), transposed);
    const int64_t size = a.blocks() * a.steps() * 1024;
    ASSERT_EQ(std::memcmp(a.block(0), b.block(0), static_cast<size_t>(size) * 2), 0);
  }
}

TEST(Tiles, UnpackToWhatWasPacked) {
  for (const Pattern& pattern : kTilePatterns) {
    for (const TileShape& s : shapes_around(pattern)) {
      const TileProblem problem(pattern, s, Data::kFloats, Fill::kPartly, false, false, 3);
      const Unpacked found = unpack(problem.packed);
      EXPECT_TRUE(found.mask == problem.sparse().mask) << pattern.str();
      EXPECT_EQ(problem.packed.kept(), problem.sparse().mask.count());
      for (const Sparse::Entry& e : problem.sparse().entries(Precision::kBf16)) {
        EXPECT_EQ(found.values[static_cast<size_t>(e.row * s.depth + e.col)], e.value);
      }
    }
  }
}

TEST(Tiles, BytesThatWereDamagedAreRefused) {
  const TileProblem problem({2, 4, 16}, {64, 70, 1}, Data::kFloats, Fill::kPartly, false, false, 5);
  const auto bytes = problem.packed.bytes();
  EXPECT_EQ(std::memcmp(PackedMatrix::from_bytes(bytes).bytes().data(), bytes.data(), bytes.size()),
            0);
  int refused = 0;
  const TileView view = problem.packed.tiles();
  const auto at = [&](const void* p) {
    return static_cast<size_t>(static_cast<const std::byte*>(p) - bytes.data());
  };
  const auto values = at(view.values);
  for (size_t i = 0; i < values; ++i) {
    std::vector<std::byte> damaged(bytes.begin(), bytes.end());
    damaged[i] ^= std::byte{0x55};
    try {
      PackedMatrix::from_bytes(damaged);
    } catch (const Error&) {
      ++refused;
    }
  }
  // A row number may become another one that is in order, and the last block may have other rows.
  const int row_numbers = static_cast<int>(problem.packed.header().entries) * 2;
  EXPECT_GE(refused, static_cast<int>(values) - row_numbers - 1);
  for (size_t i = 0; i < at(view.offsets); ++i) {
    if (i == offsetof(PackHeader, rows)) continue;
    std::vector<std::byte> damaged(bytes.begin(), bytes.end());
    damaged[i] ^= std::byte{0x55};
    EXPECT_THROW(PackedMatrix::from_bytes(damaged), Error) << "byte " << i;
  }
  // A value beside an entry that only fills.
  for (uint32_t e = 0; e < view.starts[1]; ++e) {
    if (view.offsets[e] != view.tile.depth) continue;
    std::vector<std::byte> damaged(bytes.begin(), bytes.end());
    damaged[values + 2 * e] = std::byte{1};
    EXPECT_THROW(PackedMatrix::from_bytes(damaged), Error);
    return;
  }
  FAIL() << "nothing fills a tile";
}

TEST(Tiles, AreMadeOfSharedRowsAndRounded) {
  TestMatrix w(32, 32);
  Dice values(2);
  w.fill(Data::kFloats, values);
  const auto tiles = [&](const Pattern& pattern, Precision type) {
    Dice dice(1);
    const Mask mask = draw_mask(32, 32, pattern, Fill::kFull, dice);
    return tiles_of(pack_panels(w.view(), mask, {pattern, tile_panel(pattern), type}));
  };
  EXPECT_NO_THROW(tiles({2, 4, 16}, Precision::kBf16));
  EXPECT_THROW(tiles({2, 4, 8}, Precision::kBf16), Error);
  const PackedMatrix a = tiles({2, 4, 16}, Precision::kBf16),
                     b = tiles({2, 4, 16}, Precision::kFp32);
  EXPECT_TRUE(std::ranges::equal(a.bytes(), b.bytes())) << "rounded as they become tiles";
}

TEST(Tiles, PanelsHoldEveryColumnOnce) {
  std::vector<int> places;
  for (int c = 0; c < 64; ++c) places.push_back(panel_place(c));
  std::ranges::sort(places);
  for (int c = 0; c < 64; ++c) EXPECT_EQ(places[static_cast<size_t>(c)], c);
}

TEST(Tiles, TransposesOfAnySize) {
  for (const int64_t rows : {0, 1, 7, 8, 9, 24}) {
    for (const int64_t cols : {0, 1, 7, 8, 9, 31}) {
      Bf16Matrix from(rows, cols, 3), to(cols, rows, 2);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < cols; ++c) {
          from.values[static_cast<size_t>(r * from.stride + c)] = {
              static_cast<uint16_t>(r * 100 + c)};
        }
      }
      transpose_bf16(from.view(), to.view());
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < cols; ++c) {
          EXPECT_EQ(to.values[static_cast<size_t>(c * to.stride + r)].bits, r * 100 + c);
        }
      }
    }
  }
}

// ---- rows in an order of their own

// Activations, transposed: what a sink does that stores many rows side by side.
TEST(OrderedTiles, AreUndoneAsRowsAreStored) {
  force_tile_unit("emulated");
  const int before = threads();
  for (const Pattern& pattern : {Pattern(2, 4, 16), Pattern(1, 2, 32)}) {
    for (const TileShape& s : {TileShape{130, 70, 200}, TileShape{64, 8, 1}, TileShape{5, 5, 65}}) {
      Dice dice(static_cast<uint64_t>(s.rows));
      std::vector<int64_t> order(static_cast<size_t>(s.rows));
      for (int64_t i = 0; i < s.rows; ++i) {
        const int64_t other = dice.below(i + 1);
        order[static_cast<size_t>(i)] = order[static_cast<size_t>(other)];
        order[static_cast<size_t>(other)] = i;
      }
      const Mask placed = draw_mask(s.rows, s.depth, pattern, Fill::kFull, dice);
      const Sparse w = draw_sparse(undo_row_order(placed, order), Data::kIntegers, dice);
      PanelOptions options{pattern, tile_panel(pattern), Precision::kBf16};
      options.row_order = order;
      const PackedMatrix packed = tiles_of(pack_panels(w.weights.view(), w.mask, options));
      EXPECT_TRUE(unpack(packed).mask == w.mask);
      EXPECT_TRUE(
          std::ranges::equal(PackedMatrix::from_bytes(packed.bytes()).bytes(), packed.bytes()));
      const Bf16Matrix x = draw_bf16(s.cols, s.depth, Data::kIntegers, dice);
      const Bf16Matrix turned = draw_bf16(s.depth, s.cols, Data::kIntegers, dice);
      for (const int count : {1, 3}) {
        set_threads(count);
        Bf16Matrix y(s.cols, s.rows);
        sparse_forward(x.view(), packed, nullptr, 0, y.view());
        TestMatrix dw(s.rows, s.cols);
        sparse_backward_weight(packed, turned.view(), 0, dw.view());
        ExpectedMatrix want(s.cols, s.rows), want_dw(s.rows, s.cols);
        for (const Sparse::Entry& e : w.entries(Precision::kBf16)) {
          for (int64_t c = 0; c < s.cols; ++c) {
            want.add(c, e.row, x.at(c, e.col), e.value);
            want_dw.add(e.row, c, turned.at(e.col, c), e.value);
          }
        }
        for (int64_t c = 0; c < s.cols; ++c) {
          for (int64_t r = 0; r < s.rows; ++r) {
            const auto sum = static_cast<float>(want.at(c, r).value);
            ASSERT_EQ(y.at(c, r), to_float(to_bf16(sum))) << c << ", " << r;
          }
        }
        EXPECT_EQ(mismatch(dw.view(), want_dw, Data::kIntegers), "");
      }
    }
  }
  set_threads(before);
  restore_tile_unit();
}

TEST(OrderedTiles, AnOrderThatIsNoneIsRefused) {
  Dice dice(1);
  const Pattern pattern(2, 4, 16);
  const Sparse w = draw_sparse(draw_mask(64, 8, pattern, Fill::kFull, dice), Data::kFloats, dice);
  std::vector<int64_t> order(64);
  std::iota(order.begin(), order.end(), 0);
  PanelOptions options{pattern, tile_panel(pattern), Precision::kBf16};
  options.row_order = order;
  const PackedMatrix packed = tiles_of(pack_panels(w.weights.view(), w.mask, options));
  std::vector<std::byte> damaged(packed.bytes().begin(), packed.bytes().end());
  damaged[damaged.size() - 4] = std::byte{0};  // row 0 twice
  EXPECT_THROW(PackedMatrix::from_bytes(damaged), Error);
}

// ---- the dense products of a layer

TEST(DenseOnTiles, ThreeProductsAreRightAndCheckTheirOperands) {
  force_tile_unit("emulated");
  const int64_t tokens = 45, ins = 37, outs = 50;
  Dice dice(3);
  const Bf16Matrix x = draw_bf16(tokens, ins, Data::kIntegers, dice, 2);
  const Bf16Matrix g = draw_bf16(tokens, outs, Data::kIntegers, dice, 1);
  const Bf16Matrix w = draw_bf16(outs, ins, Data::kIntegers, dice, 3);
  DenseTiles forward, backward;
  forward.pack(w.view(), true);
  backward.pack(w.view(), false);
  std::vector<float> bias(static_cast<size_t>(outs), 3.0f);
  Bf16Matrix y(tokens, outs), dx(tokens, ins);
  TestMatrix dw(outs, ins, 2);
  dw.fill(5.0f);
  std::fill_n(dx.values.get(), tokens * ins, to_bf16(1.0f));
  dense_tile_forward(x.view(), forward, bias.data(), 0, y.view());
  dense_tile_backward_data(g.view(), backward, 1, dx.view());
  dense_tile_backward_weight(g.view(), x.view(), 1, dw.view());
  const auto rounded = [](double value) { return to_float(to_bf16(static_cast<float>(value))); };
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t o = 0; o < outs; ++o) {
      double sum = 3;
      for (int64_t i = 0; i < ins; ++i) sum += x.at(t, i) * w.at(o, i);
      ASSERT_EQ(y.at(t, o), rounded(sum));
    }
    for (int64_t i = 0; i < ins; ++i) {
      double sum = 1;
      for (int64_t o = 0; o < outs; ++o) sum += g.at(t, o) * w.at(o, i);
      ASSERT_EQ(dx.at(t, i), rounded(sum));
    }
  }
  for (int64_t o = 0; o < outs; ++o) {
    for (int64_t i = 0; i < ins; ++i) {
      double sum = 5;
      for (int64_t t = 0; t < tokens; ++t) sum += g.at(t, o) * x.at(t, i);
      ASSERT_EQ(dw.at(o, i), sum);
    }
  }
  EXPECT_EQ(dw.damage(), "");
  EXPECT_THROW(dense_tile_forward(x.view(), forward, nullptr, 0.5f, y.view()), Error);
  EXPECT_THROW(dense_tile_forward(g.view(), forward, nullptr, 0, y.view()), Error);
  EXPECT_THROW(dense_tile_backward_data(x.view(), backward, 0, dx.view()), Error);
  EXPECT_THROW(dense_tile_backward_weight(g.view(), {nullptr, tokens, ins}, 0, dw.view()), Error);
  restore_tile_unit();
}

TEST(TileUnit, IsNamedAndForced) {
  for (const TileUnit unit : available_tile_units()) {
    force_tile_unit(tile_unit_name(unit));
    EXPECT_EQ(tile_unit(), unit);
  }
  restore_tile_unit();
  EXPECT_NE(tile_unit(), TileUnit::kEmulated) << "only who asks for it gets it";
  EXPECT_EQ(tile_unit() == TileUnit::kAmx, tile_unit_lacks().empty());
  try {
    force_tile_unit("npu");
    FAIL();
  } catch (const Error& error) {
    EXPECT_TRUE(contains(error.what(), "'npu' is not available here")) << error.what();
    EXPECT_TRUE(contains(error.what(), "emulated, none")) << error.what();
  }
}

TEST(TileUnit, CountsTheFlopsOfItsPeak) {  // a step: a tile of 16 x 32 by one of 32 x 16
  EXPECT_EQ(tile_ops(TileUnit::kEmulated).busy(0), 0);
  EXPECT_EQ(tile_ops(TileUnit::kEmulated).busy(3), 3 * 2 * 16 * 16 * 32);
}

TEST(TileUnit, IsNoneOnACpuHeldToLess) {
  for (const std::string& isa : available_isas()) {
    if (isa.starts_with("avx3")) continue;
    force_isa(isa);
    EXPECT_EQ(tile_unit(), TileUnit::kNone);
    EXPECT_THROW(force_tile_unit("amx"), Error);
    EXPECT_EQ(tile_unit(), TileUnit::kNone);
  }
  restore_isa();
}

TEST(TileUnit, WithoutOneTilesAreRefused) {
  const TileProblem problem({2, 4, 16}, {16, 16, 16}, Data::kIntegers, Fill::kFull, false, false,
                            1);
  const Collect sink(16, 16);
  EXPECT_THROW(multiply_tiles(problem.packed, 16, {}, sink, TileUnit::kNone), Error);
}

}  // namespace
}  // namespace weft::test
