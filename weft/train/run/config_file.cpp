// A run's options from a TOML file. On its own, because toml++ takes long to compile.
#define TOML_ENABLE_FORMATTERS 0
#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>

#include "weft/core/error.h"
#include "weft/core/regular_file.h"
#include "weft/core/text.h"
#include "weft/train/run/run_options.h"

namespace weft {
namespace {

std::string text_of(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* whole = node.as_integer()) return fmt::format("{}", whole->get());
  if (const auto* real = node.as_floating_point()) return fmt::format("{}", real->get());
  if (const auto* truth = node.as_boolean()) return truth->get() ? "true" : "false";
  throw Error("it is no text, number, truth value or list of these");
}

std::vector<std::string> texts_of(const toml::node& node) {
  std::vector<std::string> texts;
  if (const auto* list = node.as_array()) {
    for (const toml::node& item : *list) texts.push_back(text_of(item));
  } else {
    texts.push_back(text_of(node));
  }
  return texts;
}

}  // namespace

void read_config(const std::filesystem::path& path, RunOptions& options,
                 std::span<const std::string> except) {
  const std::string file = printable(path.string());
  const std::string text = read_small_file(path);
  toml::table table;
  try {
    table = toml::parse(text);
  } catch (const toml::parse_error& error) {
    throw Error(
        fmt::format("{}:{}: {}", file, error.source().begin.line, printable(error.description())));
  }
  for (const auto& [key, node] : table) {
    const std::string name(key.str());
    const std::string where = fmt::format("{}:{}", file, key.source().begin.line);
    const OptionField& field = option_field(name, where);
    WEFT_CHECK(std::ranges::find(except, name) == except.end(),
               "{}: the key '{}' does not go with this command", where, name);
    try {
      field.set(options, texts_of(node));
    } catch (const Error& error) {
      throw Error(fmt::format("{}: {}: {}", where, name, error.what()));
    }
  }
}

}  // namespace weft
