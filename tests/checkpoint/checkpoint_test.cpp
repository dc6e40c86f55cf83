// weft/checkpoint: what is written is read back bit for bit, in one file and in shards; what is not
// committed leaves no trace. Files that must be refused are in malformed_test.cpp.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "tests/scratch_folder.h"
#include "tests/support.h"
#include "weft/checkpoint/checkpoint.h"
#include "weft/checkpoint/dtype.h"
#include "weft/checkpoint/header.h"
#include "weft/checkpoint/safetensors.h"
#include "weft/checkpoint/select.h"
#include "weft/checkpoint/sparsity.h"
#include "weft/core/atomic_file.h"
#include "weft/core/error.h"
#include "weft/core/json.h"
#include "weft/core/rng.h"

namespace weft {
namespace {

using test::contains;
using test::contents;
using test::message_of;
using test::names_in;
using test::put;
using test::ScratchFolder;

namespace fs = std::filesystem;
using Bytes = std::vector<std::byte>;

// A safetensors file by hand, independent of the writer under test.
std::string safetensors(const std::string& json, const std::string& data) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(json.size() >> (8 * i));
  return file + json + data;
}

// Bytes that differ from place to place and from tensor to tensor.
Bytes random_bytes(size_t count, uint64_t stream) {
  Bytes bytes(count);
  const Rng rng(7, stream);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(rng.bits(i));
  return bytes;
}

std::string text_of(const Bytes& bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Bytes read_all(const SafetensorsReader& file, const TensorInfo& tensor) {
  Bytes bytes(tensor.bytes());
  file.read(tensor, 0, bytes);
  return bytes;
}

Bytes read_all(const Checkpoint& checkpoint, const ShardedTensor& tensor) {
  Bytes bytes(tensor.info.bytes());
  checkpoint.read(tensor, 0, bytes);
  return bytes;
}

std::map<std::string, Bytes> read_all(const Checkpoint& checkpoint) {
  std::map<std::string, Bytes> tensors;
  for (const ShardedTensor& tensor : checkpoint.tensors()) {
    tensors[tensor.info.name] = read_all(checkpoint, tensor);
  }
  return tensors;
}

const TensorInfo& find(const Header& header, std::string_view name) {
  for (const TensorInfo& tensor : header.tensors) {
    if (tensor.name == name) return tensor;
  }
  throw std::runtime_error("no tensor " + std::string(name));
}

const ShardedTensor& find(const Checkpoint& checkpoint, std::string_view name) {
  for (const ShardedTensor& tensor : checkpoint.tensors()) {
    if (tensor.info.name == name) return tensor;
  }
  throw std::runtime_error("no tensor " + std::string(name));
}

TensorInfo tensor(std::string name, Dtype dtype, std::vector<int64_t> shape) {
  TensorInfo info;
  info.name = std::move(name);
  info.dtype = dtype;
  info.shape = std::move(shape);
  return info;
}

std::vector<Dtype> all_dtypes() {
  std::vector<Dtype> all;
  for (int i = 0; i <= static_cast<int>(Dtype::kC64); ++i) all.push_back(static_cast<Dtype>(i));
  return all;
}

// A limit on the size of files stands in for a full disk.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) : handler_(::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    struct rlimit tight = before_;
    tight.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &tight);
  }
  ~FullDisk() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, handler_);
  }

 private:
  sighandler_t handler_;
  struct rlimit before_ {};
};

// ---- Dtype

TEST(Dtype, NamesAreThoseOfTheFormat) {
  std::set<std::string_view> names;
  for (const Dtype dtype : all_dtypes()) {
    EXPECT_EQ(parse_dtype(dtype_name(dtype)), dtype) << dtype_name(dtype);
    names.insert(dtype_name(dtype));
  }
  EXPECT_EQ(names, (std::set<std::string_view>{
                       "BOOL",    "U8",      "I8",      "U16",         "I16",         "U32",
                       "I32",     "U64",     "I64",     "F4",          "F6_E2M3",     "F6_E3M2",
                       "F8_E8M0", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F16",
                       "BF16",    "F32",     "F64",     "C64"}));
  for (const char* name : {"", "f32", "F33", "F32 ", "FLOAT"}) {
    EXPECT_EQ(parse_dtype(name), std::nullopt) << name;
  }
}

TEST(Dtype, WeightsAreTheFourFloatingPointTypes) {
  for (const Dtype dtype : all_dtypes()) {
    const bool expected = dtype == Dtype::kF32 || dtype == Dtype::kF16 || dtype == Dtype::kBf16 ||
                          dtype == Dtype::kF64;
    EXPECT_EQ(is_weight_dtype(dtype), expected) << dtype_name(dtype);
  }
}

