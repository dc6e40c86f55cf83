// The commands that the pages for users print: README.md and docs/*.md.
//
// A command is a line of a block that begins with ```sh, with its continuation lines. Elsewhere no line
// may begin like a command: then nobody runs it.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace weft::test {

struct PrintedCommand {
  std::string text;  // as printed, with its comment
  int line = 0;      // its first one
};

struct DocPage {
  std::string name;  // "docs/files.md"
  std::vector<PrintedCommand> commands;
  std::vector<PrintedCommand> strays;    // commands outside of such blocks
  std::vector<PrintedCommand> mentions;  // `weft mask --reorder`, within a sentence
  std::string toml;                      // the first block of this kind
};

inline bool begins_like_a_command(const std::string& line) {
  static const std::set<std::string> kPrograms = {
      "weft", "weft-train", "make", "cmake", "ctest", "ninja",      "git",
      "sudo", "pip",        "sh",   "apt",   "cp",    "auditwheel", "torchrun"};
  std::istringstream words(line);
  std::string first;
  words >> first;
  return kPrograms.contains(first) || first.starts_with("scripts/") ||
         (first.starts_with("build/") && !first.ends_with(':')) || first.starts_with("./") ||
         first.starts_with("WEFT_");
}

inline DocPage read_doc_page(const std::filesystem::path& root, const std::string& name) {
  DocPage page{name, {}, {}, {}, {}};
  std::ifstream file(root / name);
  enum class Block { kNone, kShell, kToml, kOther } block = Block::kNone;
  bool continued = false;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.starts_with("```")) {
      block = block != Block::kNone ? Block::kNone
              : line == "```sh"     ? Block::kShell
              : line == "```toml"   ? Block::kToml
                                    : Block::kOther;
      continued = false;
      continue;
    }
    if (block == Block::kShell) {
      const size_t first = line.find_first_not_of(' ');
      if (first == std::string::npos || (!continued && line[first] == '#')) continue;
      if (continued) {
        page.commands.back().text += "\n" + line;
      } else {
        page.commands.push_back({line, number});
      }
      continued = line.ends_with('\\');
      continue;
    }
    if (block == Block::kToml) page.toml += line + "\n";
    const bool is_indented = line.starts_with("    ");
    if ((block == Block::kOther || is_indented) && begins_like_a_command(line)) {
      page.strays.push_back({line, number});
    }
    if (block != Block::kNone) continue;
    for (size_t at = line.find("`weft "); at != std::string::npos;
         at = line.find("`weft ", at + 1)) {
      const size_t end = line.find('`', at + 1);
      if (end != std::string::npos) {
        page.mentions.push_back({line.substr(at + 1, end - at - 1), number});
      }
    }
  }
  return page;
}

inline std::vector<std::string> doc_page_names(const std::filesystem::path& root) {
  std::vector<std::string> names = {"README.md"};
  for (const auto& entry : std::filesystem::directory_iterator(root / "docs")) {
    if (entry.path().extension() == ".md") {
      names.push_back("docs/" + entry.path().filename().string());
    }
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace weft::test
