// weft bench step --processes N: training steps of N ranks on this machine, and what it takes to sum
// their gradients. This process is rank 0 and starts the others, with its own arguments.
#include <arpa/inet.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "bench/environment.h"
#include "bench/step.h"
#include "cli/shared.h"
#include "cli/train_work.h"
#include "weft/core/parallel.h"
#include "weft/core/regular_file.h"
#include "weft/report/table.h"

extern char** environ;

namespace weft::cli {
namespace {

int unused_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  const bool found = ::bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                     ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  ::close(fd);
  WEFT_CHECK(found, "no port is free on this machine");
  return ntohs(address.sin_port);
}

std::vector<std::string> own_arguments() {
  std::vector<std::string> arguments;
  std::ifstream stream("/proc/self/cmdline", std::ios::binary);
  for (std::string one; std::getline(stream, one, '\0');) arguments.push_back(one);
  return arguments;
}

// The other ranks. Ended with this process, if they have not ended by themselves.
class OtherRanks {
 public:
  explicit OtherRanks(int size) {
    std::vector<std::string> arguments = own_arguments();
    std::vector<char*> argv;
    for (std::string& one : arguments) argv.push_back(one.data());
    argv.push_back(nullptr);
    for (int rank = 1; rank < size; ++rank) {
      place(rank);
      pid_t id = 0;
      const int failure =
          ::posix_spawn(&id, "/proc/self/exe", nullptr, nullptr, argv.data(), environ);
      WEFT_CHECK(failure == 0, "cannot start rank {}: {}", rank, std::strerror(failure));
      ids_.push_back(id);
    }
    place(0);
  }
  ~OtherRanks() {
    for (const pid_t id : ids_) ::kill(id, SIGTERM);
    wait();
  }
  OtherRanks(const OtherRanks&) = delete;
  OtherRanks& operator=(const OtherRanks&) = delete;

  void wait() {
    for (const pid_t id : ids_) ::waitpid(id, nullptr, 0);
    ids_.clear();
  }

 private:
  static void place(int rank) {
    ::setenv("RANK", fmt::format("{}", rank).c_str(), 1);
    ::setenv("LOCAL_RANK", fmt::format("{}", rank).c_str(), 1);
  }
  std::vector<pid_t> ids_;
};

// What a rank's batch has of.
struct Batch {
  int64_t size;
  std::string unit;
};
Batch batch_of(const bench::StepShape& shape) {
  if (const auto* block = std::get_if<bench::BlockShape>(&shape)) return {block->tokens, "tokens"};
  return {std::get<bench::ResnetShape>(shape).images, "images"};
}

// The best of some sums over the ranks, with nothing else to do.
double best_sum_ms(ProcessGroup& ranks, int64_t bytes) {
  const torch::Tensor numbers = torch::zeros({std::max<int64_t>(1, bytes / 4)});
  double best = 0.0;
  for (int i = 0; i < 20; ++i) {
    ranks.wait_for_first();
    const auto start = std::chrono::steady_clock::now();
    ranks.sum(numbers);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    if (i == 0 || took.count() < best) best = took.count();
  }
  return best;
}

struct SumTimes {
  int64_t bytes = 0;
  double ms = 0.0, latency_ms = 0.0;
};

void print_rank_steps(const BenchStepArguments& arguments,
                      const std::vector<bench::RankStepRecord>& records, const SumTimes& sums) {
  const auto mb = [](int64_t bytes) { return fmt::format("{:.2f}", 1e-6 * double(bytes)); };
  const Batch batch = batch_of(arguments.shape());
  Table table({"recipe", "pattern", ">MB", ">MB whole", ">ms", ">whole", ">no overlap", ">alone",
               ">communication", ">" + batch.unit + "/s"});
  Json list = Json::array();
  for (const bench::RankStepRecord& r : records) {
    const double share = std::max(0.0, 1.0 - r.alone_ms / r.step_ms);
    const double speed = double(arguments.processes * batch.size) / (1e-3 * r.step_ms);
    const std::string pattern = r.recipe == "dense" ? "-" : r.pattern.str();
    table.add({r.recipe, pattern, mb(r.kept_bytes), mb(r.whole_bytes),
               fmt::format("{:.1f}", r.step_ms), fmt::format("{:.1f}", r.whole_ms),
               fmt::format("{:.1f}", r.late_ms), fmt::format("{:.1f}", r.alone_ms), percent(share),
               fmt::format("{:.0f}", speed)});
    list.push_back({{"recipe", r.recipe},
                    {"pattern", pattern},
                    {"processes", arguments.processes},
                    {"threads", threads()},
                    {"bytes", r.kept_bytes},
                    {"whole_bytes", r.whole_bytes},
                    {"step_ms", r.step_ms},
                    {"whole_ms", r.whole_ms},
                    {"no_overlap_ms", r.late_ms},
                    {"alone_ms", r.alone_ms},
                    {"communication_share", share},
                    {batch.unit + "_per_second", speed},
                    {"sum_bytes", sums.bytes},
                    {"sum_ms", sums.ms},
                    {"sum_latency_ms", sums.latency_ms}});
  }
  if (arguments.json) return print_json(list);
  arguments.tables.print(table);
  arguments.tables.print_lines(fmt::format(
      "\nwith nothing else to do: a sum of {} MB takes {:.2f} ms, of 4 bytes {:.3f} ms\n",
      mb(sums.bytes), sums.ms, sums.latency_ms));
  arguments.tables.print_lines(fmt::format(
      "\n{} ranks of {} on this machine, {} {} each. MB: what a step sums, and if masked "
      "gradients\nand scores travelled whole; ms: medians of a step, of one with whole gradients, "
      "of one whose sums\nbegin after the backward pass, and of one without the others; "
      "communication: (ms - alone) / ms\n",
      arguments.processes, threads_text(threads()), batch.size, batch.unit));
}

}  // namespace

int bench_ranks_work(const BenchStepArguments& arguments) {
  const auto size = static_cast<int>(arguments.processes);
  const bool first = std::getenv("WEFT_BENCH_RANK") == nullptr;
  const int all = threads();
  std::optional<OtherRanks> others;
  if (first) {
    ::setenv("WEFT_BENCH_RANK", "1", 1);
    ::setenv("WORLD_SIZE", fmt::format("{}", size).c_str(), 1);
    ::setenv("MASTER_ADDR", "127.0.0.1", 1);
    ::setenv("MASTER_PORT", fmt::format("{}", unused_port()).c_str(), 1);
    others.emplace(size);
  }
  set_threads(arguments.threads > 0 ? static_cast<int>(arguments.threads)
                                    : std::max(1, all / size));
  const auto ranks = ProcessGroup::join(*rank_place(), {});
  bench::StepOptions options;
  options.shape = arguments.shape();
  options.mode = parse_plan_mode(arguments.plan);
  options.precision = parse_precision(arguments.precision);
  options.rounds = static_cast<int>(arguments.rounds);
  std::vector<bench::RankStepRecord> records = {
      bench::bench_rank_step(options, "dense", Pattern(2, 4), ranks)};
  for (const std::string& recipe : arguments.all_recipes()) {
    for (const std::string& pattern : arguments.patterns) {
      records.push_back(bench::bench_rank_step(options, recipe, Pattern::parse(pattern), ranks));
    }
  }
  SumTimes sums{records[0].whole_bytes};
  sums.ms = best_sum_ms(*ranks, sums.bytes);
  sums.latency_ms = best_sum_ms(*ranks, 4);
  if (first) print_rank_steps(arguments, records, sums);
  ranks->leave();
  if (others) others->wait();
  return 0;
}

}  // namespace weft::cli
