#include "weft/prune/compare_structures.h"

#include <algorithm>

#include "weft/checkpoint/stored_weight.h"
#include "weft/core/error.h"
#include "weft/pack/packed_file.h"
#include "weft/prune/tensor_values.h"

namespace weft {
namespace {

std::vector<StructureRung> empty_rungs() {
  std::vector<StructureRung> rungs;
  const auto add = [&](const char* pattern, const char* name) {
    rungs.push_back({Pattern::parse(pattern), &solver(name), {}, {}});
  };
  for (const char* pattern : {"2:4", "4:8", "8:16", "2:4x2", "2:4x4", "2:4x16"}) {
    add(pattern, "magnitude");
    add(pattern, "exact");
  }
  for (const char* pattern : {"2:4", "4:8", "8:16"}) {
    add(pattern, "greedy-keep");
    add(pattern, "greedy-prune");
  }
  return rungs;
}

void add_weight(const Checkpoint& checkpoint, const StoredWeight& weight,
                StructuresReport& report) {
  const std::vector<std::byte> bytes = read_weight(checkpoint, weight);
  const WeightShape shape = weight.shape();
  naming_weights(checkpoint, weight, 0, [&] {
    with_weights(weight.tensor.info.dtype, bytes, [&](auto weights) {
      for (StructureRung& rung : report.rungs) {
        const Mask mask = find_mask(*rung.solver, weights.data(), shape, rung.pattern);
        rung.retained += retained(weights.data(), shape, mask);
        rung.diversity += diversity(shape, rung.pattern);
      }
      report.unstructured += retained_by_largest_half(weights.data(), shape);
    });
  });
}

}  // namespace

StructuresReport compare_structures(const std::filesystem::path& file, const NameExpressions& names,
                                    const Listener& listener) {
  const Checkpoint checkpoint = Checkpoint::open(file);
  require_unpacked(checkpoint);
  const Selection selection = select_tensors(names, checkpoint, listener);
  StructuresReport report;
  report.rungs = empty_rungs();
  ByteProgress progress(listener, checkpoint.bytes());
  for (const ShardedTensor& tensor : checkpoint.tensors()) {
    if (const auto reason = selection.left_alone(tensor.info)) {
      report.skipped.push_back({tensor.info, *reason});
    } else if (tensor.info.bytes() > 0) {
      add_weight(checkpoint, selection.weight(tensor), report);
      ++report.tensors;
    }
    progress.add(tensor.info.bytes());
  }
  WEFT_CHECK(report.tensors > 0, "{}: no weights to compare structures on: {}", file.string(),
             nothing_selected(report.skipped));
  std::ranges::stable_sort(report.rungs, std::ranges::greater(),
                           [](const StructureRung& rung) { return rung.retained.kept; });
  return report;
}

}  // namespace weft
