// weft-train: the commands of weft that need libtorch. Called by weft, as `weft bench layer`.
#include <re2/re2.h>
#include <unistd.h>

#include <cstdio>

#include "cli/command.h"
#include "cli/shared.h"
#include "cli/train_work.h"
#include "weft/train/network_to_convert.h"

namespace weft::cli {
namespace {

std::unique_ptr<ModelToConvert> open_network(const ModelFlags& flags) {
  const NetworkOptions options{flags.folder, flags.weights, flags.data, flags.samples};
  return std::make_unique<NetworkToConvert>(options, print_note);
}

}  // namespace

// Messages of libtorch are for programmers; the one that users can cause is about memory:
// "DefaultCPUAllocator: can't allocate memory: you tried to allocate 17179869184 bytes."
std::string explain_torch_error(const std::exception& error) {
  const std::string what = error.what();
  const RE2 memory("can't allocate memory|not enough memory"), size(R"(allocate (\d+) bytes)");
  uint64_t bytes = 0;
  if (!RE2::PartialMatch(what, memory)) return explain_error(error);
  if (!RE2::PartialMatch(what, size, &bytes)) return "out of memory";
  return fmt::format("out of memory: {} more were needed", bytes_text(bytes));
}

namespace {

std::vector<CommandEntry> commands(int, char**) {
  std::vector<CommandEntry> commands;
  commands.push_back(train_command(train_work));
  commands.push_back(compare_command(compare_work));
  commands.push_back(eval_command(eval_work));
  commands.push_back(recovery_command(recovery_work));
  commands.push_back(convert_command(open_network));
  commands.push_back(bench_layer_command(bench_layer_work));
  commands.push_back(bench_step_command(bench_step_work));
  return commands;
}

}  // namespace
}  // namespace weft::cli

int main(int argc, char** argv) {
  const int code =
      weft::cli::run_program(argc, argv, weft::cli::commands, weft::cli::explain_torch_error);
  if (weft::cli::has_hanging_threads()) {
    std::fflush(nullptr);
    ::_exit(code);
  }
  return code;
}
