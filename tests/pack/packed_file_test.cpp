// Packed tensors in files, from the library: every bit comes back, and no file is believed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "tests/scratch_folder.h"
#include "tests/weights.h"
#include "weft/core/json.h"
#include "weft/core/rng.h"
#include "weft/pack/narrow.h"
#include "weft/pack/pack.h"
#include "weft/pack/packed_file.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;

TEST(Narrow, EveryHalfComesBack) {
  std::vector<uint16_t> all(65536);
  std::iota(all.begin(), all.end(), uint16_t{0});
  for (const Dtype dtype : {Dtype::kF16, Dtype::kBf16}) {
    std::vector<float> wide(all.size());
    widen_weights(dtype, std::as_bytes(std::span(all)), wide);
    std::vector<uint16_t> back(all.size(), 1);
    EXPECT_FALSE(narrow_exactly(wide, dtype, std::as_writable_bytes(std::span(back))));
    EXPECT_EQ(back, all) << dtype_name(dtype);
  }
}

TEST(Narrow, WhatDoesNotFitIsFound) {
  const auto misfit = [](Dtype dtype, float value) {
    const std::vector<float> weights = {1.0f, 0.0f, value};
    std::vector<std::byte> bytes(6);
    return narrow_exactly(weights, dtype, bytes);
  };
  for (const float value : {1.0f + 0x1p-11f, 65536.0f, -1e30f, 0x1p-25f, 0x1.8p-24f, 1e-40f,
                            65519.0f, std::bit_cast<float>(0x7f800001u)}) {
    EXPECT_EQ(misfit(Dtype::kF16, value), 2) << value;
  }
  for (const float value : {1.0f + 0x1p-8f, 1e-42f, std::bit_cast<float>(0x7f800001u)}) {
    EXPECT_EQ(misfit(Dtype::kBf16, value), 2) << value;
  }
  for (const float value : {0x1p-24f, 65504.0f, -0.0f, 0x1.ff8p-15f}) {
    EXPECT_FALSE(misfit(Dtype::kF16, value)) << value;
  }
}

TensorInfo info_of(const std::string& name, Dtype dtype, const std::vector<int64_t>& shape) {
  return {name, dtype, shape, 0, tensor_bytes(dtype, shape)};
}

std::vector<std::byte> bytes_of(const std::vector<float>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

std::string row_bits(const Mask& mask, int64_t row) {
  std::string text;
  for (int64_t c = 0; c < mask.cols(); ++c) text += mask.at(row, c) ? '1' : '0';
  return text;
}

TEST(MaskToPack, FillsWithNegativeZerosFirstThenFromTheLeft) {
  const std::vector<float> row = {0, 0, 0, 0, 1, 0, 0, 0,     0, 0,     -0.0f, 2,
                                  3, 0, 4, 0, 5, 6, 0, -0.0f, 0, -0.0f, -0.0f, -0.0f};
  const MaskToPack found =
      mask_to_pack(info_of("w", Dtype::kF32, {1, 24}), bytes_of(row), Pattern(2, 4));
  EXPECT_EQ(row_bits(found.mask, 0), "110011000011101011000110");
  EXPECT_EQ(found.negative_zeros_out, 2);
}

TEST(MaskToPack, RowsThatShareKeepTheSame) {
  // 1:2x2: rows 0 and 2 share, 1 and 3; the last block has rows 4 and 5 only.
  const std::vector<float> weights = {0, 1, 0, 0,      //
                                      0, 0, 0, -0.0f,  //
                                      0, 2, 0, 3,      //
                                      0, 0, 0, 0,      //
                                      0, 0, 4, 0,      //
                                      0, 5, 0, 0};
  const MaskToPack found =
      mask_to_pack(info_of("w", Dtype::kF32, {6, 4}), bytes_of(weights), Pattern(1, 2, 2));
  const char* expected[] = {"0101", "1001", "0101", "1001", "1010", "0110"};
  for (int64_t r = 0; r < 6; ++r) EXPECT_EQ(row_bits(found.mask, r), expected[r]) << r;
}

TEST(MaskToPack, NamesTheFirstWeightTooMany) {
  std::vector<float> weights(4 * 8 * 9, 0.0f);
  const auto at = [&](int64_t out, int64_t in, int64_t tap) -> float& {
    return weights[static_cast<size_t>((out * 8 + in) * 9 + tap)];
  };
  at(2, 4, 5) = at(2, 5, 5) = at(2, 6, 4) = 1.0f;
  const TensorInfo info = info_of("w", Dtype::kF32, {4, 8, 3, 3});
  mask_to_pack(info, bytes_of(weights), Pattern(2, 4));
  at(2, 7, 5) = 1.0f;
  EXPECT_EQ(message_of([&] { mask_to_pack(info, bytes_of(weights), Pattern(2, 4)); }),
            "weight [2, 7, 1, 2] is one more than 2:4 allows");
}

// The bytes of the format, and that of compressed-tensors' own packer for the same weights.
TEST(Bitmask24, HasTheseBytes) {
  const std::vector<float> weights = {0, 1, 0, 2, 3, 4, 0, 0, 0, 0, 0, 5,  //
                                      6, 0, 7, 0, 0, 0, 0, 0, 0, 8, 9, 0};
  const TensorInfo info = info_of("fc.weight", Dtype::kF32, {2, 12});
  const Mask mask = mask_to_pack(info, bytes_of(weights), Pattern(2, 4)).mask;
  const auto parts = pack_tensor(info, bytes_of(weights), mask, {Pattern(2, 4), Dtype::kF32},
                                 PackedFormat::kBitmask24);
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[0].name, "fc.shape");
  const int64_t shape[] = {2, 12};
  EXPECT_TRUE(std::ranges::equal(parts[0].bytes, std::as_bytes(std::span(shape))));
  EXPECT_EQ(parts[1].name, "fc.compressed");
  EXPECT_EQ(parts[1].bytes, bytes_of({1, 2, 3, 4, 0, 5, 6, 7, 0, 0, 8, 9}));
  EXPECT_EQ(parts[2].name, "fc.bitmask");
  const uint8_t bits[] = {0b00111010, 0b1001, 0b00110101, 0b0110};
  EXPECT_TRUE(std::ranges::equal(parts[2].bytes, std::as_bytes(std::span(bits))));
  EXPECT_EQ(from_bitmask24(2, 12, 4, parts[1].bytes, parts[2].bytes), bytes_of(weights));
}

