// What the subcommands share. Each has a file of its own, with one function that adds it.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "weft/checkpoint/checkpoint.h"
#include "weft/checkpoint/select.h"
#include "weft/core/error.h"
#include "weft/core/pattern.h"

namespace weft::cli {

using Json = nlohmann::ordered_json;

// Flags that go well together but not in this combination: exit code 2, like any wrong usage.
class UsageError : public Error {
 public:
  using Error::Error;
};

// A subcommand with its options; the result of run() is the exit code of the program.
class Command {
 public:
  virtual ~Command() = default;
  virtual int run() = 0;
};

// Adds a subcommand and runs `Options::run` if it is the one called. Options::declare(CLI::App&)
// declares its flags. `examples` are the lines that teach, shown by --help.
template <typename Options>
CLI::App* add_command(CLI::App& parent, std::unique_ptr<Command>& chosen, const std::string& name,
                      const std::string& description, const std::string& examples) {
  CLI::App* app = parent.add_subcommand(name, description);
  auto options = std::make_shared<std::unique_ptr<Options>>(std::make_unique<Options>());
  (*options)->declare(*app);
  app->footer("Examples:\n" + examples);
  app->callback([&chosen, options] { chosen = std::move(*options); });
  return app;
}

void add_bench(CLI::App& app, std::unique_ptr<Command>& chosen);
void add_check(CLI::App& app, std::unique_ptr<Command>& chosen);
void add_diversity(CLI::App& app, std::unique_ptr<Command>& chosen);
void add_info(CLI::App& app, std::unique_ptr<Command>& chosen);
void add_ladder(CLI::App& app, std::unique_ptr<Command>& chosen);
void add_mask(CLI::App& app, std::unique_ptr<Command>& chosen);
void add_solvers(CLI::App& app, std::unique_ptr<Command>& chosen);
void add_synth(CLI::App& app, std::unique_ptr<Command>& chosen);

// --json
void declare_json(CLI::App& app, bool& json);
// --threads, which takes effect at once
void declare_threads(CLI::App& app);
// --pattern; refuses what Pattern::parse refuses
CLI::Option* declare_pattern(CLI::App& app, std::string& pattern);
// --include and --exclude
struct NameFilter {
  std::string include;
  std::string exclude;

  void declare(CLI::App& app);
  Selection selection() const { return Selection(include, exclude); }
};

struct Skipped {
  std::string name;
  std::string reason;
};
Json to_json(const std::vector<Skipped>& skipped);
void print_skipped(const std::vector<Skipped>& skipped);

void print(const std::string& text);    // to standard output
void print_json(const Json& document);  // likewise, with a line end

std::string percent(double fraction);      // "70.23%"
std::string bytes_text(uint64_t bytes);    // "1.5 MB"
std::string seconds_text(double seconds);  // "1.23 s", "12.3 ms"

}  // namespace weft::cli
