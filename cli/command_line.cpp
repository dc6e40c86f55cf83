// The command line on CLI11.
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>

#include "cli/command.h"
#include "weft/core/number.h"
#include "weft/core/text.h"

namespace weft::cli {
namespace {

class CliFlags : public Flags {
 public:
  explicit CliFlags(CLI::App& app) : app_(app) {}

  void positional(const char* name, std::string& value, const char* help) override {
    app_.add_option(name, value, help)->required();
  }
  void positionals(const char* name, std::vector<std::string>& values, const char* help) override {
    app_.add_option(name, values, help)->required();
  }
  void flag(const char* name, bool& value, const char* help) override {
    app_.add_flag(name, value, help);
  }
  void text(const char* name, const char* type, std::string& value, const char* help,
            const Problem& problem) override {
    constrain(last_wins(app_.add_option(name, value, help)), type, problem);
  }
  void texts(const char* name, const char* type, std::vector<std::string>& values, const char* help,
             const Problem& problem) override {
    // One value each time it is given: what follows may be a positional.
    constrain(app_.add_option(name, values, help)->allow_extra_args(false)->capture_default_str(),
              type, problem);
  }
  void integer(const char* name, int64_t& value, int64_t low, int64_t high,
               const char* help) override {
    const bool limited = high < std::numeric_limits<int64_t>::max();
    add_number(name, value, help, limited ? fmt::format("{}-{}", low, high) : "",
               [=](const std::string& text) { return parse_integer(text, low, high); });
  }
  void number(const char* name, double& value, double low, double high, const char* help) override {
    add_number(name, value, help, "",
               [=](const std::string& text) { return parse_number(text, low, high); });
  }
  void size(const char* name, uint64_t& value, const char* help) override {
    last_wins(app_.add_option(name, value, help))
        ->transform(CLI::AsSizeValue(true))
        ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 50).description(""))
        ->type_name("SIZE");
  }
  void require(const char* name) override { app_.get_option(name)->required(); }
  void exclude(const char* name, const char* other) override {
    app_.get_option(name)->excludes(app_.get_option(other));
  }

 private:
  template <typename Number, typename Parse>
  void add_number(const char* name, Number& value, const char* help, const std::string& range,
                  Parse parse) {
    // CLI11 reads 010 as eight. So it gets what was checked, written in its shortest form.
    const auto problem = [parse](std::string& text) -> std::string {
      try {
        text = fmt::format("{}", parse(text));
        return "";
      } catch (const Error& error) {
        return error.what();
      }
    };
    last_wins(app_.add_option(name, value, help))
        ->transform(CLI::Validator(problem, range))
        ->capture_default_str();
  }
  static CLI::Option* last_wins(CLI::Option* option) {
    return option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }
  static void constrain(CLI::Option* option, const char* type, const Problem& problem) {
    option->type_name(type);
    if (problem) option->check(problem);
  }

  CLI::App& app_;
};

CLI::App* find_subcommand(CLI::App& app, const std::string& name) {
  for (CLI::App* command : app.get_subcommands({})) {
    if (command->get_name() == name) return command;
  }
  return nullptr;
}

// "bench solve" goes under "bench", which is made when its first command comes.
CLI::App* add_subcommand(CLI::App& root, const CommandEntry& entry) {
  const size_t space = entry.name.find(' ');
  if (space == std::string::npos) {
    CLI::App* command = root.add_subcommand(entry.name, entry.description);
    if (!entry.group.empty()) command->group(entry.group);
    return command;
  }
  const std::string group = entry.name.substr(0, space);
  CLI::App* parent = find_subcommand(root, group);
  if (parent == nullptr) {
    parent = root.add_subcommand(
        group, "Benchmarks, each against a dense or reference peer in the same run");
    parent->require_subcommand(1);
    if (!entry.group.empty()) parent->group(entry.group);
  }
  return parent->add_subcommand(entry.name.substr(space + 1), entry.description);
}

std::string full_name(const CLI::App& app) {
  const auto called = app.get_subcommands();
  return called.empty() ? app.get_name() : app.get_name() + " " + full_name(*called.front());
}

// ": did you mean 'train'?" if a word is nearly one of `known`, else `otherwise`.
std::string suggestion(const std::string& word, const std::vector<std::string>& known,
                       const std::string& otherwise) {
  if (known.empty()) return otherwise;
  const std::string& nearest = nearest_word(word, known);
  return is_likely_typo(word, nearest) ? fmt::format(": did you mean '{}'?", nearest) : otherwise;
}

