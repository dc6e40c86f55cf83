// Packed matrices: what goes in comes out, the bytes are what docs/format.md says, whatever is
// promised is checked, and no buffer from outside is believed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "tests/products.h"
#include "tests/weights.h"
#include "weft/core/bf16.h"
#include "weft/mask/solver.h"
#include "weft/pack/keep_row.h"
#include "weft/pack/pack.h"

namespace weft {
namespace {

using test::contains;
using test::message_of;

constexpr PackTile kTile{32, 16};

const std::vector<std::string> kPatterns = {"1:2",   "2:4",   "1:4",   "3:4",  "4:8",
                                            "1:16",  "5:7",   "8:16",  "3:64", "64:64",
                                            "2:4x2", "1:4x4", "2:4x32"};

// Weights whose every bit counts: wide, of both signs, with zeros of both signs.
std::vector<float> numbers(int64_t count, uint64_t stream) {
  std::vector<float> values(static_cast<size_t>(count));
  const Rng rng(test_seed(), stream);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = draw<float>(i % 7 == 3 ? Kind::kZeros : Kind::kWide, rng, i);
  }
  return values;
}

// Sizes of the matrix, of its segments, and from one row to the next.
struct Shape {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t segment = 0;  // 0: all columns
  int64_t gap = 0;      // floats between rows that belong to nobody
};

struct Matrix {
  Shape shape;
  std::vector<float> values;  // [rows, cols + gap]

  Matrix(const Shape& shape, uint64_t stream)
      : shape(shape), values(numbers(shape.rows * (shape.cols + shape.gap), stream)) {}
  MatrixView<const float> view() const {
    return {values.data(), shape.rows, shape.cols, shape.cols + shape.gap};
  }
  float at(int64_t row, int64_t col) const {
    return values[static_cast<size_t>(row * (shape.cols + shape.gap) + col)];
  }
  int64_t segment() const { return shape.segment == 0 ? shape.cols : shape.segment; }
};

// The largest of every group, one segment after the other.
Mask largest(const Matrix& matrix, const Pattern& pattern) {
  Mask mask(matrix.shape.rows, matrix.shape.cols);
  const int64_t wide = matrix.segment();
  for (int64_t begin = 0; begin < matrix.shape.cols; begin += wide) {
    std::vector<float> part;
    for (int64_t r = 0; r < matrix.shape.rows; ++r) {
      for (int64_t c = begin; c < begin + wide; ++c) part.push_back(matrix.at(r, c));
    }
    const Mask found =
        find_mask(solver("magnitude"), part.data(), {matrix.shape.rows, wide, 1}, pattern);
    for (int64_t r = 0; r < matrix.shape.rows; ++r) {
      for (int64_t c = 0; c < wide; ++c) mask.set(r, begin + c, found.at(r, c));
    }
  }
  return mask;
}

// The same mask with about a third of its bits gone; rows that share lose the same ones.
Mask thinned(const Mask& mask, const Pattern& pattern, uint64_t stream) {
  Mask result = mask;
  const Rng rng(test_seed(), stream);
  for (int64_t r = 0; r < mask.rows(); ++r) {
    const int64_t cell =
        pattern.share() == 1 ? r : r / pattern.block() * pattern.block() + r % pattern.group();
    for (int64_t c = 0; c < mask.cols(); ++c) {
      if (rng.uniform(static_cast<uint64_t>(cell * mask.cols() + c)) < 0.33) {
        result.set(r, c, false);
      }
    }
  }
  return result;
}

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) text += fmt::format("{:02x}", static_cast<int>(byte));
  return text;
}

bool same_bytes(const PackedMatrix& a, const PackedMatrix& b) {
  return std::ranges::equal(a.bytes(), b.bytes());
}

void expect_round_trip(const Matrix& matrix, const Mask& mask, const PackedMatrix& packed) {
  const Unpacked back = unpack(packed);
  EXPECT_EQ(back.mask, mask);
  EXPECT_EQ(packed.kept(), mask.count());
  EXPECT_EQ(packed.density(), mask.density());
  ASSERT_EQ(back.values.size(), static_cast<size_t>(mask.rows() * mask.cols()));
  for (int64_t r = 0; r < mask.rows(); ++r) {
    for (int64_t c = 0; c < mask.cols(); ++c) {
      const float value = matrix.at(r, c);
      const float stored =
          packed.value_type() == Precision::kFp32 ? value : bf16_to_float(float_to_bf16(value));
      ASSERT_EQ(std::bit_cast<uint32_t>(back.values[static_cast<size_t>(r * mask.cols() + c)]),
                mask.at(r, c) ? std::bit_cast<uint32_t>(stored) : 0u)
          << "at " << r << ", " << c << " of value " << value;
    }
  }
  const PackedMatrix copy = PackedMatrix::from_bytes(packed.bytes());
  EXPECT_TRUE(same_bytes(copy, packed));
}

