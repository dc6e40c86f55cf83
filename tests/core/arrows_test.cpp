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

// What each folder of weft/ may include besides itself: the lines `weft_arrows(folder others...)`
// of weft/CMakeLists.txt, along which the targets link.
std::map<std::string, std::set<std::string>> read_arrows(std::istream& stream) {
  std::map<std::string, std::set<std::string>> table;
  std::string line;
  while (std::getline(stream, line)) {
    const size_t open = line.find("weft_arrows(");
    if (open == std::string::npos || line.find('#') < open) continue;
    const size_t begin = open + std::string("weft_arrows(").size();
    std::istringstream words(line.substr(begin, line.find(')') - begin));
    std::string folder, other;
    words >> folder;
    std::set<std::string>& others = table[folder];
    while (words >> other) others.insert(other);
  }
  return table;
}

const std::map<std::string, std::set<std::string>>& arrows() {
  static const auto table = [] {
    std::ifstream file(fs::path(WEFT_SOURCE_DIR) / "weft" / "CMakeLists.txt");
    return read_arrows(file);
  }();
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

// The folder of a path below weft/.
std::string folder_of(const std::string& path) { return path.substr(0, path.find('/')); }

// Why a file of `folder` must not have this include; empty if it may.
std::string objection(const std::string& folder, const std::string& include) {
  if (include.starts_with("cli/") || include.starts_with("bench/") ||
      include.starts_with("tests/")) {
    return "the library does not know its users";
  }
  const bool torch =
      include.starts_with("torch/") || include.starts_with("ATen/") || include.starts_with("c10/");
  const bool may = folder == "torch" || folder == "distributed" || folder == "train";
  if (torch && !may) return "only torch, distributed and train may";
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

TEST(Arrows, AreReadFromTheFileThatLinksAlongThem) {
  std::istringstream file(
      "# weft_arrows(no such)\nweft_arrows(core)\n  weft_arrows(pack core mask)\n");
  const auto table = read_arrows(file);
  EXPECT_EQ(table.size(), 2u);
  EXPECT_TRUE(table.at("core").empty());
  EXPECT_EQ(table.at("pack"), (std::set<std::string>{"core", "mask"}));
}

TEST(Arrows, ObjectToWhatTheyShould) {
  EXPECT_NE(objection("core", "weft/mask/solver.h"), "");
  EXPECT_NE(objection("mask", "weft/checkpoint/header.h"), "");
  EXPECT_NE(objection("mask", "torch/torch.h"), "");
  EXPECT_NE(objection("report", "cli/command.h"), "");
  EXPECT_EQ(objection("mask", "weft/core/mask.h"), "");
  EXPECT_NE(objection("data", "torch/torch.h"), "");
  EXPECT_NE(objection("data", "weft/recipe/recipe.h"), "");
  EXPECT_NE(objection("decode", "torch/torch.h"), "");
  EXPECT_NE(objection("run", "torch/torch.h"), "");
  EXPECT_NE(objection("layer", "torch/torch.h"), "");
  EXPECT_NE(objection("kernel", "weft/plan/planner.h"), "");
  EXPECT_EQ(objection("torch", "torch/torch.h"), "");
  EXPECT_EQ(objection("train", "torch/torch.h"), "");
  EXPECT_NE(objection("torch", "weft/train/trainer.h"), "");
  EXPECT_NE(objection("prune", "torch/torch.h"), "");
  EXPECT_NE(objection("prune", "weft/torch/step.h"), "");
}

}  // namespace