TEST(Bitmask24, WrongBitmasksAreRefused) {
  std::vector<std::byte> values(4 * 6), bits(4);
  const auto message = [&](std::vector<int> bytes) {
    for (size_t i = 0; i < 4; ++i) bits[i] = static_cast<std::byte>(bytes[i]);
    return message_of([&] { from_bitmask24(2, 12, 2, values, bits); });
  };
  EXPECT_EQ(message({0x33, 0x03, 0x33, 0x03}), "(no Error)");
  EXPECT_TRUE(contains(message({0x33, 0x13, 0x33, 0x03}), "row 0: a bit is set past column 11"));
  EXPECT_TRUE(contains(message({0x33, 0x03, 0x73, 0x03}), "row 1, columns 4 to 7"));
  EXPECT_TRUE(contains(message({0x33, 0x03, 0x31, 0x03}), "fewer than two"));
  EXPECT_TRUE(contains(message_of([&] { from_bitmask24(2, 10, 2, values, bits); }), "multiple"));
  EXPECT_TRUE(contains(message_of([&] { from_bitmask24(3, 12, 2, values, bits); }), "belong"));
}

// A file to break: its metadata and tensors, one byte string each.
struct Draft {
  std::map<std::string, std::pair<TensorInfo, std::string>> tensors;
  Json packed;  // weft.packed

  void add(const std::string& name, Dtype dtype, const std::vector<int64_t>& shape,
           const std::string& bytes) {
    tensors[name] = {{name, dtype, shape, 0, 0}, bytes};
  }
  void write(const fs::path& path, bool with_metadata = true) const {
    std::vector<TensorInfo> infos;
    for (const auto& [name, tensor] : tensors) infos.push_back(tensor.first);
    Metadata metadata;
    if (with_metadata) {
      metadata["weft.packed"] = packed.is_string() ? packed.get<std::string>() : packed.dump();
    }
    std::string file = format_header(infos, metadata);
    for (const auto& [name, tensor] : tensors) file += tensor.second;
    put(path, file);
  }
};

