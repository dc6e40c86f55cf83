// The stream layout: what goes in comes out, and lies as docs/format.md says.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/pack/matrices.h"
#include "weft/pack/pack.h"

namespace weft::test {
namespace {

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

}  // namespace
}  // namespace weft::test
