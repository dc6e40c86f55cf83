// weft: the command line. One file per subcommand; this one parses, runs and turns errors into one
// line and an exit code: 0 done, 1 failed, 2 wrong usage.
#include <csignal>
#include <cstdio>

#include "cli/command.h"
#include "weft/core/atomic_file.h"
#include "weft/core/isa.h"
#include "weft/core/text.h"
#include "weft/core/version.h"

namespace weft::cli {
namespace {

void end_by_signal(int signal) {
  remove_unfinished_files();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void handle_signals() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, end_by_signal);
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is a failed write, reported at the end
}

int complain(int code, std::string_view message) {
  fmt::print(stderr, "weft: {}\n", printable(message, 2000));
  return code;
}

// The subcommand that was being parsed, for the hint behind a usage error.
std::string command_line_of(const CLI::App& app) {
  const auto called = app.get_subcommands();
  return called.empty() ? app.get_name() : app.get_name() + " " + command_line_of(*called.front());
}

int finish_output(int code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  return complain(1, "cannot write to standard output");
}

int run(int argc, char** argv) {
  CLI::App app(
      "N:M sparsity: find masks, check files, count what a structure allows.\n"
      "A pattern 2:4 keeps at most 2 of every 4 consecutive weights.",
      "weft");
  app.set_version_flag("--version", fmt::format("weft {} ({})", kVersion, current_isa()));
  app.require_subcommand(1);
  app.get_formatter()->column_width(36);
  app.footer("`weft COMMAND --help` shows the flags of a command, with examples.");

  std::unique_ptr<Command> chosen;
  add_mask(app, chosen);
  add_check(app, chosen);
  add_info(app, chosen);
  add_ladder(app, chosen);
  add_diversity(app, chosen);
  add_solvers(app, chosen);
  add_synth(app, chosen);
  add_bench(app, chosen);

  try {
    force_isa_from_environment();
    app.parse(argc, argv);
    return finish_output(chosen->run());
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return finish_output(app.exit(error));  // --help, --version
    return complain(2, fmt::format("{} (see {} --help)", error.what(), command_line_of(app)));
  } catch (const UsageError& error) {
    return complain(2, fmt::format("{} (see {} --help)", error.what(), command_line_of(app)));
  } catch (const std::bad_alloc&) {
    return complain(1, "out of memory");
  } catch (const std::exception& error) {
    return complain(1, error.what());
  }
}

}  // namespace
}  // namespace weft::cli

int main(int argc, char** argv) {
  weft::cli::handle_signals();
  return weft::cli::run(argc, argv);
}
