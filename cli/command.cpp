#include "cli/command.h"

#include <cstdio>

#include "weft/core/parallel.h"
#include "weft/core/text.h"
#include "weft/report/table.h"

namespace weft::cli {

void declare_json(CLI::App& app, bool& json) {
  app.add_flag("--json", json, "Print JSON for machines instead of tables");
}

void declare_threads(CLI::App& app) {
  app.add_option_function<int>("--threads", set_threads,
                               "Threads to use (default: all cores); results do not depend on it")
      ->check(CLI::Range(1, kMaxThreads));
}

CLI::Option* declare_pattern(CLI::App& app, std::string& pattern) {
  const auto refusal = [](const std::string& text) -> std::string {
    try {
      Pattern::parse(text);
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  };
  return app
      .add_option("--pattern", pattern,
                  "keep:group, as in 2:4; with xS, S rows share it, as in 2:4x2")
      ->check(refusal)
      ->type_name("N:M[xS]");
}

void NameFilter::declare(CLI::App& app) {
  app.add_option("--include", include, "Only tensors whose name matches (regular expression)")
      ->type_name("RE");
  app.add_option("--exclude", exclude, "No tensors whose name matches (regular expression)")
      ->type_name("RE");
}

Json to_json(const std::vector<Skipped>& skipped) {
  Json list = Json::array();
  for (const Skipped& tensor : skipped) {
    list.push_back({{"name", tensor.name}, {"reason", tensor.reason}});
  }
  return list;
}

void print_skipped(const std::vector<Skipped>& skipped) {
  if (skipped.empty()) return;
  Table table({"skipped", "reason"});
  for (const Skipped& tensor : skipped) table.add({printable(tensor.name), tensor.reason});
  print("\n" + table.str());
}

void print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

void print_json(const Json& document) {
  // File names come from the command line and may be any bytes.
  print(document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
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
