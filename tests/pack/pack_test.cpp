// Both layouts: by magnitude, with threads, byte for byte, and with a promise that is not kept.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "tests/pack/matrices.h"
#include "tests/support.h"
#include "tests/weights.h"
#include "weft/core/parallel.h"
#include "weft/pack/pack.h"

namespace weft::test {
namespace {

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) text += fmt::format("{:02x}", static_cast<int>(byte));
  return text;
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
    std::vector<Unpacked> unpacked;
    for (const PackedMatrix& packed : one) unpacked.push_back(unpack(packed));
    for (const int count : {2, 3}) {
      set_threads(count);
      const auto many = all();
      for (size_t i = 0; i < one.size(); ++i) {
        EXPECT_TRUE(same_bytes(one[i], many[i])) << text << ", pack " << i;
        const Unpacked back = unpack(many[i]);
        EXPECT_EQ(back.values, unpacked[i].values) << text << ", pack " << i;
        EXPECT_EQ(back.mask, unpacked[i].mask) << text << ", pack " << i;
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

}  // namespace
}  // namespace weft::test
