// RunFolder: the files of a training run.
//
//   run.json            options, environment, plan, layers, result: all that repeats the run
//   metrics.jsonl       a line per step and per evaluation
//   checkpoints/        step-000000500.safetensors, the last two; of a finished run, the last
//   best.safetensors    the weights of the best evaluation, if the run evaluates on the way
//   model.safetensors   at the end: the sparse weights
//   packed.safetensors  at the end, if asked for: the same without the zeros
//
// All but metrics.jsonl are written atomically. One process at a time holds the folder. None of the
// files may be a symbolic link: what it leads to would be overwritten.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "weft/core/json.h"
#include "weft/run/run_options.h"

namespace weft {

class RunFolder {
 public:
  static constexpr int kCheckpointsKept = 2;

  // Throws Error if the folder holds a run, or what is left of one. A checkpoint of step 0 alone is
  // left of a run that was killed before it began: nothing is lost with it.
  static void require_free(const std::filesystem::path& path);
  // Makes the folder, if need be; it must be free.
  static RunFolder create(const std::filesystem::path& path);
  // Takes create() back: removes the files of a run that has not begun, and the folder if create()
  // made it. What else is there stays.
  void discard() const;
  // Throws Error if there is no run, or another process has it.
  static RunFolder open(const std::filesystem::path& path);
  ~RunFolder();
  RunFolder(RunFolder&& other) noexcept;
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(RunFolder&&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path record() const { return path_ / "run.json"; }
  std::filesystem::path metrics() const { return path_ / "metrics.jsonl"; }
  std::filesystem::path best() const { return path_ / "best.safetensors"; }
  std::filesystem::path model() const { return path_ / "model.safetensors"; }
  std::filesystem::path packed() const { return path_ / "packed.safetensors"; }
  std::filesystem::path checkpoint(int64_t step) const;

  std::vector<int64_t> checkpoints() const;  // their steps, the newest first
  void remove_old_checkpoints(size_t kept = kCheckpointsKept) const;  // all but the newest
  void put_aside(int64_t step) const;  // one that cannot be used, as *.refused

 private:
  explicit RunFolder(std::filesystem::path path) : path_(std::move(path)) {}
  void lock();

  std::filesystem::path path_;
  int lock_ = -1;
  bool made_ = false;  // by create()
};

// The run.json of a folder, checked to be one of a version that we know. Throws Error that names
// it.
Json read_run_record(const std::filesystem::path& folder);

// Whether the folder has a run that has taken all its steps and written its model.
bool is_finished_run(const std::filesystem::path& folder);

// How long a step of a run took. One in which the planner measured computed more than others.
struct StepSeconds {
  double seconds = 0.0;
  bool measuring = false;
};
// Of the steps of a run that have a line: every `every`th. Throws Error that names the file and the
// line if it does not have each of them once, in order.
std::vector<StepSeconds> read_step_seconds(const std::filesystem::path& path, int64_t steps,
                                           int64_t every = 1);
// The median of the steps in which nothing was measured; nothing if there is none.
std::optional<double> typical_seconds(std::span<const StepSeconds> steps);

// Whether the last line of metrics.jsonl is the evaluation of this step.
bool ends_with_evaluation(const std::filesystem::path& path, int64_t step);

// metrics.jsonl, to which lines are added. What cannot be written whole is taken back.
class MetricsFile {
 public:
  // Cuts the file to `bytes`, what it had when the run was last saved. Shorter is shorter.
  MetricsFile(const std::filesystem::path& path, uint64_t bytes);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  void add(const Json& line);
  uint64_t bytes() const { return bytes_; }
  void sync();

 private:
  std::string name_;
  int fd_ = -1;
  uint64_t bytes_ = 0;
};

}  // namespace weft
