#include "cli/shared.h"

#include <algorithm>
#include <cstdio>
#include <functional>

#include "weft/core/text.h"

namespace weft::cli {

Flags::Problem problem_in(const std::function<void(const std::string&)>& parse) {
  return [parse](const std::string& text) -> std::string {
    try {
      parse(text);
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  };
}

Flags::Problem one_of(std::vector<std::string> accepted) {
  return [accepted = std::move(accepted)](const std::string& text) -> std::string {
    std::string list;
    for (const std::string& word : accepted) {
      if (word == text) return "";
      list += (list.empty() ? "" : ", ") + word;
    }
    return fmt::format("'{}': accepted are {}", printable(text), list);
  };
}

void CommonFlags::declare(Flags& flags) {
  flags.integer("--threads", threads, 1, kMaxThreads,
                "Threads; the result does not depend on their number");
  flags.flag("--json", json, "Print JSON instead of tables");
}

void CommonFlags::apply() const { set_threads(static_cast<int>(threads)); }

void declare_pattern(Flags& flags, std::string& pattern) {
  flags.text("--pattern", "N:M[xS]", pattern,
             "keep:group, as in 2:4; with xS, S rows share it, as in 2:4x2",
             problem_in([](const std::string& text) { Pattern::parse(text); }));
}

std::optional<Pattern> given_pattern(const std::string& pattern) {
  return pattern.empty() ? std::nullopt : std::optional(Pattern::parse(pattern));
}

void NameFilter::declare(Flags& flags) {
  flags.texts("--include", "RE", include,
              "Only tensors whose name matches (regular expression), heads and embeddings too",
              problem_in([](const std::string& text) { Selection(text, ""); }));
  flags.texts("--exclude", "RE", exclude, "No tensors whose name matches (regular expression)",
              problem_in([](const std::string& text) { Selection("", text); }));
  flags.texts("--transposed", "RE", transposed,
              "Tensors stored [ins, outs] (regular expression); GPT-2's are known already",
              problem_in([](const std::string& text) { Selection(text, ""); }));
}

NameExpressions NameFilter::expressions() const {
  // One expression that matches where any of them does.
  const auto any_of = [](const std::vector<std::string>& expressions) {
    std::string all;
    for (const std::string& each : expressions) {
      all += fmt::format("{}(?:{})", all.empty() ? "" : "|", each);
    }
    return all;
  };
  return {any_of(include), any_of(exclude), transposed};
}

Skipped skipped(const TensorInfo& tensor, LeftAlone reason) {
  return {tensor.name, reason_text(reason, tensor)};
}

std::vector<Skipped> skipped(const std::vector<SkippedTensor>& tensors) {
  std::vector<Skipped> list;
  for (const SkippedTensor& tensor : tensors) list.push_back(skipped(tensor.info, tensor.reason));
  return list;
}

std::string stored_shape_text(const std::vector<int64_t>& shape, bool transposed) {
  return shape_text(shape) + (transposed ? " = [ins, outs]" : "");
}

Json to_json(const std::vector<Skipped>& skipped) {
  Json list = Json::array();
  for (const Skipped& tensor : skipped) {
    list.push_back({{"name", tensor.name}, {"reason", tensor.reason}});
  }
  return list;
}

void TableFlags::declare(Flags& flags) {
  flags.flag("--wide", wide, "Print all columns of tables, in full; otherwise they fit 100");
}

void TableFlags::print(const Table& table) const {
  cli::print(table.str(wide ? 0 : kTableColumns));
}

void TableFlags::print_lines(const std::string& text) const {
  if (wide) return cli::print(text);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    for (const std::string& line : wrapped(text.substr(begin, end - begin), kTableColumns)) {
      cli::print(line + "\n");
    }
    begin = end + 1;
  }
}

void TensorTableFlags::declare(Flags& flags) {
  TableFlags::declare(flags);
  flags.flag("--verbose", verbose, "List the tensors that are left alone, each with the reason");
}

void TensorTableFlags::print_left_alone(const std::vector<Skipped>& skipped, size_t all) const {
  if (skipped.empty()) return;
  if (!verbose) {
    print_paragraph(fmt::format("{} of {} tensors left alone: {}; --verbose lists them",
                                skipped.size(), all, count_reasons(skipped)));
    return;
  }
  Table table({"left alone", "reason"});
  for (const Skipped& tensor : skipped) table.add({name_text(tensor.name), tensor.reason});
  cli::print("\n");
  print(table);
}

std::string count_reasons(const std::vector<Skipped>& skipped) {
  constexpr size_t kMost = 6;
  std::vector<std::pair<std::string, size_t>> counts;  // in the order of the file
  for (const Skipped& tensor : skipped) {
    const std::string& kind = tensor.kind.empty() ? tensor.reason : tensor.kind;
    const auto found = std::ranges::find(counts, kind, &std::pair<std::string, size_t>::first);
    if (found == counts.end()) {
      counts.emplace_back(kind, 1);
    } else {
      ++found->second;
    }
  }
  std::ranges::stable_sort(counts, std::greater(), &std::pair<std::string, size_t>::second);
  size_t others = 0;
  while (counts.size() > kMost) {
    others += counts.back().second;
    counts.pop_back();
  }
  if (others > 0) counts.emplace_back("other reasons", others);
  std::string text;
  for (const auto& [reason, count] : counts) {
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", reason, count);
  }
  return text;
}

void InPlaceFlag::declare(Flags& flags, const char* in) {
  const std::string help = fmt::format("Allow OUT to be {}; it is replaced atomically", in);
  flags.flag("--in-place", on, help.c_str());
}

Listener listener(Progress& progress) {
  const auto note = [&progress](const std::string& text) {
    progress.wipe();
    print_note(text);
  };
  return {[&progress](uint64_t done, uint64_t total) { progress.reach(done, total); }, note};
}

std::string threads_text(int count) {
  return fmt::format("{} thread{}", count, count == 1 ? "" : "s");
}

void print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

void print_paragraph(const std::string& text) {
  print("\n");
  for (const std::string& line : wrapped(text, kTableColumns)) print(line + "\n");
}

namespace {

std::string joined_names(const std::vector<std::filesystem::path>& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + name_text(name.string());
  return text;
}

Json json_of(const std::vector<std::filesystem::path>& names) {
  Json list = Json::array();
  for (const auto& name : names) list.push_back(name.string());
  return list;
}

}  // namespace

void print_written(const std::filesystem::path& path, const Companions& companions) {
  print(fmt::format("written to {}\n", path.string()));
  const auto lines = [](const char* what, const std::vector<std::filesystem::path>& names) {
    if (names.empty()) return;
    for (const std::string& line : wrapped(what + joined_names(names), kTableColumns)) {
      print(line + "\n");
    }
  };
  lines("copied beside it: ", companions.names);
  lines("not copied: ", companions.left);
}

Json to_json(const Companions& companions) {
  return {{"copied", json_of(companions.names)}, {"not_copied", json_of(companions.left)}};
}

std::string name_text(const std::string& name) { return printable(name, 4096); }

void print_note(const std::string& text) {
  const std::string line = "weft: " + printable(text, 2000) + "\n";
  std::fputs(line.c_str(), stderr);
}

void print_json(const Json& document) {
  // File names come from the command line and may be any bytes.
  print(document.dump(2, Json::BadText::kReplace) + "\n");
}

std::string percent(double fraction) { return fmt::format("{:.2f}%", 100 * fraction); }

std::string bytes_text(uint64_t bytes) {
  const auto size = static_cast<double>(bytes);
  if (size < 1e3) return fmt::format("{} B", bytes);
  if (size < 1e6) return fmt::format("{:.1f} kB", size / 1e3);
  if (size < 1e9) return fmt::format("{:.1f} MB", size / 1e6);
  return fmt::format("{:.2f} GB", size / 1e9);
}

std::string seconds_text(double seconds) {
  return seconds < 1 ? fmt::format("{:.2f} ms", 1e3 * seconds) : fmt::format("{:.2f} s", seconds);
}

}  // namespace weft::cli
