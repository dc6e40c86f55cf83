// weft: the command line. One file per command; what needs libtorch, whose loading takes longer
// than most commands, is in a second program beside this one, weft-train, which weft becomes when
// it has checked the flags (train_commands.h).
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>

#include "cli/command.h"
#include "cli/convert.h"
#include "cli/stop_signal.h"
#include "cli/train_commands.h"

namespace weft::cli {
namespace {

// libgomp's threads wait for work in a loop for about a millisecond by default, and hold up each
// other if something else uses the cores: training ran at a sixth of its speed beside a compiler.
// Ten times less costs nothing that could be measured. Read when the library is loaded.
void wait_politely() {
  if (std::getenv("OMP_WAIT_POLICY") == nullptr) ::setenv("GOMP_SPINCOUNT", "30000", 0);
}

[[noreturn]] void become_weft_train(char** argv) {
  wait_politely();
  const auto program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "weft-train";
  hold_stop_signals(
      true);  // loading libtorch takes a while, and signals would be ignored meanwhile
  ::execv(program.c_str(), argv);
  const int failure = errno;
  hold_stop_signals(false);
  throw Error(fmt::format(
      "cannot run {} ({}): this command needs libtorch; weft may have been built without it",
      program.string(), std::strerror(failure)));
}

std::vector<CommandEntry> commands(int, char** argv) {
  // What is left to do when the flags of a command are checked.
  const auto pass_on = [argv](const auto&) -> int { become_weft_train(argv); };
  std::vector<CommandEntry> commands;
  commands.push_back(mask_command());
  commands.push_back(check_command());
  commands.push_back(convert_command([argv](const ModelFlags&) -> std::unique_ptr<ModelToConvert> {
    become_weft_train(argv);  // the network of a run needs libtorch, converting does not
  }));
  commands.push_back(info_command());
  commands.push_back(pack_command());
  commands.push_back(unpack_command());
  commands.push_back(merge_command());
  commands.push_back(ladder_command());
  commands.push_back(diversity_command());
  commands.push_back(plan_command());
  commands.push_back(recipes_command());
  commands.push_back(kernels_command());
  commands.push_back(solvers_command());
  commands.push_back(synth_command());
  commands.push_back(generate_command());
  commands.push_back(train_command(pass_on));
  commands.push_back(compare_command(pass_on));
  commands.push_back(eval_command(pass_on));
  commands.push_back(recovery_command(pass_on));
  commands.push_back(bench_convert_command());
  commands.push_back(bench_gemm_command());
  commands.push_back(bench_conv_command());
  commands.push_back(bench_attention_command());
  commands.push_back(bench_solve_command());
  commands.push_back(bench_layer_command(pass_on));
  commands.push_back(bench_step_command(pass_on));
  return commands;
}

}  // namespace
}  // namespace weft::cli

int main(int argc, char** argv) { return weft::cli::run_program(argc, argv, weft::cli::commands); }