// The value of a 16-bit float from the definition, in double, where all of them are exact.
double value_of(uint16_t code, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits;
  const int exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = code & ((1 << mantissa_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double sign = (code & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
}

TEST(Dtype, WidensEveryCodeOfF16AndBf16Exactly) {
  std::vector<uint16_t> codes(65536);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint16_t>(i);
  std::vector<float> wide(codes.size());
  for (const auto& [dtype, exponent_bits] : {std::pair(Dtype::kF16, 5), {Dtype::kBf16, 8}}) {
    widen_weights(dtype, std::as_bytes(std::span(codes)), wide);
    for (size_t i = 0; i < codes.size(); ++i) {
      const double expected = value_of(codes[i], exponent_bits);
      const auto code = static_cast<unsigned>(codes[i]);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(wide[i])) << dtype_name(dtype) << fmt::format(" {:#06x}", code);
      } else {
        ASSERT_EQ(double{wide[i]}, expected) << dtype_name(dtype) << fmt::format(" {:#06x}", code);
      }
      ASSERT_EQ(std::signbit(wide[i]), code >= 0x8000) << fmt::format("{:#06x}", code);
    }
  }
}

// Between two neighbours the nearer one, half-way the even one, beyond the last infinity.
TEST(Dtype, RoundsToTheNearestF16AndBf16) {
  for (const Dtype dtype : {Dtype::kF16, Dtype::kBf16}) {
    const uint16_t infinite = dtype == Dtype::kF16 ? 0x7c00 : 0x7f80;
    const auto value_of = [&](uint16_t code) {
      float value = 0;
      widen_weights(dtype, std::as_bytes(std::span(&code, 1)), std::span(&value, 1));
      return static_cast<double>(value);
    };
    const auto rounded = [&](double value) {
      uint16_t code = 0;
      round_weights(std::span(&value, 1), dtype, std::as_writable_bytes(std::span(&code, 1)));
      return code;
    };
    for (uint16_t code = 0; code + 1 < infinite; ++code) {
      const double low = value_of(code), high = value_of(static_cast<uint16_t>(code + 1));
      ASSERT_EQ(rounded(low), code);
      ASSERT_EQ(rounded(-low), code | 0x8000);
      ASSERT_EQ(rounded(low + 0.49 * (high - low)), code);
      ASSERT_EQ(rounded(low + 0.51 * (high - low)), code + 1);
      ASSERT_EQ(rounded(low + 0.5 * (high - low)), code % 2 == 0 ? code : code + 1);
    }
    const double last = value_of(static_cast<uint16_t>(infinite - 1));
    const double before = value_of(static_cast<uint16_t>(infinite - 2));
    EXPECT_EQ(rounded(last), infinite - 1);
    EXPECT_EQ(rounded(last + 0.49 * (last - before)), infinite - 1);
    EXPECT_EQ(rounded(last + 0.51 * (last - before)), infinite);
    EXPECT_EQ(rounded(-1e300), infinite | 0x8000);
    EXPECT_TRUE(std::isnan(value_of(rounded(std::nan("")))));
  }
}

TEST(Dtype, F32PassesBitForBit) {
  const std::vector<uint32_t> codes = {0,          0x80000000, 1,          0x3f800000,
                                       0x7f800000, 0x7fa00001, 0xffc00000, 0xff7fffff};
  std::vector<float> wide(codes.size());
  widen_weights(Dtype::kF32, std::as_bytes(std::span(codes)), wide);
  EXPECT_EQ(std::memcmp(wide.data(), codes.data(), codes.size() * 4), 0);
}

TEST(Dtype, WideningRefusesWrongSizesAndTypes) {
  std::vector<float> wide(4);
  const Bytes bytes(64);
  const std::span<const std::byte> all(bytes);
  EXPECT_THROW(widen_weights(Dtype::kF32, all.first(15), wide), Error);
  EXPECT_THROW(widen_weights(Dtype::kF16, all.first(16), wide), Error);
  EXPECT_TRUE(
      contains(message_of([&] { widen_weights(Dtype::kF64, all.first(32), wide); }), "F64"));
  EXPECT_TRUE(
      contains(message_of([&] { widen_weights(Dtype::kI32, all.first(16), wide); }), "I32"));
  widen_weights(Dtype::kF32, {}, {});
}

TEST(Dtype, WeightsComeInTheTypeThatHoldsThem) {
  const std::vector<double> doubles = {1.0, -0x1p-1000, 0x1.123456789abcdp3};
  EXPECT_TRUE(with_weights(Dtype::kF64, std::as_bytes(std::span(doubles)), [&](auto weights) {
    return std::equal(weights.begin(), weights.end(), doubles.begin(), doubles.end());
  }));
  const std::vector<uint16_t> halves = {0x3c00, 0xc000};
  EXPECT_TRUE(with_weights(Dtype::kF16, std::as_bytes(std::span(halves)), [&](auto weights) {
    return weights.size() == 2 && weights[0] == 1 && weights[1] == -2;
  }));
  const Bytes odd(12);
  for (const Dtype dtype : {Dtype::kF64, Dtype::kI64, Dtype::kF4}) {
    EXPECT_THROW(with_weights(dtype, odd, [](auto weights) { return weights.size(); }), Error)
        << dtype_name(dtype);
  }
}

struct ZeroCase {
  Dtype dtype;
  std::vector<uint64_t> zeros;
  std::vector<uint64_t> others;
};

const std::vector<ZeroCase>& zero_cases() {
  static const std::vector<ZeroCase> cases = {
      {Dtype::kBool, {0}, {1}},
      {Dtype::kU8, {0}, {1, 0x80, 0xff}},
      {Dtype::kI8, {0}, {1, 0x80, 0xff}},
      {Dtype::kU16, {0}, {1, 0x8000}},
      {Dtype::kI16, {0}, {1, 0x8000}},
      {Dtype::kU32, {0}, {1, 0x80000000}},
      {Dtype::kI32, {0}, {1, 0x80000000}},
      {Dtype::kU64, {0}, {1, uint64_t{1} << 63}},
      {Dtype::kI64, {0}, {1, uint64_t{1} << 63}},
      {Dtype::kF8E4M3, {0, 0x80}, {1, 0x81, 0x7f, 0xff}},        // 0x7f: NaN
      {Dtype::kF8E5M2, {0, 0x80}, {1, 0x81, 0x7c, 0x7f}},        // infinity, NaN
      {Dtype::kF8E4M3Fnuz, {0}, {1, 0x80, 0x81}},                // 0x80: the one NaN
      {Dtype::kF8E5M2Fnuz, {0}, {1, 0x80, 0x81}},                //
      {Dtype::kF16, {0, 0x8000}, {1, 0x8001, 0x7c00, 0x7e00}},   // subnormals, infinity, NaN
      {Dtype::kBf16, {0, 0x8000}, {1, 0x8001, 0x7f80, 0x7fc0}},  //
      {Dtype::kF32, {0, 0x80000000}, {1, 0x80000001, 0x7f800000, 0x7fc00000, 0xffc00000}},
      {Dtype::kF64, {0, uint64_t{1} << 63}, {1, 0x7ff8000000000000}},
      {Dtype::kC64,
       {0, 0x80000000, uint64_t{1} << 63, 0x8000000080000000},
       {1, uint64_t{1} << 32, 0x7fc0000080000000}}};
  return cases;
}

void put_element(Bytes& bytes, size_t place, size_t width, uint64_t code) {
  std::memcpy(bytes.data() + place * width, &code, width);  // little-endian, as the format is
}

TEST(Dtype, MinusZeroIsZeroAndNaNIsNot) {
  std::set<Dtype> covered;
  for (const ZeroCase& row : zero_cases()) {
    covered.insert(row.dtype);
    const auto width = static_cast<size_t>(dtype_bits(row.dtype) / 8);
    for (const int64_t cols : {1, 2, 63, 64, 65, 129}) {
      SCOPED_TRACE(fmt::format("{} 3 x {}", dtype_name(row.dtype), cols));
      Bytes bytes(static_cast<size_t>(3 * cols) * width);
      Mask expected(3, cols);
      size_t zeros = 0, others = 0;  // used so far, so that every code has its turn
      for (int64_t i = 0; i < 3 * cols; ++i) {
        const bool zero = i % 3 == 1;
        const uint64_t code =
            zero ? row.zeros[zeros++ % row.zeros.size()] : row.others[others++ % row.others.size()];
        put_element(bytes, static_cast<size_t>(i), width, code);
        expected.set(i / cols, i % cols, !zero);
      }
      ASSERT_TRUE(nonzero_mask(row.dtype, bytes, 3, cols) == expected);
    }
  }
  for (const Dtype dtype : all_dtypes()) {
    EXPECT_EQ(has_zero(dtype), covered.contains(dtype)) << dtype_name(dtype);
    if (has_zero(dtype)) continue;
    EXPECT_THROW(nonzero_mask(dtype, Bytes(12), 1, 12), Error) << dtype_name(dtype);
  }
}

TEST(Dtype, NonzeroMaskChecksTheSize) {
  EXPECT_EQ(nonzero_mask(Dtype::kF32, {}, 0, 5), Mask(0, 5));
  EXPECT_EQ(nonzero_mask(Dtype::kF32, {}, 5, 0), Mask(5, 0));
  EXPECT_THROW(nonzero_mask(Dtype::kF32, Bytes(12), 2, 2), Error);
  EXPECT_THROW(nonzero_mask(Dtype::kF32, Bytes(16), -2, -2), Error);
}

TEST(Dtype, ZeroOutsideKeepsTheKeptBitForBit) {
  for (const Dtype dtype : all_dtypes()) {
    if (dtype_bits(dtype) < 8) {
      Bytes bytes(static_cast<size_t>(dtype_bits(dtype)));
      EXPECT_THROW(zero_outside(Mask(2, 4), dtype, bytes), Error) << dtype_name(dtype);
      continue;
    }
    const auto width = static_cast<size_t>(dtype_bits(dtype) / 8);
    for (const int64_t cols : {0, 1, 63, 64, 65, 129}) {
      SCOPED_TRACE(fmt::format("{} 3 x {}", dtype_name(dtype), cols));
      const Bytes before = random_bytes(static_cast<size_t>(3 * cols) * width, 1);
      const Rng rng(7, 2);
      Mask mask(3, cols);
      Bytes expected = before;
      for (int64_t i = 0; i < 3 * cols; ++i) {
        const auto place = static_cast<size_t>(i);
        mask.set(i / cols, i % cols, rng.below(place, 2) == 1);
        if (!mask.at(i / cols, i % cols)) put_element(expected, place, width, 0);
      }
      Bytes after = before;
      zero_outside(mask, dtype, after);
      ASSERT_EQ(after, expected);
    }
  }
  Bytes wrong(15);
  EXPECT_THROW(zero_outside(Mask(2, 2), Dtype::kF32, wrong), Error);
}

TEST(Dtype, MaskBytesAreOnePerWeight) {
  for (const int64_t cols : {0, 1, 63, 64, 65, 129}) {
    SCOPED_TRACE(fmt::format("3 x {}", cols));
    const Rng rng(7, 3);
    Mask mask(3, cols);
    Bytes expected(static_cast<size_t>(3 * cols));
    for (int64_t i = 0; i < 3 * cols; ++i) {
      const auto place = static_cast<size_t>(i);
      expected[place] = static_cast<std::byte>(rng.below(place, 2));
      mask.set(i / cols, i % cols, expected[place] == std::byte{1});
    }
    EXPECT_EQ(mask_bytes(mask), expected);
    EXPECT_EQ(nonzero_mask(Dtype::kU8, mask_bytes(mask), 3, cols), mask);
  }
  EXPECT_TRUE(mask_bytes(Mask()).empty());
}

// ---- Header

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

// ---- One file

TEST(Safetensors, EveryDtypeIsReadBackBitForBit) {
  const ScratchFolder folder;
  std::vector<TensorInfo> tensors;
  for (const Dtype dtype : all_dtypes()) {
    const std::string name(dtype_name(dtype));
    tensors.push_back(tensor(name + ".matrix", dtype, {4, 6}));  // 24 elements: whole bytes
    tensors.push_back(tensor(name + ".empty", dtype, {3, 0, 2}));
    if (dtype_bits(dtype) >= 8) tensors.push_back(tensor(name + ".scalar", dtype, {}));
  }
  SafetensorsWriter writer(folder / "m.safetensors", tensors, {{"format", "pt"}, {"", "\u2713\n"}});
  std::map<std::string, Bytes> written;
  for (const TensorInfo& info : tensors) {
    written[info.name] = random_bytes(tensor_bytes(info.dtype, info.shape), written.size());
    writer.write(info.name, 0, written[info.name]);
  }
  writer.commit();

  const SafetensorsReader reader(folder / "m.safetensors");
  EXPECT_EQ(reader.header().metadata, (Metadata{{"format", "pt"}, {"", "\u2713\n"}}));
  ASSERT_EQ(reader.header().tensors.size(), tensors.size());
  for (const TensorInfo& info : tensors) {
    const TensorInfo& found = find(reader.header(), info.name);
    EXPECT_EQ(found.dtype, info.dtype) << info.name;
    EXPECT_EQ(found.shape, info.shape) << info.name;
    EXPECT_EQ(read_all(reader, found), written[info.name]) << info.name;
  }
  EXPECT_EQ(names_in(folder.path()), std::set<std::string>{"m.safetensors"});
}

TEST(Safetensors, NamesMayHoldAnyText) {
  const ScratchFolder folder;
  const std::vector<std::string> names = {"",
                                          "größe.weight",
                                          "重み",
                                          "\U0001f9f5",
                                          "a \"quoted\" \\ name",
                                          "line\nend",
                                          std::string("nul\0in", 6),
                                          "\x1b[",
                                          "\x7f",
                                          "/../etc/passwd"};
  std::vector<TensorInfo> tensors;
  for (const std::string& name : names) tensors.push_back(tensor(name, Dtype::kU8, {3}));
  SafetensorsWriter writer(folder / "m.safetensors", tensors, {{"quote\"", "back\\slash\0"}});
  for (size_t i = 0; i < names.size(); ++i) writer.write(names[i], 0, random_bytes(3, i));
  writer.commit();
  const Checkpoint checkpoint = Checkpoint::open(folder / "m.safetensors");
  for (size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(checkpoint.tensors()[i].info.name, names[i]);
    EXPECT_EQ(read_all(checkpoint, checkpoint.tensors()[i]), random_bytes(3, i)) << names[i];
  }
}

TEST(Safetensors, TheJsonMayStandInAnotherOrderThanTheData) {
  const ScratchFolder folder;
  put(folder / "m.safetensors",
      safetensors(R"({"last": {"data_offsets": [4, 6], "shape": [2], "dtype": "U8"},
                     "first": {"shape": [], "dtype": "F32", "data_offsets": [0, 4]},
                     "empty": {"shape": [0], "dtype": "F32", "data_offsets": [4, 4]},
                     "__metadata__": {}})",
                  "abcdef"));
  const SafetensorsReader reader(folder / "m.safetensors");
  std::vector<std::string> order;
  for (const TensorInfo& info : reader.header().tensors) order.push_back(info.name);
  EXPECT_EQ(order, (std::vector<std::string>{"first", "empty", "last"}));
  EXPECT_EQ(text_of(read_all(reader, find(reader.header(), "last"))), "ef");
  EXPECT_EQ(text_of(read_all(reader, find(reader.header(), "first"))), "abcd");
}