// 3 x 6, 2:4, the golden stream pack of pack_test.
Draft good_draft() {
  Draft draft;
  std::vector<float> weights(18);
  std::iota(weights.begin(), weights.end(), 1.0f);
  const PackedMatrix packed =
      pack_stream_by_magnitude({weights.data(), 3, 6}, Pattern(2, 4), Precision::kFp32);
  const StreamView view = packed.stream();
  draft.add("w.weft_values", Dtype::kF32, {1, 2, 2, 16},
            std::string(static_cast<const char*>(view.values), 64 * 4));
  draft.add("w.weft_indices", Dtype::kU8, {1, 2, 2, 4},
            std::string(reinterpret_cast<const char*>(view.indices), 16));
  draft.add("bias", Dtype::kF32, {2}, "12345678");
  draft.packed = {
      {"version", 1},
      {"tensors",
       {{"w", {{"pattern", "2:4"}, {"dtype", "F32"}, {"shape", {3, 6}}, {"index_bits", 2}}}}}};
  return draft;
}

std::vector<std::byte> read_packed(const fs::path& path) {
  const Checkpoint checkpoint = Checkpoint::open(path);
  const PackedCheckpoint packed(checkpoint);
  std::vector<std::byte> last;
  for (const LogicalTensor& tensor : packed.tensors()) {
    if (tensor.packed()) last = packed.dense(tensor);
  }
  return last;
}

TEST(Malformed, TheDraftIsGood) {
  const ScratchFolder folder;
  good_draft().write(folder / "f");
  EXPECT_EQ(read_packed(folder / "f"),
            bytes_of({0, 0, 3, 4, 5, 6, 0, 0, 9, 10, 11, 12, 0, 0, 15, 16, 17, 18}));
  const Checkpoint checkpoint = Checkpoint::open(folder / "f");
  const PackedCheckpoint packed(checkpoint);
  const auto& tensors = packed.tensors();
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors[0].info.name, "bias");
  EXPECT_EQ(tensors[1].info.name, "w");
  EXPECT_EQ(tensors[1].stored_bytes, 64u * 4 + 16);
  EXPECT_EQ(packed.matrix(tensors[1]).kept(), 12);
}

