// What stands beside weights in a folder: what is taken, and that copies appear whole or not at all.
#include "weft/checkpoint/companions.h"

#include <gtest/gtest.h>

#include "tests/scratch_folder.h"
#include "tests/support.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<fs::path>;

TEST(Companions, AreWhatIsSmallAndNoWeights) {
  const ScratchFolder folder;
  for (const char* name : {"config.json", "vocab.txt", "model.safetensors", ".hidden", "model.onnx",
                           "model.safetensors.index.json", "consolidated.00.pth", "tf_model.h5"}) {
    put(folder / name, name);
  }
  fs::create_directory(folder / "onnx");
  put(folder / "onnx/config.json", "");
  const Companions found = companions_of(folder.path());
  EXPECT_EQ(found.names, (Names{"config.json", "vocab.txt"}));
  EXPECT_EQ(found.left, (Names{"consolidated.00.pth", "model.onnx", "tf_model.h5"}));
  EXPECT_TRUE(contains(message_of([&] { companions_of(folder / "none"); }), "none"));
}

class Copies : public ::testing::Test {
 protected:
  Copies() {
    fs::create_directories(from_ / "1_Pooling");
    put(from_ / "config.json", "new");
    put(from_ / "modules.json", R"([{"path": "1_Pooling"}])");
    put(from_ / "1_Pooling/config.json", "pooling");
    fs::create_directory(to_);
    put(to_ / "config.json", "old");
  }

  ScratchFolder folder_;
  fs::path from_ = folder_ / "from", to_ = folder_ / "to";
};

TEST_F(Copies, AppearWithCommitAndStayWithKeep) {
  CompanionCopies copies(companions_of(from_), to_);
  copies.write();
  EXPECT_EQ(contents(to_ / "config.json"), "old");
  EXPECT_FALSE(fs::exists(to_ / "modules.json"));
  copies.commit();
  copies.keep();
  EXPECT_EQ(contents(to_ / "config.json"), "new");
  EXPECT_EQ(contents(to_ / "1_Pooling/config.json"), "pooling");
}

TEST_F(Copies, AreGoneWithoutKeep) {
  {
    CompanionCopies copies(companions_of(from_), to_);
    copies.write();
  }
  EXPECT_EQ(names_in(to_), std::set<std::string>{"config.json"});
  EXPECT_EQ(contents(to_ / "config.json"), "old");
  {
    CompanionCopies copies(companions_of(from_), to_);
    copies.write();
    copies.commit();
  }
  EXPECT_EQ(names_in(to_), std::set<std::string>{"config.json"});
}

// As the handler of a signal does, between the copies and the weights.
TEST_F(Copies, AreGoneWhenASignalComes) {
  CompanionCopies copies(companions_of(from_), to_);
  copies.write();
  copies.commit();
  remove_unfinished_files();
  EXPECT_EQ(names_in(to_), std::set<std::string>{"config.json"});
}

}  // namespace
}  // namespace weft::test
