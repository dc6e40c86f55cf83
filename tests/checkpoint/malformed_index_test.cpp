// Indices of shards that must be refused, as in malformed_test.cpp.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/checkpoint/malformed.h"
#include "tests/scratch_folder.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;

class MalformedIndex : public ::testing::TestWithParam<Malformed> {};

// Beside the index lie a.safetensors with the tensors x and y, b.safetensors with z,
// again.safetensors with x, and broken.safetensors.
void put_shards(const ScratchFolder& folder) {
  put(folder / "a.safetensors",
      safetensors("{" + entry("x", 0, 4) + "," + entry("y", 4, 8) + "}", 8));
  put(folder / "b.safetensors", safetensors("{" + entry("z", 0, 4) + "}", 4));
  put(folder / "again.safetensors", safetensors("{" + entry("x", 0, 4) + "}", 4));
  put(folder / "broken.safetensors", "{}");
}

TEST_P(MalformedIndex, IsRefusedInOneLineThatNamesFileAndProblem) {
  const ScratchFolder folder;
  fs::create_directory(folder / "sub");
  put(folder / "sub/c.safetensors", safetensors("{" + entry("v", 0, 4) + "}", 4));
  put_shards(folder);
  put(folder / "m.index.json", GetParam().bytes);
  Strings words = GetParam().words;
  words.push_back(folder.path());
  expect_refused(folder / "m.index.json", words);
}

std::string weight_map(const std::string& entries) { return "{\"weight_map\":{" + entries + "}}"; }

const std::string kShardA = R"("x":"a.safetensors","y":"a.safetensors")";

