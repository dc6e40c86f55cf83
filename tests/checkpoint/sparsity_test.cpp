// The sparsity that a file declares: in its metadata, and shard by shard.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/checkpoint/tensor_files.h"
#include "tests/scratch_folder.h"
#include "tests/support.h"
#include "weft/checkpoint/checkpoint.h"
#include "weft/checkpoint/safetensors.h"
#include "weft/checkpoint/sparsity.h"

namespace weft::test {
namespace {

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

}  // namespace
}  // namespace weft::test
