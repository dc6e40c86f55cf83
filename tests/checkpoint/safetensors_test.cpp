// One safetensors file: what is written is read back bit for bit.
// Files that must be refused are in malformed_test.cpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "tests/checkpoint/tensor_files.h"
#include "tests/scratch_folder.h"
#include "tests/support.h"
#include "weft/checkpoint/checkpoint.h"
#include "weft/checkpoint/safetensors.h"
#include "weft/core/error.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;

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
  EXPECT_TRUE(contains(message_of([&] { writer.write("v\n", 0, {}); }),
                       "tensor 'v\\n' is not in the layout"));
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

}  // namespace
}  // namespace weft::test
