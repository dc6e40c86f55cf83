// The header of a safetensors file: padding, and what is neither written nor read.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "tests/checkpoint/tensor_files.h"
#include "tests/support.h"
#include "weft/checkpoint/header.h"

namespace weft::test {
namespace {

TEST(Header, IsPaddedSoThatTheDataIsAligned) {
  for (size_t length = 0; length < 17; ++length) {
    std::vector<TensorInfo> tensors = {tensor(std::string(length, 'n'), Dtype::kF64, {1})};
    const std::string header = format_header(tensors, {});
    EXPECT_EQ(header.size() % 8, 0u) << length;
    const Header parsed = parse_header(header.substr(8), 8, "file");
    EXPECT_EQ(parsed.tensors.at(0).name, tensors[0].name);
  }
}

TEST(Header, OfNoTensorsIsLegal) {
  std::vector<TensorInfo> none;
  const std::string header = format_header(none, {});
  EXPECT_EQ(header, safetensors("{}      ", ""));
  EXPECT_TRUE(parse_header("{}", 0, "file").tensors.empty());
}

TEST(Header, RefusesToWriteWhatItWouldNotRead) {
  const auto refused = [](std::vector<TensorInfo> tensors, const Metadata& metadata) {
    return message_of([&] { format_header(tensors, metadata); });
  };
  const TensorInfo a = tensor("a", Dtype::kF32, {2});
  EXPECT_TRUE(contains(refused({a, a}, {}), "'a'"));
  EXPECT_TRUE(contains(refused({tensor("__metadata__", Dtype::kF32, {2})}, {}), "__metadata__"));
  EXPECT_TRUE(contains(refused({tensor("\xff", Dtype::kF32, {2})}, {}), "UTF-8"));
  EXPECT_TRUE(contains(refused({a}, {{"key", "\xc3"}}), "UTF-8"));
  EXPECT_TRUE(contains(refused({a}, {{"\xc3", "text"}}), "UTF-8"));
  EXPECT_TRUE(contains(refused({tensor("b", Dtype::kF4, {3})}, {}), "whole byte"));
  const int64_t kLargest = std::numeric_limits<int64_t>::max();
  EXPECT_TRUE(contains(refused({tensor("b", Dtype::kF32, {kLargest, 4})}, {}), "overflows"));
  EXPECT_NE(refused({tensor("b", Dtype::kF32, {-1, 0})}, {}), "(no Error)");
  EXPECT_NE(refused({tensor("b", Dtype::kF32, {-2, -2})}, {}), "(no Error)");
}

TEST(Header, CountsTheElementsOfEmptyTensorsOfVastShape) {
  const int64_t vast = int64_t{1} << 62;
  EXPECT_EQ(tensor("a", Dtype::kF32, {vast, 2, 0}).elements(), 0);
  EXPECT_EQ(tensor("a", Dtype::kF32, {0, vast, 4}).elements(), 0);
  EXPECT_EQ(tensor("a", Dtype::kF32, {}).elements(), 1);
  EXPECT_EQ(tensor("a", Dtype::kF32, {3, 5}).elements(), 15);
}

TEST(Header, NullIsNoMetadata) {
  const Header header = parse_header(
      R"({"__metadata__":null,"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 2, "file");
  EXPECT_TRUE(header.metadata.empty());
  ASSERT_EQ(header.tensors.size(), 1u);
  EXPECT_EQ(header.tensors[0].name, "w");
}

}  // namespace
}  // namespace weft::test
