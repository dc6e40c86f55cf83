// A subcommand: flags that it declares, and a run that returns the exit code of the program.
//
// Only command_line.cpp includes CLI11, which takes longer to compile than all of weft's commands.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "weft/core/error.h"

namespace weft::cli {

// Flags that are valid alone, but not in this combination: exit code 2, like any wrong usage.
class UsageError : public Error {
 public:
  using Error::Error;
};

// The flags of a command. The variables keep their values where a flag is not given; they are the
// defaults that --help shows.
class Flags {
 public:
  // What is wrong with a value, or nothing.
  using Problem = std::function<std::string(const std::string&)>;

  virtual ~Flags() = default;
  virtual void positional(const char* name, std::string& value, const char* help) = 0;
  virtual void positionals(const char* name, std::vector<std::string>& values,
                           const char* help) = 0;  // one or more
  virtual void flag(const char* name, bool& value, const char* help) = 0;
  virtual void text(const char* name, const char* type, std::string& value, const char* help,
                    const Problem& problem = {}) = 0;
  virtual void texts(const char* name, const char* type, std::vector<std::string>& values,
                     const char* help, const Problem& problem = {}) = 0;
  virtual void integer(const char* name, int64_t& value, int64_t low, int64_t high,
                       const char* help) = 0;
  virtual void number(const char* name, double& value, double low, double high,
                      const char* help) = 0;
  virtual void size(const char* name, uint64_t& value, const char* help) = 0;  // as in 4GB
  virtual void require(const char* name) = 0;
  virtual void exclude(const char* name, const char* other) = 0;
};
// Names may be several, separated by commas: "--learning-rate,--lr". Of flags that take one value,
// the last one wins; texts() collects all.

class Command {
 public:
  virtual ~Command() = default;
  virtual void declare(Flags& flags) = 0;
  virtual int run() = 0;
  // Whether it takes timings, so that the user is warned of a busy machine.
  virtual bool measures() const { return false; }
};

struct CommandEntry {
  std::string name;  // "mask", or "bench solve"
  std::string description;
  std::string examples;  // lines that teach, shown by --help
  std::unique_ptr<Command> command;
  std::string group = "";  // the heading that `weft --help` lists it under
};

CommandEntry bench_attention_command();
CommandEntry bench_conv_command();
CommandEntry bench_convert_command();
CommandEntry bench_gemm_command();
CommandEntry bench_solve_command();
CommandEntry check_command();
CommandEntry diversity_command();
CommandEntry export_command();
CommandEntry generate_command();
CommandEntry info_command();
CommandEntry kernels_command();
CommandEntry ladder_command();
CommandEntry mask_command();
CommandEntry merge_command();
CommandEntry pack_command();
CommandEntry plan_command();
CommandEntry recipes_command();
CommandEntry report_command();
CommandEntry solvers_command();
CommandEntry study_command();
CommandEntry synth_command();
CommandEntry unpack_command();

// The command that was called, its flags filled in; or, if there is nothing to run (--help, or
// wrong usage), an exit code and what to print.
struct Parsed {
  Command* command = nullptr;
  int exit_code = 0;
  std::string help;   // for standard output
  std::string error;  // one line
  std::string name;   // of the command, for hints: "weft mask"
};
Parsed parse_command_line(int argc, char** argv, std::vector<CommandEntry>& commands,
                          const std::string& version);

// What to tell a user of an error that is not weft's own, as one of a library.
using ExplainError = std::string (*)(const std::exception& error);
std::string explain_error(const std::exception& error);

// A whole program: parses, runs, and turns errors into one line and an exit code. `commands` makes
// the list of commands.
int run_program(int argc, char** argv, std::vector<CommandEntry> (*commands)(int, char**),
                ExplainError explain = explain_error);

}  // namespace weft::cli
