// Runs the command that was called and turns errors into one line and an exit code: 0 done, 1
// failed, 2 wrong usage.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <new>

#include "cli/command.h"
#include "cli/stop_signal.h"
#include "weft/core/atomic_file.h"
#include "weft/core/isa.h"
#include "weft/core/machine_load.h"
#include "weft/core/same_file.h"
#include "weft/core/text.h"
#include "weft/core/version.h"
#include "weft/kernel/tile/tile_unit.h"
#include "weft/prune/job.h"

namespace weft::cli {
namespace {

// Calls only what a signal handler may.
void end_by_signal(int signal) {
  remove_unfinished_files();
  if (signal != SIGPIPE) {  // `weft ... | head` has what it wanted
    for (const char* part : {"weft: stopped by ", stop_signal_name(signal), "\n"}) {
      if (::write(STDERR_FILENO, part, std::strlen(part)) < 0) break;
    }
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void handle_signals() {
  for (const int signal : kStopSignals) {
    if (std::signal(signal, end_by_signal) == SIG_IGN) std::signal(signal, SIG_IGN);  // nohup
  }
  hold_stop_signals(false);
  std::signal(SIGXFSZ, SIG_IGN);  // a file that grows too large is a failed write, reported as such
}

// A sharded checkpoint keeps two files open per shard.
void allow_many_files() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

int complain(int code, const std::string& message) {
  const std::string line = "weft: " + printable(message, 2000) + "\n";
  std::fputs(line.c_str(), stderr);  // if that fails, nothing can be reported
  return code;
}

int finish_output(int code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  return complain(1, "cannot write to standard output");
}

// "--in-place" for the option in_place.
std::string flag_name(std::string option) {
  std::ranges::replace(option, '_', '-');
  return "--" + option;
}

int run(int argc, char** argv, std::vector<CommandEntry> commands) {
  const std::string version = fmt::format("weft {} ({})", kVersion, current_isa());
  const Parsed parsed = parse_command_line(argc, argv, commands, version);
  const auto hint = [&](const std::string& problem) {
    return fmt::format("{} (see {} --help)", problem, parsed.name);
  };
  if (!parsed.error.empty()) return complain(parsed.exit_code, hint(parsed.error));
  if (parsed.command == nullptr) {
    std::fputs(parsed.help.c_str(), stdout);
    return finish_output(0);
  }
  try {
    const MachineLoad load;
    const int code = parsed.command->run();
    if (parsed.command->measures() && load.is_busy()) {
      complain(code,
               fmt::format("other processes used {:.1f} of {} CPUs while this ran: timings may be "
                           "off",
                           load.others(), load.cpus()));
    }
    return finish_output(code);
  } catch (const UsageError& error) {
    return complain(2, hint(error.what()));
  } catch (const OptionError& error) {
    return complain(2, hint(flag_name(error.option()) + error.problem()));
  } catch (const OverwriteError& error) {
    return complain(
        2, hint(error.replaceable()
                    ? fmt::format("{}: choose another output, or replace it with --in-place",
                                  error.what())
                    : error.what()));
  }
}

}  // namespace

std::string explain_error(const std::exception& error) {
  const std::string what = error.what();
  return fmt::format("a fault of weft, please report it: {}", what.substr(0, what.find('\n')));
}

int run_program(int argc, char** argv, std::vector<CommandEntry> (*commands)(int, char**),
                ExplainError explain) {
  try {
    handle_signals();
    allow_many_files();
    force_isa_from_environment();
    force_tile_unit_from_environment();
    return run(argc, argv, commands(argc, argv));
  } catch (const std::bad_alloc&) {
    return complain(1, "out of memory");
  } catch (const Error& error) {
    return complain(1, error.what());
  } catch (const std::filesystem::filesystem_error& error) {
    return complain(1, fmt::format("{}: {}", error.path1().string(), error.code().message()));
  } catch (const std::exception& error) {
    return complain(1, explain(error));
  }
}

}  // namespace weft::cli
