// Folders of Hugging Face: what stands beside the weights comes along, and a folder appears whole.
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "tests/cli/bert.h"
#include "tests/support.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;

const std::map<std::string, std::string> kFiles = {
    {"config.json", R"({"model_type": "bert", "vocab_size": 40})"},
    {"generation_config.json", "{}"},
    {"tokenizer.json", R"({"version": "1.0"})"},
    {"tokenizer_config.json", "{}"},
    {"special_tokens_map.json", "{}"},
    {"vocab.txt", "[PAD]\nweft\n"},
    {"modeling_mine.py", "import torch\n"}};

std::set<std::string> companion_names() {
  std::set<std::string> names;
  for (const auto& [name, text] : kFiles) names.insert(name);
  return names;
}

class Folders : public ::testing::Test {
 protected:
  Folders() { make("in"); }

  std::string path(const std::string& name) const { return folder_ / name; }
  void make(const std::string& name) const {
    fs::create_directory(path(name));
    write_file(path(name + "/model.safetensors"), bert_tensors(1));
    for (const auto& [file, text] : kFiles) put(path(name + "/" + file), text);
    put(path(name + "/.gitattributes"), "*.bin lfs\n");
    put(path(name + "/pytorch_model.bin"), "the same weights");
    put(path(name + "/pytorch_model.bin.index.json"), "{}");
  }
  // The same with two shards under an index.
  void shard(const std::string& name) const {
    fs::remove(path(name + "/model.safetensors"));
    std::vector<NamedTensor> tensors = bert_tensors(1), first(tensors.begin(), tensors.begin() + 9);
    tensors.erase(tensors.begin(), tensors.begin() + 9);
    std::map<std::string, std::string> shard_of;
    const auto add = [&](const char* shard, const std::vector<NamedTensor>& part) {
      write_file(path(name + "/" + shard), part);
      for (const NamedTensor& tensor : part) shard_of[tensor.name] = shard;
    };
    add("model-00001-of-00002.safetensors", first);
    add("model-00002-of-00002.safetensors", tensors);
    put(path(name + "/model.safetensors.index.json"),
        Json{{"metadata", {{"total_size", 1}}}, {"weight_map", shard_of}}.dump());
  }
  void expect_companions(const std::string& name, std::set<std::string> weights) const {
    weights.merge(companion_names());
    EXPECT_EQ(names_in(path(name)), weights);
    for (const auto& [file, text] : kFiles) EXPECT_EQ(contents(path(name + "/" + file)), text);
  }

  ScratchFolder folder_;
};

