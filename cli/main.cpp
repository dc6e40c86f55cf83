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

// Debian 13's libtorch loads UCX, whose handler of SIGSEGV allocates memory: a program that crashes in
// the allocator would hang there for ever. Read when the library is loaded.
void end_when_it_crashes() { ::setenv("UCX_HANDLE_ERRORS", "none", 0); }

// On several ranks every problem is an error of weft, in one line; c10d would log it besides, in lines
// for its developers. Read when the library is loaded.
void silence_c10d() {
  if (std::getenv("WORLD_SIZE") == nullptr) return;
  ::setenv("GLOG_minloglevel", "3", 0);         // of Debian's libtorch
  ::setenv("TORCH_CPP_LOG_LEVEL", "FATAL", 0);  // of PyPI's
}

[[noreturn]] void become_weft_train(char** argv) {
  wait_politely();
  end_when_it_crashes();
  silence_c10d();
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
  std::string group;
  const auto add = [&](CommandEntry entry) {
    entry.group = group;
    commands.push_back(std::move(entry));
  };
  group = "Train";
  add(train_command(pass_on));
  add(compare_command(pass_on));
  add(eval_command(pass_on));
  add(report_command());
  add(export_command());
  add(generate_command());
  add(recipes_command());
  add(study_command());
  group = "Make a trained model sparse";
  add(convert_command([argv](const ModelFlags&) -> std::unique_ptr<ModelToConvert> {
    become_weft_train(argv);  // the network of a run needs libtorch, converting does not
  }));
  add(mask_command());
  add(merge_command());
  add(ladder_command());
  add(recovery_command(pass_on));
  group = "Files";
  add(info_command());
  add(check_command());
  add(pack_command());
  add(unpack_command());
  add(synth_command());
  group = "Masks";
  add(solvers_command());
  add(diversity_command());
  group = "Speed";
  add(plan_command());
  add(kernels_command());
  add(bench_convert_command());
  add(bench_gemm_command());
  add(bench_conv_command());
  add(bench_attention_command());
  add(bench_solve_command());
  add(bench_layer_command(pass_on));
  add(bench_step_command(pass_on));
  return commands;
}

}  // namespace
}  // namespace weft::cli

int main(int argc, char** argv) { return weft::cli::run_program(argc, argv, weft::cli::commands); }