TEST(Safetensors, PiecesAreReadAndWrittenInAnyOrder) {
  const ScratchFolder folder;
  const Bytes bytes = random_bytes(1000, 0);
  SafetensorsWriter writer(folder / "m.safetensors",
                           {tensor("before", Dtype::kU8, {5}), tensor("w", Dtype::kU8, {1000})},
                           {});
  writer.write("w", 300, std::span(bytes).subspan(300));
  writer.write("before", 0, random_bytes(5, 1));
  writer.write("w", 0, std::span(bytes).first(300));
  writer.write("w", 1000, {});
  writer.commit();
  const SafetensorsReader reader(folder / "m.safetensors");
  const TensorInfo& info = find(reader.header(), "w");
  for (const size_t offset : {0, 1, 299, 999, 1000}) {
    for (const size_t count : {0, 1, 500, 1000}) {
      Bytes piece(count);
      if (offset + count <= 1000) {
        reader.read(info, offset, piece);
        EXPECT_TRUE(
            std::equal(piece.begin(), piece.end(), bytes.begin() + static_cast<long>(offset)));
      } else {
        const std::string message = message_of([&] { reader.read(info, offset, piece); });
        EXPECT_TRUE(contains(message, "'w'") && contains(message, "m.safetensors")) << message;
      }
    }
  }
  Bytes one(1);
  EXPECT_THROW(reader.read(info, ~uint64_t{0}, one), Error);  // offset + 1 overflows
}