INSTANTIATE_TEST_SUITE_P(
    Index, MalformedIndex,
    ::testing::ValuesIn(std::vector<Malformed>{
        {"Empty", "", {"m.index.json", "not valid JSON"}},
        {"NotJson", "weights", {"m.index.json", "not valid JSON"}},
        {"EndsEarly", "{\"weight_map\":{", {"m.index.json", "not valid JSON"}},
        {"TextBehind", weight_map(kShardA) + "x", {"m.index.json", "not valid JSON"}},
        {"NulBehind",
         weight_map(kShardA) + std::string("\0x", 2),
         {"m.index.json", "not valid JSON"}},
        {"IllFormedUtf8",
         weight_map("\"\xff\":\"a.safetensors\""),
         {"m.index.json", "not valid JSON", "UTF-8"}},
        {"AList", "[]", {"m.index.json", "weight_map"}},
        {"ANumber", "5", {"m.index.json", "weight_map"}},
        {"NoWeightMap", R"({"metadata":{}})", {"m.index.json", "weight_map"}},
        {"WeightMapIsAList", R"({"weight_map":["x"]})", {"m.index.json", "weight_map"}},
        {"WeightMapIsNull", R"({"weight_map":null})", {"m.index.json", "weight_map"}},
        {"WeightMapTwice",
         R"({"weight_map":{},"weight_map":{}})",
         {"m.index.json", "'weight_map' appears twice"}},
        {"TensorTwice",
         weight_map(kShardA + R"(,"x":"b.safetensors")"),
         {"m.index.json", "'x' appears twice"}},
        {"ShardIsANumber",
         weight_map(R"("x":1)"),
         {"m.index.json", "'x'", "1 is not the name of a file"}},
        {"ShardIsNull",
         weight_map(R"("x":null)"),
         {"m.index.json", "'x'", "null is not the name of a file"}},
        {"ShardIsAList",
         weight_map(R"("x":["a.safetensors"])"),
         {"m.index.json", "'x'", "is not the name of a file"}},
        {"ShardNameIsEmpty",
         weight_map(R"("x":"")"),
         {"m.index.json", "'x'", "is not the name of a file"}},
        {"ShardInAFolderBelow",
         weight_map(R"("v":"sub/c.safetensors")"),
         {"m.index.json", "'v'", "sub/c.safetensors", "beside the index"}},
        {"ShardAbove",
         weight_map(R"("x":"../a.safetensors")"),
         {"m.index.json", "'x'", "beside the index"}},
        {"ShardIsAnAbsolutePath",
         weight_map(R"("x":"/etc/passwd")"),
         {"m.index.json", "'x'", "beside the index"}},
        {"ShardIsTheFolderAbove",
         weight_map(R"("x":"..")"),
         {"m.index.json", "'x'", "beside the index"}},
        {"ShardIsTheFolder", weight_map(R"("x":".")"), {"m.index.json", "'x'", "beside the index"}},
        {"ShardNameWithNul",
         weight_map(R"("x":"a.safetensors\u0000b")"),
         {"m.index.json", "'x'", "is not the name of a file"}},
        {"ShardNameThatPaintsTheTerminal",
         weight_map(R"("x":"\u001b[31m\n.safetensors")"),
         {"m.index.json", "'x'", "is not the name of a file"}},
        {"ShardIsAFolder", weight_map(R"("x":"sub")"), {"sub", "not a regular file"}},
        {"ShardIsTheIndex", weight_map(R"("x":"m.index.json")"), {"m.index.json"}},
        {"ShardIsMissing",
         weight_map(kShardA + R"(,"z":"c.safetensors")"),
         {"c.safetensors", "No such file"}},
        {"ShardIsBroken",
         weight_map(kShardA + R"(,"z":"broken.safetensors")"),
         {"broken.safetensors", "truncated"}},
        {"TensorIsNotInItsShard",
         weight_map(kShardA + R"(,"w\n":"a.safetensors")"),
         {"m.index.json", "'w\\n'", "not in a.safetensors"}},
        {"TensorIsInAnotherShard",
         weight_map(R"("x":"a.safetensors","y":"b.safetensors","z":"b.safetensors")"),
         {"'y'", "b.safetensors"}},
        {"TensorInTwoShards",
         weight_map(kShardA + R"(,"q":"again.safetensors")"),
         {"again.safetensors", "'x'", "the index says a.safetensors"}},
        {"ShardHasATensorThatTheIndexHasNot",
         weight_map(R"("x":"a.safetensors")"),
         {"a.safetensors", "'y'", "not in the index"}},
        {"Deep", std::string(100'000, '['), {"m.index.json", "nested more than"}},
        {"DeepInTheMetadata",
         "{\"metadata\":" + repeated("{\"a\":", 100'000),
         {"m.index.json", "nested more than"}},
        {"LongShardName",
         weight_map("\"x\":\"" + std::string(10'000, 's') + "\""),
         {"m.index.json"}},
    }),
    name_of);

TEST(Index, UnusualButLegalOnesAreRead) {
  const ScratchFolder folder;
  put_shards(folder);
  for (const std::string& index :
       {weight_map(""), weight_map(kShardA), weight_map(kShardA + R"(,"z":"b.safetensors")"),
        R"({"metadata":null,"weight_map":{"z":"b.safetensors"},"more":[1,{"a":2.5}]})" +
            std::string("\n")}) {
    put(folder / "m.index.json", index);
    EXPECT_NO_THROW(read_all(folder / "m.index.json")) << index;
  }
}

TEST(Index, EveryPrefixIsRefused) {
  const ScratchFolder folder;
  put_shards(folder);
  const std::string whole =
      R"({"metadata":{"total_size":12},"weight_map":{)" + kShardA + R"(,"z":"b.safetensors"}})";
  put(folder / "m.index.json", whole);
  ASSERT_NO_THROW(read_all(folder / "m.index.json"));
  for (size_t length = whole.size(); length-- > 0;) {
    SCOPED_TRACE(fmt::format("the first {} of {} bytes", length, whole.size()));
    fs::resize_file(folder / "m.index.json", length);
    expect_refused(folder / "m.index.json", {(folder / "m.index.json").string()});
  }
}

TEST(Index, AnIndexLongerThanAnyRealOneIsRefusedUnread) {
  const ScratchFolder folder;
  put(folder / "m.index.json", "{");
  fs::resize_file(folder / "m.index.json", uint64_t{1} << 40);  // sparse: takes no space
  expect_refused(folder / "m.index.json", {(folder / "m.index.json").string(), "at most 32000000"});
}

}  // namespace
}  // namespace weft::test
