// weft convert, for both programs: running a network (--model-dir) needs libtorch.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "cli/command.h"
#include "weft/prune/convert_checkpoint.h"

namespace weft::cli {

struct ModelFlags {
  std::string folder;   // of the run
  std::string weights;  // the checkpoint that is converted
  std::string data;     // instead of the run's, if not empty
  int64_t samples = 512;
};

using OpenModel = std::function<std::unique_ptr<ModelToConvert>(const ModelFlags&)>;

CommandEntry convert_command(const OpenModel& open_model);

}  // namespace weft::cli
