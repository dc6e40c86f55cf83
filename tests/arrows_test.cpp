// The arrows of the house (CONTRIBUTING.md): no folder includes what it may not know.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

// What each folder of weft/ may include besides itself; the targets of CMake link along the same
// arrows.
const std::map<std::string, std::set<std::string>>& arrows() {
  static const std::map<std::string, std::set<std::string>> table = {
      {"core", {}},
      {"checkpoint", {"core"}},
      {"mask", {"core"}},
      {"estimate", {"core"}},
      {"report", {"core"}},
      {"pack", {"core", "checkpoint", "mask", "estimate"}},
      {"kernel", {"core", "checkpoint", "mask", "estimate", "pack"}},
      {"train/recipes", {"core", "mask"}},
      {"train/data", {"core"}},
      {"train/decode", {"core", "checkpoint", "pack", "kernel"}},
      {"train/run", {"core", "checkpoint", "kernel", "train/data", "train/recipes"}},
      {"train",
       {"core", "checkpoint", "mask", "estimate", "pack", "kernel", "train/recipes", "train/data",
        "train/decode", "train/run"}},
      {"convert", {"core", "checkpoint", "mask", "pack", "kernel"}},
  };
  return table;
}

struct Include {
  std::string path;  // what stands between the quotes or brackets
  int line;
};

// `#include "path"` or `#include <path>`, with blanks wherever the language allows them.
std::string included_path(const std::string& line) {
  std::istringstream words(line);
  char hash = 0, open = 0;
  if (!(words >> hash) || hash != '#') return "";
  for (const char letter : std::string("include")) {
    char next = 0;
    if (!(words >> next >> std::noskipws) || next != letter) return "";
  }
  if (!(words >> std::skipws >> open) || (open != '"' && open != '<')) return "";
  std::string path;
  return std::getline(words, path, open == '<' ? '>' : '"') ? path : "";
}

std::vector<Include> includes_of(const fs::path& file) {
  std::vector<Include> found;
  std::ifstream stream(file);
  std::string line;
  for (int number = 1; std::getline(stream, line); ++number) {
    const std::string path = included_path(line);
    if (!path.empty()) found.push_back({path, number});
  }
  return found;
}

// The folder of a path below weft/: the first part, but the recipes, the data and the decoder of
// train need no torch and are folders of their own.
std::string folder_of(const std::string& path) {
  for (const std::string own : {"train/recipes", "train/data", "train/decode", "train/run"}) {
    if (path.starts_with(own + "/")) return own;
  }
  return path.substr(0, path.find('/'));
}

// Why a file of `folder` must not have this include; empty if it may.
std::string objection(const std::string& folder, const std::string& include) {
  if (include.starts_with("cli/") || include.starts_with("bench/") ||
      include.starts_with("tests/")) {
    return "the library does not know its users";
  }
  const bool torch =
      include.starts_with("torch/") || include.starts_with("ATen/") || include.starts_with("c10/");
  if (torch && folder != "train") return "only train may include torch";
  if (!include.starts_with("weft/")) return "";
  const std::string other = folder_of(include.substr(5));
  if (other == folder || arrows().at(folder).contains(other)) return "";
  return "against the arrows";
}

TEST(Arrows, AreFollowedByEveryInclude) {
  int files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(WEFT_SOURCE_DIR) / "weft")) {
    if (entry.path().extension() != ".h" && entry.path().extension() != ".cpp") continue;
    const std::string folder =
        folder_of(fs::relative(entry.path(), fs::path(WEFT_SOURCE_DIR) / "weft").string());
    ASSERT_TRUE(arrows().contains(folder)) << folder << " is not a folder of the house";
    for (const Include& include : includes_of(entry.path())) {
      EXPECT_EQ(objection(folder, include.path), "")
          << entry.path().string() << ":" << include.line << ": " << include.path;
    }
    ++files;
  }
  EXPECT_GT(files, 20) << "the sources were not found";
}

TEST(Arrows, SeeEveryWayToWriteAnInclude) {
  EXPECT_EQ(included_path("#include \"weft/core/mask.h\""), "weft/core/mask.h");
  EXPECT_EQ(included_path("  #  include   <torch/torch.h>  // why"), "torch/torch.h");
  EXPECT_EQ(included_path("#include<vector>"), "vector");
  EXPECT_EQ(included_path("// #include <vector>"), "");
  EXPECT_EQ(included_path("#define include <vector>"), "");
}

TEST(Arrows, ObjectToWhatTheyShould) {
  EXPECT_NE(objection("core", "weft/mask/solver.h"), "");
  EXPECT_NE(objection("mask", "weft/checkpoint/header.h"), "");
  EXPECT_NE(objection("mask", "torch/torch.h"), "");
  EXPECT_NE(objection("report", "cli/command.h"), "");
  EXPECT_EQ(objection("mask", "weft/core/mask.h"), "");
  EXPECT_NE(objection("train/data", "torch/torch.h"), "");
  EXPECT_NE(objection("train/data", "weft/train/recipes/recipe.h"), "");
  EXPECT_NE(objection("train/decode", "torch/torch.h"), "");
  EXPECT_NE(objection("train/run", "torch/torch.h"), "");
  EXPECT_EQ(objection("train", "torch/torch.h"), "");
  EXPECT_NE(objection("convert", "torch/torch.h"), "");
  EXPECT_NE(objection("convert", "weft/train/step.h"), "");
}

}  // namespace
