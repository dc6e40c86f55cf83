// Packed matrices from bytes: no buffer from outside is believed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "tests/pack/matrices.h"
#include "tests/support.h"
#include "weft/core/error.h"
#include "weft/core/rng.h"
#include "weft/pack/pack.h"
#include "weft/pack/packed_matrix.h"

namespace weft::test {
namespace {

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

}  // namespace
}  // namespace weft::test
