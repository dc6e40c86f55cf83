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

// "runs/first-again"
std::string folder_again(const std::filesystem::path& folder) {
  std::filesystem::path again = folder.lexically_normal();
  if (!again.has_filename()) again = again.parent_path();  // "runs/first/"
  return shell_word(again.string() + "-again");
}

std::string flag_of(const OptionField& field, const std::string& value) {
  const bool is_switch = field.kind == OptionKind::kSwitch;
  return fmt::format(" --{}{}", field.name, is_switch ? "" : " " + shell_word(value));
}

// Whether another value of the option may give another model.
bool changes_results(const std::string& option) {
  return option != "data" && option != "export" && option != "checkpoint-every";
}

bool changes_results(const RunChange& change) {
  return std::ranges::any_of(change.was.members(),
                             [](const Json::Member& one) { return changes_results(one.name); });
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
    for (const std::string& value : values) command += flag_of(field, value);
  }
  return fmt::format("{} --out {}", command, folder_again(folder));
}

Repetition repetition_of(const std::filesystem::path& folder, const RunOptions& options,
                         const std::vector<RunChange>& changes) {
  Repetition found;
  RunOptions at = options;  // before the changes that have been gone through, from the last one
  for (auto change = changes.rbegin(); change != changes.rend(); ++change) {
    std::string resumed = "weft train --resume " + folder_again(folder);
    for (const OptionField& field : option_fields()) {
      if (!change->was.contains(field.name) || !changes_results(field.name)) continue;
      for (const std::string& value : field.get(at)) resumed += flag_of(field, value);
    }
    at = change->undone(at);
    if (!changes_results(*change)) continue;
    if (change->step != at.steps) {
      return {{}, fmt::format("changed after step {}: {}", change->step, change->text())};
    }
    found.commands.insert(found.commands.begin(), resumed);
  }
  at.data = options.data;  // where it is now
  at.exports = options.exports;
  at.checkpoint_every = options.checkpoint_every;
  found.commands.insert(found.commands.begin(), repeat_command(folder, at));
  return found;
}

}  // namespace weft
