// weft-train: the commands of weft that need libtorch. Called by weft, as `weft bench layer`.
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

int main(int argc, char** argv) { return weft::cli::run_program(argc, argv, weft::cli::commands); }
