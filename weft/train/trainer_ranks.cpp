// What the ranks of a run tell each other (distributed/process_group.h). In a step, that is
//
//   gradients   summed, in buckets, while the backward pass runs
//   the report  3 numbers, summed beside them: the loss; how many ranks are to stop; whether rank 0
//               has a plan to tell
//   the plan    of rank 0, in the few steps in which it changes
//
// and, at the first and the last step and every 50 steps, a checksum of everything that must be equal.
#include <sys/mman.h>
#include <unistd.h>

#include <fstream>

#include "weft/core/text.h"
#include "weft/distributed/same_state.h"
#include "weft/train/run_checkpoint.h"
#include "weft/train/trainer_state.h"

namespace weft {
namespace {

// Steps between two comparisons of the state of all ranks. One takes as long as reading the weights
// once, about 1 ms per MB.
constexpr int64_t kCompareEvery = 50;

// Bytes as a file that is nowhere: a checkpoint is read from a path.
class MemoryFile {
 public:
  explicit MemoryFile(const std::string& bytes) : fd_(::memfd_create("checkpoint", MFD_CLOEXEC)) {
    WEFT_CHECK(fd_ >= 0, "no memory for the checkpoint of rank 0");
    std::ofstream(path(), std::ios::binary) << bytes << std::flush;
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::filesystem::path path() const { return fmt::format("/proc/self/fd/{}", fd_); }

 private:
  int fd_;
};

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(stream)), {});
  WEFT_CHECK(stream, "{}: cannot be read", printable(path.string(), 4096));
  return bytes;
}

}  // namespace

void Trainer::State::join_ranks() {
  batch_part(parts.options, ranks.get());
  const std::string first = ranks->text_of_first(position.run);
  WEFT_CHECK(first == position.run,
             "the data or the weights of init differ from those of rank 0 (their checksums are {} "
             "here, {} there)",
             position.run, printable(first));
  if (!writes()) planner->follow();
  buckets = std::make_unique<GradientBuckets>(*parts.model, ranks);
}

void Trainer::State::begin_report(double loss) {
  const bool to_stop = stop != nullptr && *stop != 0;
  const bool new_plan = writes() && (planner->revision() != plan_shared ||
                                     planner->measured_before(position.step + 1));
  reported = torch::tensor({loss, to_stop ? 1.0 : 0.0, new_plan ? 1.0 : 0.0}, torch::kDouble);
  reporting = ranks->begin_sum(reported);
}

double Trainer::State::end_report() {
  ranks->wait(*reporting);
  reporting.reset();
  const auto numbers = reported.accessor<double, 1>();
  agreed_to_stop = agreed_to_stop || numbers[1] > 0;
  plan_is_coming = numbers[2] > 0;
  return numbers[0];
}

void Trainer::State::share_plan() {
  if (plan_is_coming) {
    plan_shared = planner->revision();
    const std::string plan = ranks->text_of_first(planner->saved());
    if (!writes()) planner->adopt(plan);
  }
  const int64_t last = parts.options.steps;
  if (position.step % kCompareEvery == 0 || position.step == 1 || position.step == last) {
    require_same_state(*parts.model, *ranks, position.step);
  }
}

std::optional<EvalReport> Trainer::State::share_evaluation(
    const std::optional<EvalReport>& report) {
  torch::Tensor numbers = torch::zeros({5}, torch::kDouble);
  auto at = numbers.accessor<double, 1>();
  if (report) {
    at[0] = 1.0;
    at[1] = report->loss;
    at[2] = report->accuracy;
    at[3] = static_cast<double>(report->samples);
    at[4] = report->seconds;
  }
  ranks->broadcast(numbers);
  if (at[0] == 0.0) {
    agreed_to_stop = true;
    return std::nullopt;
  }
  if (report) return report;
  EvalReport found;
  found.step = position.step;
  found.loss = at[1];
  found.accuracy = at[2];
  found.samples = static_cast<int64_t>(at[3]);
  found.seconds = at[4];
  return found;
}

void Trainer::State::share_checkpoint() {
  const bool loaded = writes() && std::filesystem::exists(folder->checkpoint(position.step));
  const std::string bytes =
      ranks->text_of_first(loaded ? bytes_of(folder->checkpoint(position.step)) : "");
  if (writes() || bytes.empty()) return;
  const MemoryFile file(bytes);
  position = load_run_checkpoint(file.path(), position.run, *parts.model, *optimizer);
}

}  // namespace weft
