// weft: the command line. One file per command. What needs libtorch, whose loading takes longer
// than most commands, is in a second program beside this one, weft-train, to which such commands go
// on.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "cli/command.h"
#include "cli/convert.h"
#include "cli/train_commands.h"

namespace weft::cli {
namespace {

// Stands in the list of commands; its flags are the other program's to read.
class TrainCommand : public Command {
 public:
  void declare(Flags&) override {}
  int run() override { return 0; }
};

// libgomp's threads wait for work in a loop for about a millisecond by default, and hold up each
// other if something else uses the cores: training ran at a sixth of its speed beside a compiler.
// Ten times less costs nothing that could be measured. Read when the library is loaded.
void wait_politely() {
  if (std::getenv("OMP_WAIT_POLICY") == nullptr) ::setenv("GOMP_SPINCOUNT", "30000", 0);
}

// Does not come back.
void become_weft_train(char** argv) {
  wait_politely();
  const auto program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "weft-train";
  ::execv(program.c_str(), argv);
  throw Error(fmt::format(
      "cannot run {} ({}): this command needs libtorch, and weft may have been built without it",
      program.string(), std::strerror(errno)));
}

// Whether the words of the command line begin with the name of a command: "bench layer".
bool is_called(const std::string& name, int argc, char** argv) {
  std::string words;
  for (int i = 1; i < argc && words.size() < name.size(); ++i) {
    words += (words.empty() ? "" : " ") + std::string(argv[i]);
  }
  return words == name;
}

std::vector<CommandEntry> commands(int argc, char** argv) {
  std::vector<CommandEntry> commands;
  commands.push_back(mask_command());
  commands.push_back(check_command());
  // Only the network of a run needs libtorch.
  const bool runs_network = std::any_of(argv, argv + argc, [](std::string_view word) {
    return word == "--model-dir" || word.starts_with("--model-dir=");
  });
  if (is_called("convert", argc, argv) && runs_network) become_weft_train(argv);
  commands.push_back(convert_command({}));
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
  commands.push_back(bench_convert_command());
  commands.push_back(bench_gemm_command());
  commands.push_back(bench_solve_command());
  for (const TrainCommandName& entry : kTrainCommands) {
    if (is_called(entry.name, argc, argv)) become_weft_train(argv);
    commands.push_back({entry.name, entry.description, "", std::make_unique<TrainCommand>()});
  }
  return commands;
}

}  // namespace
}  // namespace weft::cli

int main(int argc, char** argv) { return weft::cli::run_program(argc, argv, weft::cli::commands); }
