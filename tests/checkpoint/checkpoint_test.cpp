// Checkpoints of one file and of shards: what is written is read back bit for bit, and what is not
// committed leaves no trace.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "tests/checkpoint/tensor_files.h"
#include "tests/scratch_folder.h"
#include "tests/support.h"
#include "weft/checkpoint/checkpoint.h"
#include "weft/checkpoint/sparsity.h"
#include "weft/core/atomic_file.h"
#include "weft/core/error.h"
#include "weft/core/json.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;

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
// that takes minutes instead of a second. One checkpoint should take about as long as eight with an
// eighth of its tensors each, and would take up to eight times as long. What else the machine does may
// disturb one attempt, not all three.
TEST(CheckpointWriter, TimeGrowsWithTheNumberOfTensorsAndNotItsSquare) {
  double least = std::numeric_limits<double>::infinity();
  for (int attempt = 0; attempt < 3 && least >= 3; ++attempt) {
    double eight = 0;
    for (int i = 0; i < 8; ++i) eight += seconds_for(6'000);
    least = std::min(least, seconds_for(48'000) / eight);
  }
  EXPECT_LT(least, 3) << "48000 tensors in one checkpoint against 6000 in each of eight";
}

}  // namespace
}  // namespace weft::test
