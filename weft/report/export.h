// The metrics of runs for other programs: CSV, and TensorBoard's event files.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

// Takes the text in pieces: the metrics of long runs do not fit into memory.
using TextSink = std::function<void(std::string_view)>;

// A row per step and per evaluation, with the run, its recipe, pattern and seed: the members of
// metrics.jsonl, and `seconds` of training so far. Figures that are missing or not finite are empty.
//
//   run,recipe,pattern,seed,step,seconds,loss,learning_rate,...,eval_loss,eval_accuracy,eval_samples
//
// RFC 4180 with lines that end in "\n". Folders may be those of comparisons (run_folders).
void export_csv(const std::vector<std::string>& folders, const TextSink& sink);
// A row per step and sparse layer: run,recipe,pattern,seed,step,layer,figure,value
void export_layers_csv(const std::vector<std::string>& folders, const TextSink& sink);

// TARGET/RUN/events.out.tfevents.weft for each run, which replaces that of an earlier export of this
// run; the paths written. RUN is the name of its folder, with a number if another run of that name
// is there (TARGET/RUN/run.txt has its path). The last step is at the time at which metrics.jsonl was last changed, the others as
// long before it as training took.
std::vector<std::filesystem::path> export_tensorboard(const std::vector<std::string>& folders,
                                                      const std::filesystem::path& target);

}  // namespace weft