// Calls body(matrix, mask, pattern) for patterns, shapes around the tiles of both layouts and of
// the pattern, full and thinned masks.
template <typename Body>
void for_each_case(Body body) {
  uint64_t stream = 1;
  for (const std::string& text : kPatterns) {
    const Pattern pattern = Pattern::parse(text);
    std::vector<Shape> shapes;
    for (const int64_t rows : {0, 1, 15, 16, 17, 33}) shapes.push_back({rows, 37, 0, 3});
    for (const int64_t cols : edges(pattern.group())) shapes.push_back({5, cols, 0, 0});
    for (const int64_t cols : edges(kTile.depth)) shapes.push_back({18, cols, 0, 1});
    shapes.push_back({18, 200, 0, 1});  // whole words of a mask in a panel that is deep enough
    for (const int64_t rows : edges(pattern.block())) {
      if (pattern.share() > 1) shapes.push_back({rows, 9, 0, 0});
    }
    for (const int64_t segment : {1, 3, pattern.group(), pattern.group() + 1}) {
      shapes.push_back({17, 3 * segment, segment, 2});
    }
    for (const Shape& shape : shapes) {
      const Matrix matrix(shape, ++stream);
      const Mask full = largest(matrix, pattern);
      for (const Mask& mask : {full, thinned(full, pattern, stream)}) {
        SCOPED_TRACE(fmt::format("{} on {} x {}, segments of {}, {} kept, seed {} stream {}", text,
                                 shape.rows, shape.cols, matrix.segment(), mask.count(),
                                 test_seed(), stream));
        body(matrix, mask, pattern);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

// The stream layout once more, slot by slot from its description.
std::vector<uint8_t> naive_stream_indices(const Matrix& matrix, const Mask& mask,
                                          const Pattern& pattern, int bits,
                                          std::vector<float>& values) {
  const int64_t blocks = (mask.rows() + 15) / 16;
  std::vector<uint8_t> bytes;
  values.clear();
  for (int64_t block = 0; block < blocks; ++block) {
    for (int64_t begin = 0; begin < mask.cols(); begin += matrix.segment()) {
      for (int64_t col = begin; col < begin + matrix.segment(); col += pattern.group()) {
        const int64_t width = std::min<int64_t>(pattern.group(), begin + matrix.segment() - col);
        for (int slot = 0; slot < pattern.keep(); ++slot) {
          std::vector<bool> stream_bits;
          for (int64_t row = block * 16; row < block * 16 + 16; ++row) {
            std::vector<int64_t> kept;
            for (int64_t i = 0; row < mask.rows() && i < width; ++i) {
              if (mask.at(row, col + i)) kept.push_back(i);
            }
            int64_t index = width >= (int64_t{1} << bits) ? slot : width;
            float value = 0;
            if (slot < static_cast<int>(kept.size())) {
              index = kept[static_cast<size_t>(slot)];
              value = matrix.at(row, col + index);
            }
            for (int b = 0; b < bits; ++b) stream_bits.push_back((index >> b & 1) != 0);
            values.push_back(value);
          }
          for (size_t i = 0; i < stream_bits.size(); i += 8) {
            int byte = 0;
            for (size_t b = 0; b < 8; ++b) byte |= int{stream_bits[i + b]} << b;
            bytes.push_back(static_cast<uint8_t>(byte));
          }
        }
      }
    }
  }
  return bytes;
}

TEST(Stream, RoundTripsAndLiesAsDescribed) {
  for_each_case([](const Matrix& matrix, const Mask& mask, const Pattern& pattern) {
    for (const Precision type : {Precision::kFp32, Precision::kBf16}) {
      const PackedMatrix packed =
          pack_stream(matrix.view(), mask, pattern, type, matrix.shape.segment);
      EXPECT_EQ(packed.pattern(), pattern);
      expect_round_trip(matrix, mask, packed);
      const StreamView view = packed.stream();
      std::vector<float> values;
      const auto indices = naive_stream_indices(matrix, mask, pattern, view.index_bits, values);
      ASSERT_EQ(values.size(), static_cast<size_t>(packed.header().entries));
      EXPECT_TRUE(std::equal(indices.begin(), indices.end(), view.indices));
      for (size_t i = 0; type == Precision::kFp32 && i < values.size(); ++i) {
        ASSERT_EQ(std::bit_cast<uint32_t>(values[i]),
                  std::bit_cast<uint32_t>(static_cast<const float*>(view.values)[i]));
      }
    }
  });
}

TEST(Stream, HasTheFewestIndexBits) {
  const std::map<std::string, std::pair<int, int>> bits = {
      // full, not full
      {"1:2", {1, 2}},  {"2:4", {2, 4}},  {"1:4", {2, 4}},  {"1:3", {2, 2}},
      {"4:8", {4, 4}},  {"5:7", {4, 4}},  {"1:15", {4, 4}}, {"1:16", {4, 8}},
      {"8:16", {4, 8}}, {"3:64", {8, 8}}, {"1:1", {1, 1}}};
  for (const auto& [text, expected] : bits) {
    const Pattern pattern = Pattern::parse(text);
    const Matrix matrix({3, 2 * pattern.group()}, 5);
    Mask mask = largest(matrix, pattern);
    const auto bits_now = [&] {
      return pack_stream(matrix.view(), mask, pattern, Precision::kFp32).stream().index_bits;
    };
    EXPECT_EQ(bits_now(), expected.first) << text;
    for (int64_t c = 0; c < mask.cols(); ++c) mask.set(1, c, false);
    EXPECT_EQ(bits_now(), expected.second) << text;
  }
}

TEST(Panel, RoundTrips) {
  for_each_case([](const Matrix& matrix, const Mask& mask, const Pattern& pattern) {
    for (const Precision type : {Precision::kFp32, Precision::kBf16}) {
      for (const PackTile tile : {kTile, PackTile{7, 32}, PackTile{1, 16}, PackTile{1024, 16}}) {
        const PackedMatrix packed =
            pack_panels(matrix.view(), mask, {pattern, tile, type, false, matrix.shape.segment});
        EXPECT_EQ(packed.pattern(), pattern);
        EXPECT_FALSE(packed.ragged());
        expect_round_trip(matrix, mask, packed);
      }
    }
  });
}

// One row of panels after the other, one cell after the other, its entries in order of depth.
void expect_panels_as_described(const Matrix& matrix, const Mask& mask, const Pattern& pattern,
                                const PackTile& tile) {
  const PackedMatrix packed = pack_panels(
      matrix.view(), mask, {pattern, tile, Precision::kFp32, false, matrix.shape.segment});
  const PanelView view = packed.panel();
  const auto* values = static_cast<const float*>(view.values);
  size_t entry = 0;
  for (int64_t p = 0; p < view.panels; ++p) {
    for (int64_t cell = 0; cell < view.cells; ++cell) {
      ASSERT_EQ(view.starts[p * view.cells + cell], entry);
      const int64_t first = pattern.share() == 1
                                ? cell
                                : cell / pattern.group() * pattern.block() + cell % pattern.group();
      const int64_t begin = tile.depth * p;
      for (int64_t k = begin; k < std::min(mask.cols(), begin + tile.depth); ++k) {
        if (first >= mask.rows() || !mask.at(first, k)) continue;
        ASSERT_EQ(view.offsets[entry], (k - begin) * tile.width * 4);
        for (int m = 0; m < pattern.share(); ++m) {
          const int64_t row = first + m * pattern.group();
          const float expected = row < mask.rows() ? matrix.at(row, k) : 0.0f;
          ASSERT_EQ(std::bit_cast<uint32_t>(values[entry * pattern.share() + m]),
                    std::bit_cast<uint32_t>(expected));
        }
        ++entry;
      }
    }
  }
  ASSERT_EQ(view.starts[view.panels * view.cells], entry);
  ASSERT_EQ(packed.header().entries, static_cast<int64_t>(entry));
}

TEST(Panel, LiesAsDescribed) {
  for_each_case([](const Matrix& matrix, const Mask& mask, const Pattern& pattern) {
    for (const PackTile& tile : {kTile, PackTile{150, 48}}) {
      expect_panels_as_described(matrix, mask, pattern, tile);
    }
  });
}

// ---- what a mask keeps of a row

// A row with a part of a mask of about `density`, and what keep_row() should make of it.
struct KeptRow {
  Mask mask;
  int64_t begin, count;
  std::vector<float> first, second;
  std::vector<int64_t> kept;

  KeptRow(int64_t begin, int64_t count, double density, uint64_t stream)
      : mask(3, begin + count + 5),
        begin(begin),
        count(count),
        first(numbers(count, stream)),
        second(numbers(count, stream + 1)) {
    const Rng rng(test_seed(), stream + 2);
    for (int64_t c = 0; c < mask.cols(); ++c) {
      mask.set(1, c, rng.uniform(static_cast<uint64_t>(c)) < density);
      if (c >= begin && c < begin + count && mask.at(1, c)) kept.push_back(c - begin);
    }
    if (count > 0) first[0] = std::bit_cast<float>(0x7fa12345);  // a NaN with a payload
  }
};

// Two rows and one, with offsets and without. `more` entries behind the kept ones may be
// overwritten; those behind them are not.
void expect_kept(const KeptRow& row, int64_t more, bool with_offsets) {
  constexpr uint16_t kUntouched = 54321;
  const size_t kept = row.kept.size(), room = kept + static_cast<size_t>(more);
  const auto bits = [](float value) { return std::bit_cast<uint32_t>(value); };
  for (const size_t rows : {1, 2}) {
    SCOPED_TRACE(fmt::format("{} rows", rows));
    std::vector<uint16_t> offsets(room + 8, kUntouched);
    std::vector<float> values(rows * (room + 8), -7.0f);
    const KeepRow keep{.mask = row.mask,
                       .row = 1,
                       .begin = row.begin,
                       .count = row.count,
                       .offsets = with_offsets ? offsets.data() : nullptr,
                       .step = 192,
                       .room = static_cast<int64_t>(room)};
    rows == 1 ? keep_row(keep, row.first.data(), values.data())
              : keep_two_rows(keep, row.first.data(), row.second.data(), values.data());
    for (size_t i = 0; i < kept; ++i) {
      const auto k = static_cast<size_t>(row.kept[i]);
      ASSERT_EQ(offsets[i], with_offsets ? static_cast<uint16_t>(k * 192) : kUntouched) << i;
      ASSERT_EQ(bits(values[rows * i]), bits(row.first[k])) << i;
      ASSERT_EQ(bits(values[rows * i + rows - 1]), bits((rows == 1 ? row.first : row.second)[k]));
    }
    for (size_t i = room; i < room + 8; ++i) ASSERT_EQ(offsets[i], kUntouched) << i - room;
    for (size_t i = rows * room; i < values.size(); ++i) {
      ASSERT_EQ(values[i], -7.0f) << i - rows * room << " behind the room";
    }
  }
}

TEST(KeepRow, TakesWhatIsKeptAndWritesNowhereElse) {
  test::for_each_isa([](const std::string& isa) {
    uint64_t stream = 900;
    for (const int64_t begin : {0, 64, 37}) {
      for (const int64_t count : {0, 1, 7, 63, 64, 65, 127, 128, 200, 342}) {
        for (const double density : {0.0, 0.06, 0.125, 0.25, 0.5, 0.9, 1.0}) {
          const KeptRow row(begin, count, density, stream += 3);
          for (const int64_t more : {0, 1, 5, 8, 100}) {
            SCOPED_TRACE(fmt::format("{}: columns {} to {}, density {}, {} more", isa, begin,
                                     begin + count, density, more));
            expect_kept(row, more, /*with_offsets=*/true);
            expect_kept(row, more, /*with_offsets=*/false);
            if (::testing::Test::HasFatalFailure()) return;
          }
        }
      }
    }
  });
}

Matrix transposed(const Matrix& matrix) {
  Matrix result({matrix.shape.cols, matrix.shape.rows, 0, 0}, 0);
  for (int64_t r = 0; r < matrix.shape.rows; ++r) {
    for (int64_t c = 0; c < matrix.shape.cols; ++c) {
      result.values[static_cast<size_t>(c * matrix.shape.rows + r)] = matrix.at(r, c);
    }
  }
  return result;
}

TEST(Panel, TransposedIsThePackOfTheTranspose) {
  for_each_case([](const Matrix& matrix, const Mask& mask, const Pattern& pattern) {
    if (pattern.share() > 1) return;  // what shares along outputs does not along inputs
    for (const PackTile tile : {kTile, PackTile{5, 48}}) {
      const PanelOptions ragged{pattern, tile, Precision::kFp32, true};
      const PackedMatrix packed = pack_panels_transposed(matrix.view(), mask, ragged);
      EXPECT_TRUE(packed.ragged());
      const Matrix other = transposed(matrix);
      EXPECT_TRUE(same_bytes(packed, pack_panels(other.view(), mask.transposed(), ragged)));
      expect_round_trip(other, mask.transposed(), packed);
    }
  });
}

TEST(Panel, TransposableMasksPackBothWays) {
  for (const std::string text : {"2:4", "4:8", "1:4", "2:4x2", "2:4x4"}) {
    const Pattern pattern = Pattern::parse(text);
    for (const auto& [rows, cols] :
         {std::pair<int64_t, int64_t>{64, 96}, {30, 41}, {4, 8}, {64, 300}, {300, 150}}) {
      SCOPED_TRACE(fmt::format("{} {} x {}", text, rows, cols));
      const Matrix matrix({rows, cols}, 77);
      const Mask mask = find_mask(solver("exact"), matrix.values.data(), {rows, cols, 1}, pattern);
      const Matrix other = transposed(matrix);
      for (const PackTile& tile : {kTile, PackTile{128, 16}}) {
        const PanelOptions options{pattern, tile};
        expect_round_trip(matrix, mask, pack_panels(matrix.view(), mask, options));
        const PackedMatrix packed = pack_panels_transposed(matrix.view(), mask, options);
        expect_round_trip(other, mask.transposed(), packed);
        EXPECT_TRUE(same_bytes(packed, pack_panels(other.view(), mask.transposed(), options)));
      }
    }
  }
}

TEST(ByMagnitude, IsTheMagnitudeMaskPacked) {
  for_each_case([](const Matrix& matrix, const Mask&, const Pattern& pattern) {
    const Mask mask = largest(matrix, pattern);
    const int64_t segment = matrix.shape.segment;
    for (const Precision type : {Precision::kFp32, Precision::kBf16}) {
      EXPECT_TRUE(same_bytes(pack_stream_by_magnitude(matrix.view(), pattern, type, segment),
                             pack_stream(matrix.view(), mask, pattern, type, segment)));
      for (const PackTile tile : {kTile, PackTile{64, 16}, PackTile{9, 16}}) {
        const PanelOptions options{pattern, tile, type, false, segment};
        EXPECT_TRUE(same_bytes(pack_panels_by_magnitude(matrix.view(), options),
                               pack_panels(matrix.view(), mask, options)));
      }
    }
  });
}

TEST(ByMagnitude, NamesTheWeightThatIsNotFinite) {
  Matrix matrix({200, 40, 8}, 3);
  matrix.values[static_cast<size_t>(170 * 40 + 21)] = std::numeric_limits<float>::quiet_NaN();
  const Pattern pattern(2, 4);
  const std::string stream =
      message_of([&] { pack_stream_by_magnitude(matrix.view(), pattern, Precision::kFp32, 8); });
  EXPECT_TRUE(contains(stream, "[170, 21] is nan")) << stream;
  for (const PackTile tile : {kTile, PackTile{9, 16}}) {
    const std::string panel = message_of([&] {
      pack_panels_by_magnitude(matrix.view(), {pattern, tile, Precision::kFp32, false, 8});
    });
    EXPECT_TRUE(contains(panel, "[170, 21] is nan")) << panel;
  }
}

TEST(Threads, DoNotChangeAByte) {
  const ThreadsGuard guard;
  for (const std::string text : {"2:4", "5:7", "1:4x4", "2:4x2"}) {
    const Pattern pattern = Pattern::parse(text);
    const Matrix matrix({331, 265}, 9);
    const Mask full = largest(matrix, pattern), mask = thinned(full, pattern, 4);
    const PanelOptions options{pattern, kTile};
    const PanelOptions deep{pattern,
                            {128, 16}};  // whole words of a mask, which items must not share
    const PanelOptions ragged{pattern.share() == 1 ? pattern : Pattern(1, 4), kTile,
                              Precision::kBf16, true};
    const auto all = [&] {
      std::vector<PackedMatrix> packed;
      packed.push_back(pack_panels(matrix.view(), mask, options));
      packed.push_back(pack_panels_transposed(matrix.view(), mask, ragged));
      packed.push_back(pack_panels_by_magnitude(matrix.view(), options));
      packed.push_back(pack_panels(matrix.view(), full, deep));
      packed.push_back(pack_panels(matrix.view(), mask, deep));
      packed.push_back(pack_panels_by_magnitude(matrix.view(), deep));
      packed.push_back(pack_panels_transposed(
          matrix.view(), full, {Pattern(1, 4), {128, 16}, Precision::kFp32, /*ragged=*/true}));
      packed.push_back(pack_stream(matrix.view(), mask, pattern, Precision::kFp32));
      packed.push_back(pack_stream_by_magnitude(matrix.view(), pattern, Precision::kBf16));
      return packed;
    };
    set_threads(1);
    const auto one = all();
    for (const int count : {2, 3}) {
      set_threads(count);
      const auto many = all();
      for (size_t i = 0; i < one.size(); ++i) {
        EXPECT_TRUE(same_bytes(one[i], many[i])) << text << ", pack " << i;
        EXPECT_EQ(unpack(one[i]).values, unpack(many[i]).values);
      }
    }
  }
}

// 3 x 6, 2:4, weights 1 to 18, the larger two of four kept and both of the short group.
Matrix golden_matrix() {
  Matrix matrix({3, 6}, 0);
  for (size_t i = 0; i < matrix.values.size(); ++i) matrix.values[i] = static_cast<float>(i + 1);
  return matrix;
}

// Frozen: files have these bytes. Whoever must change them raises the version.
TEST(Golden, Panel) {
  const PackedMatrix packed =
      pack_panels_by_magnitude(golden_matrix().view(), {Pattern(2, 4), {4, 16}});
  EXPECT_EQ(hex(packed.bytes().first(128)),
            "574546545041434b01000000"  // magic, version
            "0101000002040100"          // layout, type, ragged, index bits; keep, group, share
            "040000001000000000000000"  // tile
            "0300000000000000"          // rows
            "0600000000000000"          // depth
            "0600000000000000"          // segment
            "0c00000000000000"          // entries
            "0000000000000000000000000000000000000000000000000000000000000000"
            "0000000000000000000000000000000000000000000000000000000000000000");
  EXPECT_EQ(hex(packed.bytes().subspan(128)),
            "00000000020000000400000006000000080000000a0000000c00000000000000"
            "0000000000000000000000000000000000000000000000000000000000000000"
            "8000c0008000c0008000c0000000400000004000000040000000000000000000"
            "0000000000000000000000000000000000000000000000000000000000000000"
            "0000404000008040000010410000204100007041000080410000a0400000c040"
            "00003041000040410000884100009041");
}

TEST(Golden, Stream) {
  const PackedMatrix packed =
      pack_stream_by_magnitude(golden_matrix().view(), Pattern(2, 4), Precision::kBf16);
  EXPECT_EQ(hex(packed.bytes().first(128)),
            "574546545041434b01000000"  // magic, version
            "0202000202040101"  // layout, type, ragged, index bits; keep, group, share, full
            "000000000000000000000000"  // tile
            "0300000000000000"          // rows
            "0600000000000000"          // depth
            "0600000000000000"          // segment
            "4000000000000000"          // entries
            "0000000000000000000000000000000000000000000000000000000000000000"
            "0000000000000000000000000000000000000000000000000000000000000000");
  EXPECT_EQ(hex(packed.bytes().subspan(128)),
            "2a0000007f55555580aaaaaa95aaaaaa00000000000000000000000000000000"
            "0000000000000000000000000000000000000000000000000000000000000000"
            "4040104170410000000000000000000000000000000000000000000000000000"
            "8040204180410000000000000000000000000000000000000000000000000000"
            "a040304188410000000000000000000000000000000000000000000000000000"
            "c040404190410000000000000000000000000000000000000000000000000000");
}

TEST(Promises, WhatIsNotSoIsRefused) {
  const Matrix matrix({40, 24}, 2);
  const Pattern pattern(2, 4);
  const Mask mask = largest(matrix, pattern);
  const PanelOptions options{pattern, kTile};
  const auto refused = [](const std::string& words, auto action) {
    const std::string message = message_of(action);
    EXPECT_TRUE(contains(message, words)) << message;
  };

  Mask crowded = mask;
  for (int64_t c = 8; c < 12; ++c) crowded.set(21, c, true);
  const std::string where = "row 21, columns 8 to 11: more than 2 kept, so it is not 2:4";
  refused(where, [&] { pack_panels(matrix.view(), crowded, options); });
  refused(where, [&] { pack_stream(matrix.view(), crowded, pattern, Precision::kFp32); });
  refused("so it is not 2:4", [&] {  // N:M along inputs only, and not said to be ragged
    pack_panels_transposed(matrix.view(), mask, options);
  });

  const Pattern shared = Pattern::parse("2:4x2");
  refused("rows 0 and 4 differ", [&] { pack_panels(matrix.view(), mask, {shared, kTile}); });
  refused("rows 0 and 4 differ",
          [&] { pack_stream(matrix.view(), mask, shared, Precision::kFp32); });

  const Mask other(40, 23);
  refused("mask of 40 x 23", [&] { pack_panels(matrix.view(), other, options); });
  refused("mask of 40 x 23", [&] { pack_panels_transposed(matrix.view(), other, options); });
  refused("mask of 40 x 23", [&] { pack_stream(matrix.view(), other, pattern, Precision::kFp32); });

  for (const PackTile tile : {PackTile{0, 16},
                              {32, 0},
                              {32, 15},
                              {32, 24},
                              {-1, 16},
                              {-1, -1},
                              {32, -16},
                              {1025, 16},
                              {1 << 30, 1 << 30}}) {
    refused("tile", [&] { pack_panels(matrix.view(), mask, {pattern, tile}); });
    refused("tile", [&] { pack_panels_by_magnitude(matrix.view(), {pattern, tile}); });
  }
  for (const int64_t segment : {int64_t{-1}, int64_t{5}, int64_t{25}, int64_t{48}}) {
    const PanelOptions cut{pattern, kTile, Precision::kFp32, false, segment};
    refused("segments", [&] { pack_panels(matrix.view(), mask, cut); });
    refused("segments", [&] { pack_panels_by_magnitude(matrix.view(), cut); });
    refused("segments",
            [&] { pack_stream(matrix.view(), mask, pattern, Precision::kFp32, segment); });
    refused("segments",
            [&] { pack_stream_by_magnitude(matrix.view(), pattern, Precision::kFp32, segment); });
  }
  refused("ragged", [&] {
    pack_panels_by_magnitude(matrix.view(), {pattern, kTile, Precision::kFp32, true});
  });

  const PackedMatrix panel = pack_panels(matrix.view(), mask, options);
  const PackedMatrix stream = pack_stream(matrix.view(), mask, pattern, Precision::kFp32);
  refused("stream layout", [&] { panel.stream(); });
  refused("panel layout", [&] { stream.panel(); });
}

// Groups are counted a word at a time where they tile words: none may slip through.
TEST(Promises, OneGroupAmongManyIsFound) {
  for (const std::string text :
       {"1:2", "1:4", "2:4", "3:4", "7:8", "1:16", "31:32", "63:64", "5:7"}) {
    const Pattern pattern = Pattern::parse(text);
    const Matrix matrix({2, 64 * 3 + 5}, 6);
    const Mask full = largest(matrix, pattern);
    const auto bits_of = [&](const Mask& mask) {
      return pack_stream(matrix.view(), mask, pattern, Precision::kFp32).stream().index_bits;
    };
    for (int64_t col = 0; col < matrix.shape.cols; col += pattern.group()) {
      const int64_t end = std::min(matrix.shape.cols, col + pattern.group());
      Mask fewer = full, more = full;
      for (int64_t c = col; c < end; ++c) more.set(1, c, true);
      for (int64_t c = col; c < end && fewer == full; ++c) fewer.set(1, c, false);
      const std::string message = message_of([&] { bits_of(more); });
      const bool crowded = end - col > pattern.keep();
      EXPECT_EQ(contains(message, fmt::format("row 1, columns {} to {}:", col, end - 1)), crowded)
          << text << " at " << col << ": " << message;
      EXPECT_EQ((1 << bits_of(fewer)) > pattern.group(), true) << text << " at " << col;
      EXPECT_EQ(unpack(pack_stream(matrix.view(), fewer, pattern, Precision::kFp32)).mask, fewer);
    }
  }
}

// Small packs of every kind, to be broken.
std::vector<PackedMatrix> packs_to_break() {
  std::vector<PackedMatrix> packs;
  uint64_t stream = 100;
  for (const std::string text : {"2:4", "1:2", "5:7", "1:4x2", "1:16"}) {
    const Pattern pattern = Pattern::parse(text);
    for (const int64_t segment : {0, 6}) {
      const Matrix matrix({9, 18, segment}, ++stream);
      const Mask full = largest(matrix, pattern);
      for (const Mask& mask : {full, thinned(full, pattern, stream)}) {
        packs.push_back(
            pack_panels(matrix.view(), mask, {pattern, {8, 16}, Precision::kFp32, false, segment}));
        packs.push_back(pack_stream(matrix.view(), mask, pattern, Precision::kBf16, segment));
        packs.push_back(pack_stream(matrix.view(), mask, pattern, Precision::kFp32, segment));
      }
      const PanelOptions ragged{Pattern(2, 4), {8, 16}, Precision::kBf16, true};
      packs.push_back(pack_panels_transposed(matrix.view(), full, ragged));
    }
  }
  const Matrix empty({9, 0}, 1);
  packs.push_back(pack_panels(empty.view(), Mask(9, 0), {Pattern(2, 4), {8, 16}}));
  packs.push_back(pack_stream(empty.view(), Mask(9, 0), Pattern(2, 4), Precision::kFp32));
  return packs;
}

// True if the buffer is refused. If it is not, it must be a matrix that packs to the same bytes:
// nothing is believed that a packer would not have written, but for values (in panels also of rows
// that do not exist).
bool refused_or_sound(std::span<const std::byte> bytes) {
  PackedMatrix packed;
  try {
    packed = PackedMatrix::from_bytes(bytes);
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_LT(message.size(), 300u) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos);
    return true;
  }
  if (packed.rows() > 1000 || packed.depth() > 1000) return false;  // one of them is 0
  const Unpacked back = unpack(packed);
  EXPECT_EQ(packed.kept(), back.mask.count());
  const MatrixView<const float> view(back.values.data(), packed.rows(), packed.depth());
  const PackHeader& h = packed.header();
  PackedMatrix again;
  if (packed.layout() == PackLayout::kPanel) {
    again = pack_panels(
        view, back.mask,
        {packed.pattern(), packed.panel().tile, packed.value_type(), packed.ragged(), h.segment});
    const PanelView a = packed.panel(), b = again.panel();
    EXPECT_EQ(std::memcmp(a.starts, b.starts, static_cast<size_t>(a.panels * a.cells + 1) * 4), 0);
    EXPECT_EQ(std::memcmp(a.offsets, b.offsets, static_cast<size_t>(h.entries) * 2), 0);
    EXPECT_EQ(std::memcmp(&h, &again.header(), sizeof h), 0);
  } else {
    again = pack_stream(view, back.mask, packed.pattern(), packed.value_type(), h.segment);
    const StreamView a = packed.stream(), b = again.stream();
    EXPECT_EQ(std::memcmp(&h, &again.header(), sizeof h), 0);
    EXPECT_EQ(std::memcmp(a.indices, b.indices,
                          static_cast<size_t>(h.entries / 8) * static_cast<size_t>(a.index_bits)),
              0);
    const bool quieted = packed.value_type() == Precision::kBf16 &&  // a NaN may change its bits
                         std::ranges::any_of(back.values, [](float v) { return v != v; });
    EXPECT_TRUE(quieted || same_bytes(again, packed));
  }
  return false;
}

TEST(Corrupted, EveryByteOfHeaderAndIndices) {
  size_t refused = 0, tried = 0;
  for (const PackedMatrix& packed : packs_to_break()) {
    const bool stream = packed.layout() == PackLayout::kStream;
    const auto* values =
        static_cast<const std::byte*>(stream ? packed.stream().values : packed.panel().values);
    const size_t end = static_cast<size_t>(values - packed.bytes().data());
    std::vector<std::byte> bytes(packed.bytes().begin(), packed.bytes().end());
    for (size_t i = 0; i < std::min(end, bytes.size()); ++i) {
      for (const int flip : {0x01, 0x02, 0x04, 0x10, 0x40, 0x80, 0xff}) {
        bytes[i] ^= static_cast<std::byte>(flip);
        ++tried;
        refused += refused_or_sound(bytes) ? 1 : 0;
        bytes[i] ^= static_cast<std::byte>(flip);
      }
    }
  }
  EXPECT_GT(refused, tried * 8 / 10) << "of " << tried;
}

TEST(Corrupted, EveryLength) {
  for (const PackedMatrix& packed : packs_to_break()) {
    std::vector<std::byte> bytes(packed.bytes().begin(), packed.bytes().end());
    for (size_t size = 0; size < bytes.size(); ++size) {
      // Of its own size, so that a read past the end is seen.
      const std::vector<std::byte> cut(bytes.begin(), bytes.begin() + static_cast<int64_t>(size));
      EXPECT_TRUE(refused_or_sound(cut)) << size << " of " << bytes.size();
    }
    bytes.push_back(std::byte{0});
    EXPECT_TRUE(refused_or_sound(bytes));
  }
}

TEST(Corrupted, AtRandom) {
  const Rng rng(test_seed(), 55);
  uint64_t draws = 0;
  const auto below = [&](uint64_t limit) { return rng.words(draws++)[0] % limit; };
  for (const PackedMatrix& packed : packs_to_break()) {
    const std::vector<std::byte> good(packed.bytes().begin(), packed.bytes().end());
    for (int round = 0; round < 200; ++round) {
      std::vector<std::byte> bytes = good;
      const uint64_t changes = 1 + below(4);
      for (uint64_t i = 0; i < changes; ++i) {
        const size_t at = below(3) == 0 ? below(bytes.size()) : below(128);
        // Small numbers and extreme ones get further into the checks than random ones.
        const uint64_t pick = below(4);
        bytes[at] = static_cast<std::byte>(pick == 0 ? below(256) : pick == 1 ? below(8) : 255);
      }
      if (below(2) == 0) {  // whole fields
        const size_t at = 32 + 8 * below(4);
        const int64_t extremes[] = {-1, 0, 1, 17, int64_t{1} << 31, int64_t{1} << 62, INT64_MAX};
        std::memcpy(bytes.data() + at, &extremes[below(7)], 8);
      }
      refused_or_sound(bytes);
    }
  }
}

TEST(Corrupted, StreamSlotsOneByOne) {
  const Pattern pattern(2, 4);
  Matrix matrix({17, 6}, 8);
  Mask mask = largest(matrix, pattern);
  const auto broken = [&](int64_t slot, int row, int index, float value) {
    const PackedMatrix packed = pack_stream(matrix.view(), mask, pattern, Precision::kFp32);
    std::vector<std::byte> bytes(packed.bytes().begin(), packed.bytes().end());
    const StreamView view = packed.stream();
    const size_t bit = static_cast<size_t>(row * view.index_bits);
    const auto at = [&](const void* part) {
      return static_cast<size_t>(static_cast<const std::byte*>(part) - packed.bytes().data());
    };
    auto& byte =
        bytes[at(view.indices) + static_cast<size_t>(slot * 2 * view.index_bits) + bit / 8];
    const int ones = (1 << view.index_bits) - 1;
    byte = static_cast<std::byte>((static_cast<int>(byte) & ~(ones << bit % 8)) | index << bit % 8);
    std::memcpy(bytes.data() + at(view.values) + static_cast<size_t>(slot * 16 + row) * 4, &value,
                4);
    return message_of([&] { PackedMatrix::from_bytes(bytes); });
  };
  const auto set_row = [&](int64_t row, std::vector<int64_t> kept) {
    for (int64_t c = 0; c < 6; ++c) mask.set(row, c, std::ranges::count(kept, c) > 0);
  };
  // Slots 0 and 1 are those of columns 0 to 3, 2 and 3 those of the short group. Full: two bits.
  for (int64_t r = 0; r < 17; ++r) set_row(r, {1, 2, 4, 5});
  EXPECT_EQ(broken(0, 5, 0, 1.0f), "(no Error)");
  EXPECT_TRUE(contains(broken(0, 5, 2, 1.0f), "row 5, columns 0 to 3: index 2 of slot 1"));
  EXPECT_TRUE(contains(broken(0, 5, 3, 1.0f), "out of order"));
  EXPECT_TRUE(contains(broken(1, 5, 0, 1.0f), "out of order"));
  EXPECT_TRUE(contains(broken(3, 5, 3, 0.0f), "row 5, columns 4 to 5"));  // past the short group
  EXPECT_TRUE(contains(broken(2, 5, 2, 0.0f), "row 5, columns 4 to 5"));  // unused, then used
  EXPECT_TRUE(contains(broken(3, 5, 2, 0.0f), "index bits"));  // unused: not full any more
  // The second block has one row; the others hold the slot's number, or the width, and zero.
  EXPECT_EQ(broken(4, 9, 0, 0.0f), "(no Error)");
  EXPECT_TRUE(contains(broken(4, 9, 1, 0.0f), "row 25"));
  EXPECT_TRUE(contains(broken(4, 9, 0, -0.0f), "row 25"));
  EXPECT_TRUE(contains(broken(6, 9, 1, 0.0f), "row 25"));
  EXPECT_TRUE(contains(broken(6, 9, 2, 1.0f), "row 25"));
  EXPECT_EQ(broken(6, 9, 2, 0.0f), "(no Error)");

  set_row(5, {3});  // not full: four bits, and 4 marks an unused slot
  EXPECT_EQ(broken(1, 5, 4, 0.0f), "(no Error)");
  EXPECT_TRUE(contains(broken(1, 5, 4, -0.0f), "row 5"));
  EXPECT_TRUE(contains(broken(1, 5, 4, 1.0f), "row 5"));
  EXPECT_TRUE(contains(broken(1, 5, 5, 0.0f), "row 5"));
  EXPECT_TRUE(contains(broken(1, 5, 15, 0.0f), "row 5"));
  EXPECT_TRUE(contains(broken(1, 5, 3, 1.0f), "row 5"));
  EXPECT_TRUE(contains(broken(0, 6, 4, 0.0f), "row 6"));  // unused, then used
  EXPECT_TRUE(contains(broken(4, 9, 0, 0.0f), "row 25"));
  EXPECT_EQ(broken(4, 9, 4, 0.0f), "(no Error)");
}

TEST(TapMajor, PutsTheChannelsOfATapSideBySide) {
  const WeightShape shape{2, 3, 4};
  std::vector<float> weights(24);
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>(i);
  Mask mask(2, 12);
  mask.set(1, 2 * 4 + 3, true);
  const TapMajor result = tap_major(weights.data(), mask, shape);
  EXPECT_EQ((std::vector<float>(result.weights.begin(), result.weights.begin() + 12)),
            (std::vector<float>{0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11}));
  EXPECT_TRUE(result.mask.at(1, 3 * 3 + 2));
  EXPECT_EQ(result.mask.count(), 1);
}

TEST(TapMajor, AgreesBitByBitWithItsDefinitionAndGoesBack) {
  Rng rng(7);
  for (const int64_t taps : {0, 1, 2, 9, 25, 63, 64, 65}) {
    for (const int64_t ins : {0, 1, 5, 63, 64, 65, 130}) {
      const WeightShape shape{19, ins, taps};  // more rows than one thread takes at once
      std::vector<float> weights(static_cast<size_t>(shape.outs * shape.cols()));
      Mask mask(shape.outs, shape.cols());
      for (size_t i = 0; i < weights.size(); ++i) {
        weights[i] = static_cast<float>(i);
        const auto at = static_cast<int64_t>(i);
        mask.set(at / shape.cols(), at % shape.cols(), rng.below(i, 2) == 0);
      }
      const TapMajor turned = tap_major(weights.data(), mask, shape);
      for (int64_t o = 0; o < shape.outs; ++o) {
        for (int64_t i = 0; i < ins; ++i) {
          for (int64_t t = 0; t < taps; ++t) {
            const int64_t from = i * taps + t, to = t * ins + i;
            ASSERT_EQ(turned.mask.at(o, to), mask.at(o, from)) << ins << " x " << taps;
            ASSERT_EQ(turned.weights[static_cast<size_t>(o * shape.cols() + to)],
                      weights[static_cast<size_t>(o * shape.cols() + from)]);
          }
        }
      }
      EXPECT_EQ(tensor_order(turned.mask, shape), mask);
      EXPECT_EQ(tensor_order(turned.weights, shape), weights);
    }
  }
}

}  // namespace
}  // namespace weft