// CLI11 answers a wrong command with "a subcommand is required" and does not name it.
std::string unknown_command(const std::vector<std::string>& words, CLI::App& root) {
  CLI::App* app = &root;
  for (const std::string& word : words) {
    if (word.starts_with('-') || app->get_subcommands({}).empty()) return "";
    CLI::App* const next = find_subcommand(*app, word);
    if (next == nullptr) {
      std::vector<std::string> known;
      for (const CLI::App* command : app->get_subcommands({})) known.push_back(command->get_name());
      return fmt::format(
          "unknown command '{}'{}", printable(word),
          suggestion(word, known, fmt::format(": accepted are {}", fmt::join(known, ", "))));
    }
    app = next;
  }
  return "";
}

// The first flag that the called command does not have. CLI11 would complain of what is missing
// before it, and suggests nothing.
std::string unknown_flag(const CLI::App& root) {
  std::vector<std::string> left = root.remaining();
  const CLI::App* app = &root;
  while (!app->get_subcommands().empty()) {
    app = app->get_subcommands().front();
    const std::vector<std::string> more = app->remaining();
    left.insert(left.end(), more.begin(), more.end());
  }
  std::vector<std::string> known;
  for (const CLI::Option* option : app->get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  }
  for (const std::string& word : left) {
    if (word.size() < 2 || word[0] != '-') continue;
    const std::string flag = word.substr(0, word.find('='));
    return fmt::format("unknown flag '{}'{}", printable(flag), suggestion(flag, known, ""));
  }
  return "";
}

// `weft help mask`, and `weft` and `weft bench` alone, are written with --help.
std::vector<std::string> with_help_flag(std::vector<std::string> words, CLI::App& app) {
  const CLI::App* group = words.size() == 1 ? find_subcommand(app, words[0]) : nullptr;
  if (words.empty() || (group != nullptr && !group->get_subcommands({}).empty())) {
    words.emplace_back("--help");
  }
  if (words.front() != "help") return words;
  words.erase(words.begin());
  words.push_back("--help");
  return words;
}

}  // namespace

Parsed parse_command_line(int argc, char** argv, std::vector<CommandEntry>& commands,
                          const std::string& version) {
  CLI::App app(
      "Train neural networks whose weights are N:M sparse, and make trained ones sparse.\n"
      "A pattern 2:4 keeps at most 2 of every 4 consecutive weights. weft trains with the methods\n"
      "of the papers (weft recipes), prunes and converts checkpoints, checks and packs them, and\n"
      "multiplies sparse weights faster than dense ones where that is measured to pay.",
      "weft");
  app.set_version_flag("--version", version);
  app.require_subcommand(1);
  app.get_formatter()->column_width(36);
  app.footer(
      "Examples:\n"
      "  weft train --model mlp --width 1024 --batch 512 --steps 100 --pattern 1:4 --out "
      "runs/first\n"
      "  weft convert model.safetensors sparse.safetensors --pattern 2:4\n"
      "  weft check sparse.safetensors\n"
      "  weft pack sparse.safetensors packed.safetensors\n"
      "\n"
      "`weft help COMMAND` shows the flags of a command, with examples.");

  Parsed parsed;
  for (CommandEntry& entry : commands) {
    CLI::App* subcommand = add_subcommand(app, entry);
    CliFlags flags(*subcommand);
    entry.command->declare(flags);
    subcommand->footer("Examples:\n" + entry.examples);
    subcommand->callback([&parsed, &entry] { parsed.command = entry.command.get(); });
  }
  std::vector<std::string> words = with_help_flag({argv + std::min(argc, 1), argv + argc}, app);
  try {
    parsed.error = unknown_command(words, app);
    std::ranges::reverse(words);  // as CLI11 wants them
    if (parsed.error.empty()) app.parse(std::move(words));
  } catch (const CLI::CallForVersion&) {
    parsed.help = version + "\n";
  } catch (const CLI::Success&) {  // --help
    parsed.help = app.help();      // of the command that was called, if one was
  } catch (const CLI::ParseError& error) {
    parsed.error = unknown_flag(app);
    if (parsed.error.empty()) parsed.error = error.what();
  }
  parsed.name = full_name(app);
  if (!parsed.error.empty()) parsed.exit_code = 2;
  if (!parsed.error.empty() || !parsed.help.empty()) parsed.command = nullptr;
  return parsed;
}

}  // namespace weft::cli
