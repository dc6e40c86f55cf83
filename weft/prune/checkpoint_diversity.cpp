#include "weft/prune/checkpoint_diversity.h"

#include "weft/core/error.h"

namespace weft {

CheckpointDiversity checkpoint_diversity(const std::filesystem::path& file, const Pattern& pattern,
                                         const NameExpressions& names, const Listener& listener) {
  const Checkpoint checkpoint = Checkpoint::open(file);
  const Selection selection = select_tensors(names, checkpoint, listener);
  CheckpointDiversity report;
  report.all_tensors = checkpoint.tensors().size();
  for (const ShardedTensor& tensor : checkpoint.tensors()) {
    if (const auto reason = selection.left_alone(tensor.info)) {
      report.skipped.push_back({tensor.info, *reason});
    } else if (tensor.info.bytes() > 0) {
      report.total += diversity(selection.weight(tensor).shape(), pattern);
    }
  }
  WEFT_CHECK(report.total.weights > 0, "{}: no weights to count masks of", file.string());
  return report;
}

}  // namespace weft