TEST(Safetensors, AFileThatShrinksWhileItIsReadIsAnErrorThatNamesIt) {
  const ScratchFolder folder;
  const fs::path path = folder / "m.safetensors";
  SafetensorsWriter writer(path, {tensor("w", Dtype::kU8, {100'000})}, {});
  writer.write("w", 0, random_bytes(100'000, 0));
  writer.commit();
  const SafetensorsReader reader(path);
  fs::resize_file(path, fs::file_size(path) / 2);
  const std::string message = message_of([&] { read_all(reader, reader.header().tensors[0]); });
  EXPECT_TRUE(contains(message, path.string())) << message;
  EXPECT_TRUE(contains(message, "'w'")) << message;
  EXPECT_TRUE(contains(message, "shrank")) << message;
  Bytes still_there(1000);
  reader.read(reader.header().tensors[0], 0, still_there);
}

TEST(Safetensors, BytesThatWereNeverWrittenAreAnErrorAtCommit) {
  const ScratchFolder folder;
  {
    SafetensorsWriter writer(folder / "m.safetensors",
                             {tensor("a", Dtype::kU8, {4}), tensor("w", Dtype::kU8, {100})}, {});
    writer.write("a", 0, Bytes(4));
    writer.write("w", 0, Bytes(99));
    const std::string message = message_of([&] { writer.commit(); });
    EXPECT_TRUE(contains(message, "m.safetensors")) << message;
    EXPECT_TRUE(contains(message, "'w': 99 of 100 bytes")) << message;
  }
  EXPECT_TRUE(names_in(folder.path()).empty());
}

TEST(Safetensors, WriterRefusesUnknownTensorsAndBytesThatDoNotFit) {
  const ScratchFolder folder;
  SafetensorsWriter writer(folder / "m.safetensors", {tensor("w", Dtype::kU8, {100})}, {});
  EXPECT_TRUE(contains(message_of([&] { writer.write("v\n", 0, {}); }), "no tensor 'v\\n'"));
  EXPECT_TRUE(contains(message_of([&] { writer.write("w", 0, Bytes(101)); }), "'w' has 100 bytes"));
  EXPECT_THROW(writer.write("w", 100, Bytes(1)), Error);
  EXPECT_THROW(writer.write("w", ~uint64_t{0}, Bytes(2)), Error);
}

TEST(Safetensors, ARefusedHeaderLeavesNoFile) {
  const ScratchFolder folder;
  const TensorInfo w = tensor("w", Dtype::kU8, {1});
  const std::string message = message_of([&] {
    const SafetensorsWriter writer(folder / "m.safetensors", {w, w}, {});
  });
  EXPECT_TRUE(contains(message, "m.safetensors")) << message;
  EXPECT_TRUE(names_in(folder.path()).empty());
}

// ---- Bands

Checkpoint one_tensor(const fs::path& path, Dtype dtype, const std::vector<int64_t>& shape) {
  SafetensorsWriter writer(path, {tensor("before", Dtype::kU8, {3}), tensor("w", dtype, shape)},
                           {});
  writer.write("before", 0, Bytes(3));
  writer.write("w", 0, random_bytes(tensor_bytes(dtype, shape), 5));
  writer.commit();
  return Checkpoint::open(path);
}

TEST(Bands, CoverEveryByteOnceInMultiplesOfRows) {
  const ScratchFolder folder;
  const uint64_t row_bytes = 2 * 3 * 5;
  for (const int64_t rows : {0, 1, 3, 4, 5, 8, 9, 17}) {
    const Checkpoint checkpoint = one_tensor(folder / "m.safetensors", Dtype::kBf16, {rows, 3, 5});
    const ShardedTensor& w = find(checkpoint, "w");
    for (const int64_t multiple : {1, 4, 8, 100}) {
      for (const uint64_t target :
           {uint64_t{1}, 4 * row_bytes - 1, 4 * row_bytes, 10 * row_bytes, uint64_t{32} << 20}) {
        SCOPED_TRACE(fmt::format("rows {} multiple {} target {}", rows, multiple, target));
        int64_t reached = 0;
        Bytes seen;
        for_each_band(
            checkpoint, w, multiple,
            [&](const Band& band) {
              EXPECT_EQ(band.first_row, reached);
              EXPECT_EQ(band.offset, seen.size());
              EXPECT_EQ(band.bytes.size(), static_cast<uint64_t>(band.rows) * row_bytes);
              reached += band.rows;
              EXPECT_TRUE(band.rows % multiple == 0 || reached == rows) << band.rows;
              EXPECT_LE(band.bytes.size(),
                        std::max(target, static_cast<uint64_t>(multiple) * row_bytes));
              seen.insert(seen.end(), band.bytes.begin(), band.bytes.end());
            },
            target);
        EXPECT_EQ(reached, rows);
        EXPECT_EQ(seen, read_all(checkpoint, w));
      }
    }
  }
}

TEST(Bands, RefuseTensorsThatHaveNoWholeRows) {
  const ScratchFolder folder;
  const auto refused = [&](Dtype dtype, const std::vector<int64_t>& shape, int64_t multiple) {
    const Checkpoint checkpoint = one_tensor(folder / "m.safetensors", dtype, shape);
    return message_of(
        [&] { for_each_band(checkpoint, find(checkpoint, "w"), multiple, [](const Band&) {}); });
  };
  EXPECT_TRUE(contains(refused(Dtype::kF32, {}, 1), "'w'"));     // a scalar has no rows
  EXPECT_TRUE(contains(refused(Dtype::kF4, {2, 3}, 1), "'w'"));  // rows of a byte and a half
  EXPECT_NE(refused(Dtype::kF32, {2, 3}, 0), "(no Error)");
  EXPECT_EQ(refused(Dtype::kF4, {3, 2}, 1), "(no Error)");
  EXPECT_EQ(refused(Dtype::kF32, {2, 3}, std::numeric_limits<int64_t>::max()), "(no Error)");
}

// ---- Sharded checkpoints

struct Model {
  std::map<std::string, Bytes> tensors;
  std::map<std::string, std::string> shard_of;
  Json metadata;
};

const char* const kIndexName = "model.safetensors.index.json";

// Three shards and an index, by hand.
Model write_sharded(const fs::path& folder) {
  Model model;
  fs::create_directories(folder);
  for (int shard = 0; shard < 3; ++shard) {
    const std::string file = fmt::format("model-0000{}-of-00003.safetensors", shard + 1);
    std::string json = fmt::format(R"({{"__metadata__":{{"format":"pt","shard":"{}"}})", shard);
    std::string data;
    for (int i = 0; i <= shard; ++i) {
      const std::string name = fmt::format("layers.{}.{}.weight", i, shard);
      const Bytes bytes = random_bytes(8 * 4 * 4, static_cast<uint64_t>(10 * shard + i));
      json += fmt::format(R"(,"{}":{{"dtype":"F32","shape":[8,4],"data_offsets":[{},{}]}})", name,
                          data.size(), data.size() + bytes.size());
      data += text_of(bytes);
      model.tensors[name] = bytes;
      model.shard_of[name] = file;
    }
    put(folder / file, safetensors(json + "}", data));
  }
  model.metadata = {{"total_size", 6 * 128},
                    {"note", {{"z", nullptr}, {"a", {1.5, true, "\u2713"}}}}};
  put(folder / kIndexName,
      Json{{"metadata", model.metadata}, {"weight_map", model.shard_of}}.dump(2));
  return model;
}

std::set<std::string> file_names(const std::vector<fs::path>& paths) {
  std::set<std::string> names;
  for (const fs::path& path : paths) names.insert(path.filename().string());
  EXPECT_EQ(names.size(), paths.size());
  return names;
}

TEST(Sharded, OpensByIndexAndByFolder) {
  const ScratchFolder folder;
  const Model model = write_sharded(folder / "in");
  for (const fs::path& path : {folder / "in", folder / "in/", folder / "in" / kIndexName}) {
    const Checkpoint checkpoint = Checkpoint::open(path);
    EXPECT_TRUE(checkpoint.sharded());
    EXPECT_EQ(checkpoint.shard_count(), 3u);
    EXPECT_EQ(checkpoint.bytes(), 6u * 128);
    EXPECT_EQ(read_all(checkpoint), model.tensors);
    EXPECT_EQ(file_names(checkpoint.paths()), names_in(folder / "in"));
    for (const fs::path& file : checkpoint.paths()) EXPECT_TRUE(fs::exists(file)) << file;
    for (const ShardedTensor& found : checkpoint.tensors()) {
      EXPECT_EQ(fs::path(checkpoint.file_of(found)).filename(), model.shard_of.at(found.info.name));
    }
  }
}

TEST(Sharded, AFolderWithOneFileOpensThatFile) {
  const ScratchFolder folder;
  write_sharded(folder / "in");
  fs::remove(folder / "in" / kIndexName);
  const std::string several = message_of([&] { Checkpoint::open(folder / "in"); });
  EXPECT_TRUE(contains(several, "3 files end in .safetensors: name one of them")) << several;
  fs::remove(folder / "in/model-00001-of-00003.safetensors");
  fs::remove(folder / "in/model-00003-of-00003.safetensors");
  put(folder / "in/.hidden.safetensors", "an unfinished file is not a candidate");
  const Checkpoint checkpoint = Checkpoint::open(folder / "in");
  EXPECT_FALSE(checkpoint.sharded());
  EXPECT_EQ(checkpoint.tensors().size(), 2u);
  fs::remove(folder / "in/model-00002-of-00003.safetensors");
  const std::string none = message_of([&] { Checkpoint::open(folder / "in"); });
  EXPECT_TRUE(contains(none, "no .safetensors file")) << none;
}

TEST(Sharded, AnIndexOfAnotherFormatIsNoCandidate) {
  const ScratchFolder folder;
  const Model model = write_sharded(folder / "in");
  put(folder / "in/pytorch_model.bin.index.json", R"({"weight_map":{"w":"pytorch_model.bin"}})");
  EXPECT_EQ(read_all(Checkpoint::open(folder / "in")), model.tensors);
  put(folder / "in/other.safetensors.index.json", R"({"weight_map":{}})");
  const std::string several = message_of([&] { Checkpoint::open(folder / "in"); });
  EXPECT_TRUE(contains(several, "2 files end in .safetensors.index.json: name one of them"))
      << several;

  fs::create_directory(folder / "one");
  one_tensor(folder / "one/m.safetensors", Dtype::kF32, {2});
  put(folder / "one/pytorch_model.bin.index.json", R"({"weight_map":{"w":"pytorch_model.bin"}})");
  const Checkpoint one = Checkpoint::open(folder / "one");
  EXPECT_FALSE(one.sharded());
  EXPECT_EQ(one.paths(), std::vector<fs::path>{folder / "one/m.safetensors"});
}

// Copies every tensor and leaves the commit to the caller.
void copy_all(CheckpointWriter& writer, const Checkpoint& from) {
  for (const ShardedTensor& each : from.tensors()) writer.copy(from, each);
}

void expect_copy(const fs::path& index, const Model& model) {
  const Checkpoint copy = Checkpoint::open(index);
  EXPECT_EQ(read_all(copy), model.tensors);
  const Json document = Json::parse(contents(index), "index");
  EXPECT_EQ(document.at("metadata"), model.metadata);
  EXPECT_EQ(document.at("weight_map"), Json(model.shard_of));
  EXPECT_EQ(document.size(), 2u);
  for (size_t i = 0; i < copy.shard_count(); ++i) {
    EXPECT_EQ(copy.shard(i).header().metadata,
              (Metadata{{"format", "pt"}, {"shard", fmt::format("{}", i)}}));
  }
}

TEST(CheckpointWriter, CopiesASingleFileBitForBit) {
  const ScratchFolder folder;
  write_sharded(folder / "in");
  const Checkpoint from = Checkpoint::open(folder / "in/model-00003-of-00003.safetensors");
  CheckpointWriter writer(folder / "out.safetensors", from, {});
  copy_all(writer, from);
  EXPECT_FALSE(fs::exists(folder / "out.safetensors"));
  writer.commit();
  const Checkpoint copy = Checkpoint::open(folder / "out.safetensors");
  EXPECT_FALSE(copy.sharded());
  EXPECT_EQ(read_all(copy), read_all(from));
  EXPECT_EQ(copy.shard(0).header().metadata, from.shard(0).header().metadata);
}

TEST(CheckpointWriter, CopiesTensorsLargerThanItsBuffer) {
  const ScratchFolder folder;
  const Checkpoint from = one_tensor(folder / "in.safetensors", Dtype::kU8, {17'000'003});
  CheckpointWriter writer(folder / "out.safetensors", from, {});
  copy_all(writer, from);
  writer.commit();
  EXPECT_EQ(read_all(Checkpoint::open(folder / "out.safetensors")), read_all(from));
}

TEST(CheckpointWriter, CopiesShardsIntoAFolderThatItMakes) {
  const ScratchFolder folder;
  const Model model = write_sharded(folder / "in");
  const Checkpoint from = Checkpoint::open(folder / "in");
  {
    CheckpointWriter writer(folder / "out", from, {});
    copy_all(writer, from);
    writer.commit();
  }
  EXPECT_EQ(names_in(folder / "out"), names_in(folder / "in"));
  expect_copy(folder / "out" / kIndexName, model);
}

TEST(CheckpointWriter, CopiesShardsBesideANamedIndex) {
  const ScratchFolder folder;
  const Model model = write_sharded(folder / "in");
  const Checkpoint from = Checkpoint::open(folder / "in");
  CheckpointWriter writer(folder / "out/sparse.index.json", from, {});
  copy_all(writer, from);
  writer.commit();
  EXPECT_EQ(names_in(folder / "out").size(), 4u);
  expect_copy(folder / "out/sparse.index.json", model);
}

TEST(CheckpointWriter, ReplacesTheCheckpointThatItReads) {
  const ScratchFolder folder;
  const Model model = write_sharded(folder / "in");
  const std::set<std::string> before = names_in(folder / "in");
  const Checkpoint from = Checkpoint::open(folder / "in");
  CheckpointWriter writer(folder / "in", from, {});
  copy_all(writer, from);
  writer.commit();
  EXPECT_EQ(names_in(folder / "in"), before);
  expect_copy(folder / "in" / kIndexName, model);
}

TEST(CheckpointWriter, LeavesNothingUnlessCommitted) {
  const ScratchFolder folder;
  write_sharded(folder / "in");
  const Checkpoint from = Checkpoint::open(folder / "in");
  for (const char* target : {"out", "out/", "out/other.index.json"}) {
    {
      CheckpointWriter writer(folder / target, from, {});
      copy_all(writer, from);
      writer.sync();
      for (const std::string& name : names_in(folder / "out")) EXPECT_EQ(name[0], '.') << name;
    }
    EXPECT_FALSE(fs::exists(folder / "out")) << target;
  }
  fs::create_directory(folder / "there before");
  { const CheckpointWriter writer(folder / "there before", from, {}); }
  EXPECT_TRUE(names_in(folder / "there before").empty());
  {
    const CheckpointWriter writer(folder / "single.safetensors",
                                  one_tensor(folder / "one", Dtype::kF32, {2}), {});
  }
  EXPECT_EQ(names_in(folder.path()), (std::set<std::string>{"in", "one", "there before"}));
}

TEST(CheckpointWriter, RemoveUnfinishedFilesTakesTheFolderItMade) {
  const ScratchFolder folder;
  write_sharded(folder / "in");
  const Checkpoint from = Checkpoint::open(folder / "in");
  fs::create_directory(folder / "there before");
  for (const char* target : {"out", "out/", "out/other.index.json", "there before"}) {
    CheckpointWriter writer(folder / target, from, {});
    copy_all(writer, from);
    remove_unfinished_files();
    EXPECT_EQ(names_in(folder.path()), (std::set<std::string>{"in", "there before"})) << target;
    EXPECT_TRUE(names_in(folder / "there before").empty()) << target;
  }
  // A committed folder is nobody's to remove, even when it is emptied while the writer lives.
  CheckpointWriter writer(folder / "out", from, {});
  copy_all(writer, from);
  writer.commit();
  EXPECT_EQ(names_in(folder / "out"), names_in(folder / "in"));
  for (const std::string& name : names_in(folder / "out")) fs::remove(folder / "out" / name);
  remove_unfinished_files();
  EXPECT_TRUE(fs::exists(folder / "out"));
}

TEST(CheckpointWriter, NamesTheFilesThatItWillMake) {
  const ScratchFolder folder;
  write_sharded(folder / "in");
  const Checkpoint from = Checkpoint::open(folder / "in");
  for (const char* target : {"out", "named/other.index.json"}) {
    CheckpointWriter writer(folder / target, from, {});
    const std::vector<fs::path> targets = writer.targets();
    for (const fs::path& file : targets) EXPECT_FALSE(fs::exists(file)) << file;
    copy_all(writer, from);
    writer.commit();
    EXPECT_EQ(file_names(targets), names_in(targets.front().parent_path()));
    for (const fs::path& file : targets) EXPECT_TRUE(fs::exists(file)) << file;
  }
  const Checkpoint single = Checkpoint::open(folder / "in/model-00001-of-00003.safetensors");
  EXPECT_EQ(CheckpointWriter(folder / "one.safetensors", single, {}).targets(),
            std::vector<fs::path>{folder / "one.safetensors"});
}

TEST(CheckpointWriter, AFailedConstructionRemovesTheFolderItMade) {
  const ScratchFolder folder;
  write_sharded(folder / "in");
  const Checkpoint from = Checkpoint::open(folder / "in");
  std::string message;
  {
    const FullDisk limit(16);
    message = message_of([&] { const CheckpointWriter writer(folder / "out", from, {}); });
  }
  EXPECT_TRUE(contains(message, "model-00001-of-00003.safetensors")) << message;
  EXPECT_FALSE(fs::exists(folder / "out"));
}

TEST(CheckpointWriter, MissingBytesLeaveTheOldCheckpointWhole) {
  const ScratchFolder folder;
  const Model model = write_sharded(folder / "in");
  const std::set<std::string> before = names_in(folder / "in");
  {
    const Checkpoint from = Checkpoint::open(folder / "in");
    CheckpointWriter writer(folder / "in", from, {});
    for (size_t i = 0; i + 1 < from.tensors().size(); ++i) {
      const Bytes zeros(from.tensors()[i].info.bytes());
      writer.write(from.tensors()[i], 0, zeros);
    }
    const std::string message = message_of([&] { writer.commit(); });
    EXPECT_TRUE(contains(message, "layers.2.2.weight")) << message;
    EXPECT_TRUE(contains(message, "0 of 128 bytes")) << message;
  }
  EXPECT_EQ(names_in(folder / "in"), before);
  expect_copy(folder / "in" / kIndexName, model);
}

// Some shards are new and some are old then: no index may lead to that mixture.
TEST(CheckpointWriter, ACommitThatFailsHalfwayLeavesAWholeCheckpoint) {
  const ScratchFolder folder;
  const Model model = write_sharded(folder / "in");
  const std::set<std::string> before = names_in(folder / "in");
  const Checkpoint from = Checkpoint::open(folder / "in");
  CheckpointWriter writer(folder / "in", from, {});
  copy_all(writer, from);
  fs::remove(folder / "in/model-00002-of-00003.safetensors");
  fs::create_directory(folder / "in/model-00002-of-00003.safetensors");  // cannot be renamed over
  const std::string message = message_of([&] { writer.commit(); });
  EXPECT_TRUE(contains(message, "model-00002-of-00003.safetensors")) << message;
  EXPECT_EQ(read_all(Checkpoint::open(folder / "in")), model.tensors);
  // Once nothing is in the way, the next one brings the names in order.
  fs::remove(folder / "in/model-00002-of-00003.safetensors");
  const Checkpoint again = Checkpoint::open(folder / "in");
  CheckpointWriter second(folder / "in", again, {});
  copy_all(second, again);
  second.commit();
  expect_copy(folder / "in" / kIndexName, model);
  EXPECT_EQ(names_in(folder / "in"), before);
}

TEST(CheckpointWriter, RefusesTargetsThatDoNotFit) {
  const ScratchFolder folder;
  write_sharded(folder / "in");
  const Checkpoint from = Checkpoint::open(folder / "in");
  const auto refused = [&](const std::string& target) {
    const std::string message =
        message_of([&] { const CheckpointWriter writer(folder / target, from, {}); });
    EXPECT_TRUE(contains(message, (folder / target).string())) << message;
    return message;
  };
  const std::string as_file = refused("out.safetensors");
  EXPECT_TRUE(contains(as_file, "sharded")) << as_file;
  EXPECT_TRUE(contains(as_file, ".index.json")) << as_file;
  refused("missing/out");
  put(folder / "file", "in the way");
  refused("file");
  EXPECT_EQ(contents(folder / "file"), "in the way");
  EXPECT_EQ(names_in(folder.path()), (std::set<std::string>{"file", "in"}));
}

// Processor time to open a checkpoint of so many tensors and to write it with a plan for each.
double seconds_for(int tensors) {
  const ScratchFolder folder;
  fs::create_directory(folder / "in");
  std::string json = "{", map;
  Sparsity sparsity;
  for (int i = 0; i < tensors; ++i) {
    const std::string name = fmt::format("model.layers.{}.experts.{}.weight", i / 256, i % 256);
    const char* comma = i == 0 ? "" : ",";
    json +=
        fmt::format(R"({}"{}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})", comma, name);
    map += fmt::format(R"({}"{}":"a.safetensors")", comma, name);
    sparsity.tensors.emplace(name, Promise{Pattern(2, 4), Axis::kIn});
  }
  put(folder / "in/a.safetensors", safetensors(json + "}", ""));
  put(folder / "in/a.safetensors.index.json", "{\"weight_map\":{" + map + "}}");

  const std::clock_t start = std::clock();
  const Checkpoint from = Checkpoint::open(folder / "in");
  CheckpointWriter(folder / "out", from, sparsity).commit();
  EXPECT_EQ(Checkpoint::open(folder / "out").sparsity().tensors.size(), sparsity.tensors.size());
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

// The largest models in use have some hundred thousand tensors: whatever grows with the square of
// that takes minutes instead of a second. 32 times the tensors should take about 32 times as long, and
// would take a thousand times as long; what else the machine does is far from either.
TEST(CheckpointWriter, TimeGrowsWithTheNumberOfTensorsAndNotItsSquare) {
  const double few = std::max({seconds_for(1'500), seconds_for(1'500), 1e-3});
  const double many = seconds_for(48'000);
  EXPECT_LT(many, 180 * few) << "seconds: " << few << " for 1500 tensors, " << many << " for 48000";
}

// ---- Sparsity

std::map<std::string, std::string> described(const Sparsity& sparsity) {
  std::map<std::string, std::string> promises;
  for (const auto& [name, promise] : sparsity.tensors) {
    promises[name] = fmt::format("{} {}{}", promise.pattern.str(), axis_name(promise.axis),
                                 promise.transposed ? " transposed" : "");
  }
  return promises;
}

TEST(Sparsity, IsReadBackFromTheMetadata) {
  Sparsity sparsity;
  sparsity.tensors.emplace("in \"quoted\"", Promise{Pattern(2, 4), Axis::kIn});
  sparsity.tensors.emplace("out\n", Promise{Pattern(1, 8, 4), Axis::kOut});
  sparsity.tensors.emplace("größe", Promise{Pattern(64, 64, 32), Axis::kBoth});
  sparsity.tensors.emplace("turned", Promise{Pattern(2, 4), Axis::kIn, "", true});
  Metadata metadata = {{"format", "pt"}};
  sparsity.store_in(metadata);
  EXPECT_EQ(metadata.size(), 2u);
  EXPECT_EQ(metadata.at("format"), "pt");
  const Sparsity found = Sparsity::from_metadata(metadata, "file");
  EXPECT_EQ(described(found), described(sparsity));
  Sparsity().store_in(metadata);
  EXPECT_EQ(metadata, (Metadata{{"format", "pt"}}));
  EXPECT_TRUE(Sparsity::from_metadata(metadata, "file").tensors.empty());
}

TEST(Sparsity, IsWrittenAsDocumented) {
  Sparsity sparsity;
  sparsity.tensors.emplace("fc1.weight", Promise{Pattern(2, 4), Axis::kBoth});
  Metadata metadata;
  sparsity.store_in(metadata);
  EXPECT_EQ(metadata.at("weft.sparsity"),
            R"({"tensors":{"fc1.weight":{"axis":"both","pattern":"2:4"}},"version":1})");
}

TEST(Sparsity, EveryShardCarriesTheTensorsItHas) {
  const ScratchFolder folder;
  write_sharded(folder / "in");
  Sparsity sparsity;
  sparsity.tensors.emplace("layers.0.0.weight", Promise{Pattern(2, 4), Axis::kIn});
  sparsity.tensors.emplace("layers.0.2.weight", Promise{Pattern(1, 4), Axis::kBoth});
  sparsity.tensors.emplace("layers.2.2.weight", Promise{Pattern(2, 4, 2), Axis::kOut});
  {
    const Checkpoint from = Checkpoint::open(folder / "in");
    CheckpointWriter writer(folder / "out", from, sparsity);
    copy_all(writer, from);
    writer.commit();
  }
  const Checkpoint written = Checkpoint::open(folder / "out");
  EXPECT_EQ(described(written.sparsity()), described(sparsity));
  const auto promised = [&](size_t shard) {
    return Sparsity::from_metadata(written.shard(shard).header().metadata, "").tensors.size();
  };
  EXPECT_EQ(promised(0), 1u);
  EXPECT_FALSE(written.shard(1).header().metadata.contains("weft.sparsity"));
  EXPECT_EQ(promised(2), 2u);

  // Written again without a sparsity, the file no longer promises anything.
  CheckpointWriter writer(folder / "dense", written, {});
  copy_all(writer, written);
  writer.commit();
  EXPECT_TRUE(Checkpoint::open(folder / "dense").sparsity().tensors.empty());
}

TEST(Sparsity, MayNameTensorsThatAreNotThere) {
  const ScratchFolder folder;
  Sparsity stale;
  stale.tensors.emplace("gone", Promise{Pattern(2, 4), Axis::kIn});
  stale.tensors.emplace("w", Promise{Pattern(1, 4), Axis::kOut});
  Metadata metadata;
  stale.store_in(metadata);
  SafetensorsWriter(folder / "in.safetensors", {tensor("w", Dtype::kU8, {0})}, metadata).commit();
  const Checkpoint from = Checkpoint::open(folder / "in.safetensors");
  EXPECT_EQ(described(from.sparsity()), described(stale));
  CheckpointWriter(folder / "out.safetensors", from, from.sparsity()).commit();
  EXPECT_EQ(described(Checkpoint::open(folder / "out.safetensors").sparsity()),
            (std::map<std::string, std::string>{{"w", "1:4 out"}}));
}

TEST(Sparsity, OneThatCannotBeReadIsAnErrorOnlyWhereItIsAskedFor) {
  const ScratchFolder folder;
  const Metadata metadata = {{"weft.sparsity", R"({"version":2})"}, {"format", "pt"}};
  SafetensorsWriter(folder / "in.safetensors", {tensor("w", Dtype::kU8, {0})}, metadata).commit();
  const Checkpoint from = Checkpoint::open(folder / "in.safetensors");
  const std::string message = message_of([&] { from.sparsity(); });
  EXPECT_TRUE(message.starts_with((folder / "in.safetensors").string() + ": weft.sparsity"))
      << message;
  EXPECT_TRUE(contains(message, "version 2 is not known")) << message;
  CheckpointWriter(folder / "out.safetensors", from, {}).commit();
  const Checkpoint written = Checkpoint::open(folder / "out.safetensors");
  EXPECT_EQ(written.shard(0).header().metadata, (Metadata{{"format", "pt"}}));
}

TEST(Axis, NamesAreReadBack) {
  for (const Axis axis : {Axis::kIn, Axis::kOut, Axis::kBoth}) {
    EXPECT_EQ(parse_axis(axis_name(axis)), axis);
  }
  EXPECT_TRUE(contains(message_of([] { parse_axis("sideways\n"); }),
                       "'sideways\\n': accepted is in, out or both"));
}

// ---- StoredWeight

// [outs, ins, taps] values as bytes, and the same stored [ins, outs, taps].
struct BothWays {
  int64_t outs, ins, taps;
  std::string plain, transposed;

  BothWays(int64_t outs, int64_t ins, int64_t taps) : outs(outs), ins(ins), taps(taps) {
    std::vector<uint16_t> there, back(static_cast<size_t>(outs * ins * taps));
    for (int64_t o = 0; o < outs; ++o) {
      for (int64_t i = 0; i < ins; ++i) {
        for (int64_t t = 0; t < taps; ++t) {
          there.push_back(static_cast<uint16_t>(there.size()));
          back[static_cast<size_t>((i * outs + o) * taps + t)] = there.back();
        }
      }
    }
    plain.assign(reinterpret_cast<const char*>(there.data()), there.size() * 2);
    transposed.assign(reinterpret_cast<const char*>(back.data()), back.size() * 2);
  }
  std::vector<int64_t> stored_shape() const {
    return taps == 1 ? std::vector<int64_t>{ins, outs} : std::vector<int64_t>{ins, outs, 1, taps};
  }
};

TEST(StoredWeight, BandsOfATransposedOneAreThoseOfThePlainOneAndGoBackToTheirPlaces) {
  for (const auto& [outs, ins, taps] : {std::array<int64_t, 3>{5, 7, 1},
                                        {12, 4, 1},
                                        {1, 9, 1},
                                        {33, 65, 1},
                                        {6, 10, 3},
                                        {9, 1, 4}}) {
    const BothWays weights(outs, ins, taps);
    const ScratchFolder folder;
    const std::vector<TensorInfo> infos = {tensor("before", Dtype::kF16, {3}),
                                           tensor("w", Dtype::kF16, weights.stored_shape())};
    const auto bytes = std::as_bytes(std::span(weights.transposed));
    {
      SafetensorsWriter writer(folder / "m.safetensors", infos, {});
      writer.write("before", 0, std::as_bytes(std::span("abcdef", 6)));
      writer.write("w", 0, bytes);
      writer.commit();
    }
    const Checkpoint checkpoint = Checkpoint::open(folder / "m.safetensors");
    const StoredWeight weight{find(checkpoint, "w"), true};
    EXPECT_EQ(weight.shape().outs, outs);
    EXPECT_EQ(weight.shape().ins, ins);
    EXPECT_EQ(weight.shape().taps, taps);
    for (const uint64_t target : {uint64_t{1}, uint64_t{100}, uint64_t{1} << 20}) {
      for (const int64_t multiple : {1, 2, 4}) {
        std::string read;
        CheckpointWriter copy(folder / "copy.safetensors", checkpoint, {});
        copy.copy(checkpoint, find(checkpoint, "before"));
        for_each_band(
            checkpoint, weight, multiple,
            [&](const Band& band) {
              EXPECT_EQ(read.size(), band.offset);
              read.append(reinterpret_cast<const char*>(band.bytes.data()), band.bytes.size());
              write_band(copy, weight, band);
            },
            target);
        EXPECT_TRUE(read == weights.plain) << outs << " " << ins << " " << taps;
        copy.commit();
        EXPECT_TRUE(contents(folder / "copy.safetensors") == contents(folder / "m.safetensors"));
      }
    }
    const int64_t out = outs - 1, in = ins / 2, tap = taps - 1;
    const std::vector<int64_t> index = weight.index_of(out, in * taps + tap);
    EXPECT_EQ(index[0], in);
    EXPECT_EQ(index[1], out);
  }
}

TEST(StoredWeight, AVectorCannotBeTransposed) {
  const StoredWeight weight{{tensor("w", Dtype::kF32, {3}), 0}, true};
  EXPECT_TRUE(
      contains(message_of([&] { weight.dims(); }), "'w' of shape [3] cannot be transposed"));
}

// ---- Selection

// "" if the tensor is selected.
std::string reason_of(const Selection& selection, const TensorInfo& info) {
  const auto reason = selection.left_alone(info);
  return reason ? reason_text(*reason, info) : "";
}

TEST(Selection, ByDefaultTakesWeightsAndLeavesEmbeddingsAndNormsAside) {
  const Selection selection("", "");
  const auto selected = [&](const char* name) {
    return !selection.left_alone(tensor(name, Dtype::kF32, {8, 8}));
  };
  const auto with_bytes = [](TensorInfo info) {
    info.end = tensor_bytes(info.dtype, info.shape);
    return info;
  };
  for (const char* name :
       {"fc1.weight", "weight", "h.0.attn.c_attn.weight", "in_proj_weight",
        "model.layers.0.mlp.gate_proj.weight", "aln.weight", "features.0.weight", "blnd.weight"}) {
    EXPECT_EQ(reason_of(selection, with_bytes(tensor(name, Dtype::kF32, {8, 8}))), "") << name;
  }
  for (const char* name : {"fc1.bias",
                           "fc1.weight_scale",
                           "weight.0",
                           "model.embed_tokens.weight",
                           "wte.weight",
                           "transformer.wpe.weight",
                           "word_embeddings.weight",
                           "patch_embed.proj.weight",
                           "Embedding.weight",
                           "tok_emb.weight",
                           "input_layernorm.weight",
                           "norm1.weight",
                           "LayerNorm.weight",
                           "batch_norm.weight",
                           "ln_f.weight",
                           "h.0.ln_1.weight",
                           "ln1.weight",
                           "layer1.0.bn1.weight",
                           "bn.weight",
                           ""}) {
    EXPECT_FALSE(selected(name)) << name;
  }
}

TEST(Selection, SaysWhyANameIsLeftAside) {
  const Selection selection("", "");
  const auto reason = [&](const char* name) {
    return reason_of(selection, tensor(name, Dtype::kF32, {8, 8}));
  };
  EXPECT_EQ(reason("wte.weight"), "embedding");
  EXPECT_EQ(reason("norm1.weight"), "normalisation");
  EXPECT_EQ(reason("fc1.bias"), "name does not end in 'weight'");
  EXPECT_EQ(reason("lm_head.weight"), "head");
  EXPECT_EQ(reason("block_sparse_moe.gate.weight"), "router of experts");
  EXPECT_EQ(reason("layer.0.SelfAttention.relative_attention_bias.weight"), "position bias");
}

TEST(Selection, TakesTwoOrFourDimensionsOfAWeightType) {
  for (const std::string include : {"", "."}) {
    const Selection selection(include, "");
    const auto reason = [&](Dtype dtype, std::vector<int64_t> shape) {
      TensorInfo info = tensor("fc.weight", dtype, std::move(shape));
      info.end = tensor_bytes(info.dtype, info.shape);
      return reason_of(selection, info);
    };
    for (const Dtype dtype : all_dtypes()) {
      if (is_weight_dtype(dtype)) {
        EXPECT_EQ(reason(dtype, {8, 8}), "");
        EXPECT_EQ(reason(dtype, {8, 8, 3, 3}), "");
      } else {
        EXPECT_TRUE(contains(reason(dtype, {8, 8}), dtype_name(dtype)));
      }
    }
    EXPECT_EQ(reason(Dtype::kF32, {}), "0 dimensions: weights have 2 or 4");
    EXPECT_EQ(reason(Dtype::kF32, {8}), "1 dimension: weights have 2 or 4");
    EXPECT_EQ(reason(Dtype::kF32, {8, 8, 3}), "3 dimensions: weights have 2 or 4");
    for (const std::vector<int64_t>& empty :
         {std::vector<int64_t>{8, 0}, {0, 8}, {0, 0}, {8, 0, 3, 3}, {8, 8, 0, 3}}) {
      EXPECT_EQ(reason(Dtype::kF32, empty), "");
    }
    // Legal in a file, but no matrix.
    const int64_t vast = int64_t{1} << 62;
    EXPECT_TRUE(contains(reason(Dtype::kF32, {0, 1, vast, 4}), "overflow"));
    EXPECT_TRUE(contains(reason(Dtype::kF32, {0, vast, 2, 2}), "overflow"));
  }
}

TEST(Selection, IncludeReplacesTheRulesAboutNamesAndExcludeTakesOut) {
  const Selection selection("embed|fc[0-9]", "fc2|\\.bias$");
  const auto reason = [&](const char* name) {
    TensorInfo info = tensor(name, Dtype::kF32, {2, 2});
    info.end = 16;
    EXPECT_EQ(selection.left_alone(info), selection.left_alone_by_name(name)) << name;
    return reason_of(selection, info);
  };
  EXPECT_EQ(reason("model.embed_tokens.table"), "");
  EXPECT_EQ(reason("fc1.weight"), "");
  EXPECT_EQ(reason("fc2.weight"), "excluded");
  EXPECT_EQ(reason("fc1.bias"), "excluded");
  EXPECT_EQ(reason("attention.weight"), "not included");
}

TEST(Selection, AWrongExpressionIsAnErrorThatSaysWhich) {
  for (const std::string wrong : {"(", "[a", "*", "a{2000}", "(?=look)", "\\1", "\n("}) {
    const std::string include = message_of([&] { const Selection selection(wrong, ""); });
    const std::string exclude = message_of([&] { const Selection selection("", wrong); });
    EXPECT_TRUE(include.starts_with("include expression '")) << include;
    EXPECT_TRUE(contains(include, "': not a regular expression: ")) << include;
    EXPECT_TRUE(exclude.starts_with("exclude expression '")) << exclude;
    EXPECT_FALSE(contains(include, "\n")) << include;
  }
}

}  // namespace
}  // namespace weft