TEST(Malformed, IsRefusedInOneLine) {
  struct Case {
    std::vector<std::string> words;
    std::function<void(Draft&)> damage;
  };
  const auto set = [](const char* field, const Json& value) {
    return [=](Draft& draft) { draft.packed["tensors"]["w"][field] = value; };
  };
  const auto replace = [](const char* name, Dtype dtype, std::vector<int64_t> shape) {
    return [=](Draft& draft) {
      draft.add(name, dtype, shape, std::string(tensor_bytes(dtype, shape), '\0'));
    };
  };
  const auto poke = [](const char* name, size_t at, char byte) {
    return [=](Draft& draft) { draft.tensors[name].second[at] = byte; };
  };
  const std::vector<Case> cases = {
      {{"weft.packed", "not valid JSON"}, [](Draft& d) { d.packed = "{"; }},
      {{"weft.packed", "no 'version'"}, [](Draft& d) { d.packed = "[]"; }},
      {{"weft.packed", "version 2"}, [](Draft& d) { d.packed["version"] = 2; }},
      {{"weft.packed", "version \"1\""}, [](Draft& d) { d.packed["version"] = "1"; }},
      {{"no 'tensors'"}, [](Draft& d) { d.packed.erase("tensors"); }},
      {{"'tensors' is not an object"}, [](Draft& d) { d.packed["tensors"] = Json::array(); }},
      {{"fields"}, [](Draft& d) { d.packed["more"] = 1; }},
      {{"appears twice"}, [](Draft& d) { d.packed = R"({"version":1,"version":1})"; }},
      {{"'w'", "no 'dtype'"}, [](Draft& d) { d.packed["tensors"]["w"] = 7; }},
      {{"'w'", "no 'pattern'"},
       [](Draft& d) {
         d.packed["tensors"]["w"].erase("pattern");
         d.packed["tensors"]["w"]["more"] = 1;
       }},
      {{"'w'", "fields"}, set("more", 1)},
      {{"'w'", "pattern", "4:2"}, set("pattern", "4:2")},
      {{"'w'", "not a text"}, set("pattern", 2)},
      {{"'w'", "dtype F64"}, set("dtype", "F64")},
      {{"'w'", "dtype I8"}, set("dtype", "I8")},
      {{"'w'", "dtype \\n"}, set("dtype", "\n")},
      {{"'w'", "'shape' is not a list"}, set("shape", "3x6")},
      {{"'w'", "-3"}, set("shape", {-3, 6})},
      {{"'w'", "3.5"}, set("shape", {3.5, 6})},
      {{"'w'", "18446744073709551615"}, set("shape", {UINT64_MAX, 6})},
      {{"'w'", "dimensions"}, set("shape", {18})},
      {{"'w'", "dimensions"}, set("shape", {1, 3, 6})},
      {{"'w'", "overflow"}, set("shape", {int64_t{1} << 62, 6})},
      {{"'w'", "overflow"}, set("shape", {int64_t{1} << 62, 8, 0, 1})},
      {{"'w'", "overflow"}, set("shape", {1, 1, int64_t{1} << 62, int64_t{1} << 62})},
      {{"w.weft_values", "[1, 2, 2, 16]"}, set("shape", {int64_t{1} << 61, 0})},
      {{"index_bits 3"}, set("index_bits", 3)},
      {{"index_bits 4"}, set("index_bits", 4)},
      {{"index_bits"}, set("index_bits", "2")},
      {{"w.weft_values", "[1, 2, 2, 16]", "[2, 2, 2, 16]"}, set("shape", {17, 6})},
      {{"w.weft_values", "[1, 3, 2, 16]"}, set("shape", {3, 12})},
      {{"w.weft_values", "[1, 2, 1, 16]"}, set("pattern", "1:4")},
      {{"rows 0 and 4 differ", "2:4x2"},
       [](Draft& d) {
         d.packed["tensors"]["w"]["shape"] = {5, 6};  // row 4 keeps the slots' own numbers
         d.packed["tensors"]["w"]["pattern"] = "2:4x2";
         std::string& bytes = d.tensors["w.weft_indices"].second;
         bytes[8] = static_cast<char>(0x00), bytes[9] = static_cast<char>(0xa8);
         bytes[12] = static_cast<char>(0x55), bytes[13] = static_cast<char>(0xa9);
       }},
      {{"'w.weft_values' is missing"}, [](Draft& d) { d.tensors.erase("w.weft_values"); }},
      {{"'w.weft_indices' is missing"}, [](Draft& d) { d.tensors.erase("w.weft_indices"); }},
      {{"'v.weft_values' is missing"},
       [](Draft& d) { d.packed["tensors"].append("v", d.packed["tensors"]["w"]); }},
      {{"has it unpacked too"}, replace("w", Dtype::kF32, {3, 6})},
      {{"'v.weft_values' belongs to no entry"},
       replace("v.weft_values", Dtype::kF32, {1, 2, 2, 16})},
      {{"'v.weft_indices' belongs to no entry"}, replace("v.weft_indices", Dtype::kU8, {1})},
      {{"w.weft_indices", "U8 of shape [1, 2, 2, 4]"},
       replace("w.weft_indices", Dtype::kU8, {1, 2, 2, 8})},
      {{"w.weft_indices", "I8"}, replace("w.weft_indices", Dtype::kI8, {1, 2, 2, 4})},
      {{"values of F64"}, replace("w.weft_values", Dtype::kF64, {1, 2, 2, 16})},
      {{"values of F16 for weights of F32"}, replace("w.weft_values", Dtype::kF16, {1, 2, 2, 16})},
      {{"w.weft_values", "[64]"}, replace("w.weft_values", Dtype::kF32, {64})},
      {{"'w'", "row 0", "out of order"}, poke("w.weft_indices", 0, '\x2b')},
      {{"'w'", "row 3", "unused slot"}, poke("w.weft_indices", 0, '\x6a')},
      {{"'w'", "row 3", "unused slot"}, poke("w.weft_values", 4 * 3, 1)},
      {{"'w'", "value 3.0000002 is not one of BF16"},
       [](Draft& d) {
         d.packed["tensors"]["w"]["dtype"] = "BF16";
         d.tensors["w.weft_values"].second[0] = 1;
       }},
      {{"'w'", "is not one of F16"},
       [](Draft& d) {
         d.packed["tensors"]["w"]["dtype"] = "F16";
         d.tensors["w.weft_values"].second[0] = 1;
       }},
  };
  const ScratchFolder folder;
  const fs::path path = folder / "broken.safetensors";
  for (const Case& broken : cases) {
    Draft draft = good_draft();
    broken.damage(draft);
    draft.write(path);
    const std::string message = message_of([&] { read_packed(path); });
    SCOPED_TRACE(draft.packed.dump());
    EXPECT_TRUE(message.starts_with(path.string())) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos);
    for (const std::string& word : broken.words) {
      EXPECT_TRUE(contains(message, word)) << word << " is not in: " << message;
    }
  }
}

Draft bitmask_draft() {
  Draft draft;
  const int64_t shape[] = {2, 8};
  draft.add("fc.shape", Dtype::kI64, {2, 1},
            std::string(reinterpret_cast<const char*>(shape), sizeof shape));
  draft.add("fc.compressed", Dtype::kF16, {2, 4}, "aabbccddeeffgghh");
  draft.add("fc.bitmask", Dtype::kU8, {2, 1}, "\x33\xca");
  return draft;
}

