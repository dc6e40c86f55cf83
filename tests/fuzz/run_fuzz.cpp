// Any bytes as each file of a run's folder that `weft train --resume`, `weft eval` and `weft
// compare` read, as far as they need no torch: run.json, metrics.jsonl, a checkpoint. Either
// weft::Error, or what was read survives being written and read again.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <vector>

#include "tests/fuzz/target.h"
#include "tests/scratch_folder.h"
#include "weft/core/text.h"
#include "weft/plan/planner.h"
#include "weft/run/resume_options.h"
#include "weft/run/run_folder.h"
#include "weft/run/run_metrics.h"
#include "weft/run/run_position.h"
#include "weft/run/run_result.h"
#include "weft/run/tensor_checksum.h"

namespace weft::fuzz {
namespace {

namespace fs = std::filesystem;

const fs::path& folder() {
  static const test::ScratchFolder scratch;
  return scratch.path();
}

void read_record() {
  error_or_success([] {
    const RunOptions options = resume_options(folder());
    const Json saved = options.to_json();
    require(RunOptions::from_json(saved, "again").to_json() == saved, "the options changed");
    options.resolved().check();
  });
  error_or_success([] {
    const Json record = read_run_record(folder());
    Planner::from_saved(record["plan"].dump());
  });
  error_or_success([] { to_json(read_run_result(folder())).dump(); });
}

void read_metrics(const fs::path& path) {
  error_or_success([&] {
    const std::vector<StepSeconds> seconds = read_step_seconds(path, 2);
    require(seconds.size() == 2, "steps came from nowhere");
    for (const StepSeconds& one : seconds) require(one.seconds > 0.0, "a step that took no time");
  });
  error_or_success([&] {
    int64_t last = 0;
    const auto on_step = [&](const StepMetrics& step) {
      require(step.step > last && step.train_seconds >= 0.0, "steps out of order");
      last = step.step;
    };
    weft::read_metrics(path, {on_step, {}});
  });
}

bool same(const RunPosition& a, const RunPosition& b) {
  return a.run == b.run && a.step == b.step && a.data_position == b.data_position &&
         a.metrics_bytes == b.metrics_bytes && a.flips == b.flips &&
         a.train_seconds == b.train_seconds && a.products == b.products;
}

void save_and_read_again(const SavedPosition& saved) {
  const RunPosition& position = saved.position;
  require(position.step >= 0 && position.data_position >= 0 && position.flips >= 0.0,
          "a position before the beginning");
  const SavedPosition again = position_from(to_metadata(saved), "again");
  require(same(again.position, position) && again.optimizer_steps == saved.optimizer_steps,
          "the position changed");
}

// A file with a sum of its own is whole, and with one bit of it changed it is not.
void seal_and_damage(const SafetensorsReader& reader) {
  const Header& header = reader.header();
  std::map<std::string, std::vector<std::byte>> bytes;
  TensorBytes spans;
  for (const TensorInfo& info : header.tensors) {
    bytes[info.name].resize(info.bytes());
    reader.read(info, 0, bytes[info.name]);
    spans.push_back(bytes[info.name]);
  }
  const Metadata sealed = with_checksum(header.tensors, header.metadata, spans);
  require(with_checksum(header.tensors, sealed, spans) == sealed, "a sum of the sum");
  for (auto& [name, values] : bytes) {
    if (values.empty()) continue;
    values[values.size() / 2] ^= std::byte{1};
    require(with_checksum(header.tensors, header.metadata, spans) != sealed, "an unnoticed bit");
    values[values.size() / 2] ^= std::byte{1};
  }
}

void read_checkpoint(const fs::path& path) {
  error_or_success([&] {
    const SafetensorsReader reader(path);
    seal_and_damage(reader);
    save_and_read_again(position_from(reader.header().metadata, "checkpoint"));
    std::map<std::string, std::vector<std::byte>> bytes;
    read_checked(reader, [&](const TensorInfo& info) {
      bytes[info.name].resize(info.bytes());
      return std::span(bytes[info.name]);
    });
  });
}

}  // namespace

void run(Input input) {
  const std::string text = text_of(input);
  for (const char* name : {"run.json", "metrics.jsonl"}) test::put(folder() / name, text);
  read_record();
  read_metrics(folder() / "metrics.jsonl");
  const MemoryFile file(input);
  read_checkpoint(file.path());
  // Entries of the metadata are text within text.
  error_or_success([&] {
    save_and_read_again(position_from({{"weft.checkpoint", text}}, "entry"));
  });
}

}  // namespace weft::fuzz