TEST_F(Folders, OfOneFileCarryTheirCompanions) {
  const Outcome outcome = run({"mask", path("in"), path("out"), "--pattern", "2:4"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  expect_companions("out", {"model.safetensors"});
  EXPECT_TRUE(contains(outcome.out, "written to " + path("out/model.safetensors") + "\n"));
  EXPECT_TRUE(contains(outcome.out, "copied beside it: config.json, generation_config.json"));
  EXPECT_TRUE(contains(outcome.out, "not copied: pytorch_model.bin,")) << outcome.out;
  EXPECT_EQ(run({"check", path("out")}).code, 0);
  // Again, over what is there; and with a slash, as shells complete it.
  put(path("in/vocab.txt"), "new\n");
  ASSERT_EQ(run({"mask", path("in/"), path("out/"), "--pattern", "1:4"}).code, 0);
  EXPECT_EQ(contents(path("out/vocab.txt")), "new\n");
  EXPECT_EQ(run({"check", path("out"), "--json"}).json()["pattern"], "1:4");
}

// Readers would find the index first, and go on with the shards that were there.
TEST_F(Folders, OfOneFileDoNotGoBesideTheIndexOfOthers) {
  make("out");
  shard("out");
  const std::set<std::string> before = names_in(path("out"));
  const Outcome outcome = run({"mask", path("in"), path("out"), "--pattern", "2:4"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.err, "weft: " + path("out") +
                             ": has model.safetensors.index.json, which leads to other weights: "
                             "choose another folder, or remove it\n");
  EXPECT_EQ(names_in(path("out")), before);
  // Shards replace shards.
  shard("in");
  EXPECT_EQ(run({"mask", path("in"), path("out"), "--pattern", "2:4"}).code, 0);
}

TEST_F(Folders, OfShardsCarryTheirCompanions) {
  shard("in");
  ASSERT_EQ(run({"mask", path("in"), path("out"), "--pattern", "2:4"}).code, 0);
  expect_companions("out", {"model.safetensors.index.json", "model-00001-of-00002.safetensors",
                            "model-00002-of-00002.safetensors"});
  EXPECT_EQ(run({"check", path("out")}).code, 0);
}

TEST_F(Folders, PassThroughEveryCommand) {
  const std::string sparse = path("sparse");
  const Json converted = run({"convert", path("in"), sparse, "--pattern", "2:4", "--json"}).json();
  EXPECT_EQ(converted["companions"]["copied"].size(), kFiles.size());
  EXPECT_EQ(converted["companions"]["not_copied"],
            Json({"pytorch_model.bin", "pytorch_model.bin.index.json"}));
  ASSERT_EQ(run({"pack", sparse, path("packed")}).code, 0);
  ASSERT_EQ(run({"unpack", path("packed"), path("unpacked")}).code, 0);
  write_file(path("delta.safetensors"), {bert_tensors(1)[5]});
  ASSERT_EQ(run({"merge", sparse, path("delta.safetensors"), path("merged")}).code, 0);
  for (const char* name : {"sparse", "packed", "unpacked", "merged"}) {
    expect_companions(name, {"model.safetensors"});
  }
  EXPECT_EQ(contents(path("unpacked/model.safetensors")),
            contents(path("sparse/model.safetensors")));
}

TEST_F(Folders, AreOnlyMadeWhereAFolderIsNamed) {
  // A file from a folder, and a folder from a file.
  ASSERT_EQ(run({"mask", path("in"), path("o.safetensors"), "--pattern", "2:4"}).code, 0);
  EXPECT_TRUE(fs::is_regular_file(path("o.safetensors")));
  EXPECT_EQ(names_in(folder_.path()), (std::set<std::string>{"in", "o.safetensors"}));
  fs::create_directory(path("out"));
  expect_one_line(run({"mask", path("in/model.safetensors"), path("out"), "--pattern", "2:4"}), 1,
                  {path("out"), "is a folder", "config.json"});
  EXPECT_EQ(names_in(path("out")), std::set<std::string>());
  put(path("taken"), "");
  expect_one_line(run({"mask", path("in"), path("taken"), "--pattern", "2:4"}), 1,
                  {path("taken"), "is a file", "ends in .safetensors"});
  ASSERT_EQ(run({"convert", path("in"), path("dry"), "--pattern", "2:4", "--dry-run"}).code, 0);
  EXPECT_FALSE(fs::exists(path("dry")));
  // In place there is nothing to copy.
  ASSERT_EQ(run({"mask", path("in"), path("in"), "--pattern", "2:4", "--in-place"}).code, 0);
  EXPECT_TRUE(fs::exists(path("in/pytorch_model.bin")));
}

TEST_F(Folders, OfSentenceTransformersCarryTheirModules) {
  put(path("in/modules.json"), R"([{"idx": 0, "path": ""}, {"idx": 1, "path": "1_Pooling"},
      {"idx": 2, "path": "2_Dense"}, {"idx": 3, "path": "../in"}, {"idx": 4, "path": "3_Normalize"}])");
  for (const char* name : {"1_Pooling", "2_Dense", "checkpoint-500"}) {
    fs::create_directory(path("in/" + std::string(name)));
    put(path("in/" + std::string(name) + "/config.json"), name);
  }
  put(path("in/2_Dense/model.safetensors"), "a dense layer");
  ASSERT_EQ(run({"mask", path("in"), path("out"), "--pattern", "2:4"}).code, 0);
  std::set<std::string> names = companion_names();
  names.insert({"model.safetensors", "modules.json", "1_Pooling", "2_Dense"});
  EXPECT_EQ(names_in(path("out")), names);
  EXPECT_EQ(contents(path("out/1_Pooling/config.json")), "1_Pooling");
  EXPECT_EQ(contents(path("out/2_Dense/model.safetensors")), "a dense layer");
  put(path("in/modules.json"), "[{");
  expect_one_line(run({"mask", path("in"), path("o"), "--pattern", "2:4"}), 1, {"modules.json"});
  EXPECT_FALSE(fs::exists(path("o")));
}

// As the cache of Hugging Face keeps them.
TEST_F(Folders, OfLinksBecomeFiles) {
  fs::create_directory(path("snapshot"));
  for (const std::string& name : names_in(path("in"))) {
    fs::create_symlink("../in/" + name, path("snapshot/" + name));
  }
  ASSERT_EQ(run({"mask", path("snapshot"), path("out"), "--pattern", "2:4"}).code, 0);
  expect_companions("out", {"model.safetensors"});
  for (const std::string& name : names_in(path("out"))) {
    EXPECT_FALSE(fs::is_symlink(path("out/" + name))) << name;
  }
  // Nothing is written through a link that leads elsewhere.
  fs::remove(path("out/config.json"));
  put(path("elsewhere"), "mine");
  fs::create_symlink("../elsewhere", path("out/config.json"));
  expect_one_line(run({"mask", path("in"), path("out"), "--pattern", "1:4"}), 1,
                  {path("out/config.json"), "symbolic link"});
  EXPECT_EQ(contents(path("elsewhere")), "mine");
  EXPECT_EQ(run({"check", path("out"), "--json"}).json()["pattern"], "2:4") << "nothing changed";
}

TEST_F(Folders, LeaveLargeFilesBehind) {
  put(path("in/recording.wav"), "");
  fs::resize_file(path("in/recording.wav"), 100'000'000);
  const Outcome outcome = run({"mask", path("in"), path("out"), "--pattern", "2:4"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  expect_companions("out", {"model.safetensors"});
  EXPECT_TRUE(contains(outcome.out, "recording.wav")) << outcome.out;
}

TEST_F(Folders, ThatFailLeaveNothing) {
  std::vector<NamedTensor> tensors = bert_tensors(1);
  tensors.back().values.back() = tensors[5].values[0] = std::nanf("");
  write_file(path("in/model.safetensors"), tensors);
  expect_one_line(run({"mask", path("in"), path("out"), "--pattern", "2:4"}), 1, {"nan"});
  EXPECT_EQ(names_in(folder_.path()), std::set<std::string>{"in"});
  expect_one_line(run({"mask", path("in"), path("no/out"), "--pattern", "2:4"}), 1,
                  {"no/out", "cannot make the folder"});
}

class KilledFolders : public Folders {
 protected:
  // Begins a mask that takes long, and sends a signal when it writes.
  Outcome kill_with(int signal) {
    Program program({"mask", path("in"), path("out"), "--pattern", "16:32", "--transposable",
                     "--solver", "flow"});
    for (int i = 0; i < 2000 && !fs::exists(path("out")); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ::kill(program.pid(), signal);
    return program.wait();
  }
  void SetUp() override {
    ASSERT_EQ(run({"synth", path("in/model.safetensors"), "--width", "512", "--layers", "3"}).code,
              0);
  }
};

TEST_F(KilledFolders, AreGoneAfterASignal) {
  EXPECT_EQ(kill_with(SIGTERM).code, 128 + SIGTERM);
  EXPECT_FALSE(fs::exists(path("out")));
}

TEST_F(KilledFolders, AreRefusedAfterAKill) {
  EXPECT_EQ(kill_with(SIGKILL).code, 128 + SIGKILL);
  for (const std::string& name : names_in(path("out"))) EXPECT_TRUE(name.starts_with('.')) << name;
  expect_one_line(run({"check", path("out")}), 1, {"no .safetensors file"});
  // And written again as if nothing had been there.
  ASSERT_EQ(run({"mask", path("in"), path("out"), "--pattern", "2:4"}).code, 0);
  expect_companions("out", {"model.safetensors"});
}

}  // namespace
}  // namespace weft::test