TEST(Malformed, Bitmask24IsRefusedInOneLine) {
  const ScratchFolder folder;
  const fs::path path = folder / "broken.safetensors";
  const auto with_shape = [](int64_t rows, int64_t cols) {
    return [=](Draft& draft) {
      const int64_t shape[] = {rows, cols};
      draft.add("fc.shape", Dtype::kI64, {2, 1},
                std::string(reinterpret_cast<const char*>(shape), sizeof shape));
    };
  };
  bitmask_draft().write(path, false);
  const std::string zeros(2, '\0');
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(read_packed(path).data()), 32),
            "aabb" + zeros + zeros + "ccdd" + zeros + zeros + zeros + "ee" + zeros + "ff" + zeros +
                zeros + "gghh");
  Draft flat = bitmask_draft();
  flat.tensors["fc.shape"].first.shape = {2};
  flat.write(path, false);
  EXPECT_EQ(read_packed(path).size(), 32u);

  const std::vector<std::pair<std::string, std::function<void(Draft&)>>> cases = {
      {"'fc.weight' of shape [-2, 8]", with_shape(-2, 8)},
      {"multiple of 4 columns", with_shape(2, 6)},
      {"'fc.compressed' is F16 of shape [2, 4], accepted is F16 of shape [3, 4]", with_shape(3, 8)},
      {"accepted is F16 of shape [2, 6]", with_shape(2, 12)},
      {"fc.compressed", with_shape(int64_t{1} << 62, 8)},
      {"'fc.shape' is I32", [](Draft& d) { d.add("fc.shape", Dtype::kI32, {2}, "12345678"); }},
      {"of shape [1, 2]",
       [](Draft& d) {
         d.tensors["fc.shape"].first.shape = {1, 2};
       }},
      {"'fc.bitmask' is I8", [](Draft& d) { d.tensors["fc.bitmask"].first.dtype = Dtype::kI8; }},
      {"'fc.bitmask' is U8 of shape [2]",
       [](Draft& d) { d.tensors["fc.bitmask"].first.shape = {2}; }},
      {"'fc.weight' is packed, but the file has it unpacked too",
       [](Draft& d) { d.add("fc.weight", Dtype::kU8, {1}, "1"); }},
      {"row 1, columns 0 to 3", [](Draft& d) { d.tensors["fc.bitmask"].second = "\x33\xcb"; }},
      {"fewer than two", [](Draft& d) { d.tensors["fc.bitmask"].second = "\x31\xca"; }},
      {"'gc.shape' is missing",
       [](Draft& d) {
         d.add("gc.bitmask", Dtype::kU8, {1}, "1");
         d.add("gc.compressed", Dtype::kU8, {1}, "1");
       }},
  };
  for (const auto& [words, damage] : cases) {
    Draft draft = bitmask_draft();
    damage(draft);
    draft.write(path, false);
    const std::string message = message_of([&] { read_packed(path); });
    EXPECT_TRUE(message.starts_with(path.string())) << message;
    EXPECT_TRUE(contains(message, words)) << words << " is not in: " << message;
  }
}

// Any byte of a packed file, also of its JSON, replaced: an Error or an answer, nothing else.
TEST(Malformed, RandomBytes) {
  const ScratchFolder folder;
  const fs::path path = folder / "broken.safetensors";
  const Rng rng(test_seed(), 9);
  uint64_t draws = 0;
  const auto below = [&](uint64_t limit) { return rng.words(draws++)[0] % limit; };
  for (const bool weft : {true, false}) {
    weft ? good_draft().write(path) : bitmask_draft().write(path, false);
    const std::string good = contents(path);
    for (int round = 0; round < 1500; ++round) {
      std::string bytes = good;
      for (uint64_t i = 0; i <= below(3); ++i) {
        bytes[8 + below(bytes.size() - 8)] = static_cast<char>(
            below(2) == 0 ? "0123456789{}[]\",:-wF"[below(20)] : static_cast<char>(below(256)));
      }
      fs::remove(path);  // to cut a file to nothing and fill it again makes some disks wait
      put(path, bytes);
      const std::string message = message_of([&] { read_packed(path); });
      ASSERT_EQ(message.find('\n'), std::string::npos) << message;
    }
  }
}

}  // namespace
}  // namespace weft::test
