#include "weft/run/repeat_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace weft {
namespace {

// What a user gets who names the model and the optimiser alone.
RunOptions default_options(const RunOptions& like) {
  RunOptions defaults;
  defaults.model = like.model;
  defaults.optimizer = like.optimizer;
  defaults.context = like.context;  // eval_samples follows from it
  defaults = defaults.resolved();
  defaults.context = RunOptions().context;
  return defaults;
}

}  // namespace

std::string shell_word(std::string_view text) {
  const bool plain = !text.empty() && std::ranges::all_of(text, [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("_@%+=:,./-").find(c) != std::string_view::npos;
  });
  if (plain) return std::string(text);
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string repeat_command(const std::filesystem::path& folder, const RunOptions& options) {
  RunOptions run = options;
  const RunOptions defaults = default_options(run);
  if (run.plan != "dense" && run.plan != "sparse") run.plan = (folder / "run.json").string();
  std::string command = "weft train";
  for (const OptionField& field : option_fields()) {
    const std::vector<std::string> values = field.get(run);
    const bool usual = field.name != "model" && field.name != "recipe" && field.name != "pattern";
    if (usual && values == field.get(defaults)) continue;
    for (const std::string& value : values) {
      command += fmt::format(" --{}", field.name);
      if (field.kind != OptionKind::kSwitch) command += fmt::format(" {}", shell_word(value));
    }
  }
  std::filesystem::path again = folder.lexically_normal();
  if (!again.has_filename()) again = again.parent_path();  // "runs/first/"
  return fmt::format("{} --out {}", command, shell_word(again.string() + "-again"));
}

}  // namespace weft
