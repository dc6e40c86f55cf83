#include "weft/distributed/process_group.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/version.h>
#include <unistd.h>

#include <future>
#include <map>
#include <thread>

#include "weft/core/text.h"

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

// What differs first between what rank 0 and another rank have; empty: nothing.
std::string difference(const Json& first, const Json& other, int rank) {
  for (const Json::Member& member : first.members()) {
    const Json there = other.contains(member.name) ? other[member.name] : Json();
    if (there == member.value) continue;
    return fmt::format("rank {} has {} {}, rank 0 has {}: all ranks must have the same", rank,
                       member.name, printable(there.dump(), 300),
                       printable(member.value.dump(), 300));
  }
  return "";
}

}  // namespace

// The steps of joining. They may hang in a store that does not answer, so they run in a thread that
// can be left behind.
class Joining {
 public:
  Joining(const RankPlace& place, const JoinOptions& options)
      : place_(place), options_(options), deadline_(Clock::now() + options.patience) {}

  std::shared_ptr<ProcessGroup> run() {
    open_stores();
    has_store_ = true;
    compare();
    group_->heartbeat_ = std::make_unique<Heartbeat>(std::move(second_), place_.rank, place_.size,
                                                     options_.patience, host());
    const std::string address =
        place_.interface.empty() ? own_address_towards(place_.master, port()) : "";
    try {
      group_->collectives_ =
          connect_ranks(*group_->store_, place_.rank, place_.size, place_.interface, address);
    } catch (const Error& error) {
      throw Error(fmt::format("cannot connect to the other ranks from {}: {}",
                              place_.interface.empty() ? address : place_.interface, error.what()));
    }
    return group_;
  }

  // Why it takes so long.
  std::string delay() const {
    const auto waited = (options_.patience + kGrace).count();
    if (has_store_) return fmt::format("another rank does not answer within {} s", waited);
    return store_problem(false, fmt::format("no answer within {} s", waited));
  }

  static constexpr std::chrono::seconds kGrace{5};

 private:
  std::string host() const {
    return fmt::format("{} at {}:{}", agent_hosts() ? "torchrun" : "rank 0",
                       printable(place_.master), port());
  }

  bool agent_hosts() const { return place_.agent_hosts_store && options_.port == 0; }
  int port() const { return options_.port != 0 ? options_.port : place_.port; }

  void open_stores() {
    StoreAddress address{place_.master, port(), place_.rank == 0 && !agent_hosts(),
                         fmt::format("weft/{}", place_.restarts)};
    try {
      group_->store_ = open_store(address, options_.patience);
      address.serves = false;
      second_ = open_store(address, options_.patience);
    } catch (const Error& error) {
      throw Error(store_problem(address.serves, error.what()));
    }
  }

  std::string store_problem(bool serves, const std::string& what) const {
    if (serves) {
      return fmt::format("cannot host the store on port {}: {}", port(), printable(what, 300));
    }
    if (agent_hosts()) {
      return fmt::format(
          "the store of {} does not speak the protocol of this libtorch, {} ({}): let rank 0 host "
          "one, with --port P",
          host(), TORCH_VERSION, printable(what, 300));
    }
    return fmt::format("no store of {} within {} s: {}", host(), options_.patience.count(),
                       printable(what, 300));
  }

  // Polls, because a wait in the store cannot be ended.
  bool appears(const std::string& key) {
    while (!group_->store_->has(key)) {
      if (group_->store_->has("failed")) throw RankLost(group_->store_->get("failed"));
      if (Clock::now() > deadline_) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return true;
  }

  void compare() {
    const Json own{{"host", host_name()}, {"equal", options_.equal}, {"ranks", place_.size}};
    RankStore& store = *group_->store_;
    store.set(fmt::format("here/{}", place_.rank), own.dump());
    if (place_.rank == 0) {
      const std::string problem = gather(own);
      if (!problem.empty()) {
        store.set("failed", problem);
        // The others look for it every few milliseconds; it may be this process that hosts it.
        std::this_thread::sleep_for(std::chrono::milliseconds(500));
        throw Error(problem);
      }
    }
    WEFT_CHECK(appears("hosts"), "rank 0 did not let the ranks begin within {} s",
               options_.patience.count());
    const Json hosts = Json::parse(store.get("hosts"), "hosts");
    group_->on_this_host_ = hosts[host_name()].get<int>();
  }

  std::string gather(const Json& own) {
    std::map<std::string, int> counts{{host_name(), 1}};
    std::vector<int> missing;
    std::string problem;
    for (int rank = 1; rank < place_.size; ++rank) {
      const std::string key = fmt::format("here/{}", rank);
      if (!appears(key)) {
        missing.push_back(rank);
        continue;
      }
      const Json other = Json::parse(group_->store_->get(key), key);
      if (problem.empty()) problem = difference(own["equal"], other["equal"], rank);
      ++counts[other["host"].get<std::string>()];
    }
    if (!missing.empty()) {
      return fmt::format("rank {} did not join within {} s", fmt::join(missing, ", "),
                         options_.patience.count());
    }
    Json hosts = Json::object();
    for (const auto& [name, count] : counts) hosts.append(name, count);
    if (problem.empty()) group_->store_->set("hosts", hosts.dump());
    return problem;
  }

  RankPlace place_;
  JoinOptions options_;
  Clock::time_point deadline_;
  std::atomic<bool> has_store_{false};
  std::unique_ptr<RankStore> second_;
  std::shared_ptr<ProcessGroup> group_{new ProcessGroup(place_)};
};

std::shared_ptr<ProcessGroup> ProcessGroup::join(const RankPlace& place,
                                                 const JoinOptions& options) {
  const auto joining = std::make_shared<Joining>(place, options);
  std::promise<std::shared_ptr<ProcessGroup>> joined;
  std::future<std::shared_ptr<ProcessGroup>> found = joined.get_future();
  std::thread([joining, joined = std::move(joined)]() mutable {
    try {
      joined.set_value(joining->run());
    } catch (...) {
      joined.set_exception(std::current_exception());
    }
  }).detach();
  if (found.wait_for(options.patience + Joining::kGrace) == std::future_status::timeout) {
    throw Error(fmt::format("{}: {}", place.name(), joining->delay()));
  }
  try {
    return found.get();
  } catch (const std::exception& error) {
    throw Error(fmt::format("{}: {}", place.name(), error.what()));
  }
}

ProcessGroup::~ProcessGroup() = default;

void ProcessGroup::sum(const torch::Tensor& tensor) { wait(*begin_sum(tensor)); }

std::unique_ptr<Transfer> ProcessGroup::begin_sum(const torch::Tensor& tensor) {
  try {
    return collectives_->sum(tensor);
  } catch (const Error& error) {
    lose(error.what());
  }
}

void ProcessGroup::broadcast(const torch::Tensor& tensor) {
  try {
    wait(*collectives_->broadcast(tensor, 0));
  } catch (const RankLost&) {
    throw;
  } catch (const Error& error) {
    lose(error.what());
  }
}

std::string ProcessGroup::text_of_first(const std::string& text) {
  torch::Tensor size = torch::tensor({static_cast<int64_t>(text.size())});
  broadcast(size);
  torch::Tensor bytes = torch::empty({size.item<int64_t>()}, torch::kByte);
  if (is_first()) std::copy(text.begin(), text.end(), bytes.data_ptr<uint8_t>());
  if (bytes.numel() > 0) broadcast(bytes);
  const auto* begin = reinterpret_cast<const char*>(bytes.data_ptr<uint8_t>());
  return is_first() ? text : std::string(begin, static_cast<size_t>(bytes.numel()));
}

void ProcessGroup::wait(Transfer& transfer) {
  try {
    while (!transfer.wait(std::chrono::milliseconds(200))) {
      if (const auto verdict = heartbeat_->verdict()) throw RankLost(*verdict);
    }
  } catch (const RankLost&) {
    throw;
  } catch (const Error& error) {
    lose(error.what());
  }
}

// A connection broke: a rank has ended, and the heartbeats tell which one.
void ProcessGroup::lose(const std::string& problem) {
  heartbeat_->connection_broke();
  const auto end = Clock::now() + Heartbeat::kPatienceWhenBroken + std::chrono::seconds(4);
  while (Clock::now() < end) {
    if (const auto verdict = heartbeat_->verdict()) throw RankLost(*verdict);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  throw RankLost(fmt::format("a connection to another rank broke: {}", printable(problem, 300)));
}

void ProcessGroup::fail(const std::string& reason) {
  if (!heartbeat_) return;  // it has left
  heartbeat_->fail(reason);
  // The others read it at their next beat; if it hosts the store, it must still be there.
  if (is_first()) std::this_thread::sleep_for(4 * Heartbeat::kEvery);
}

void ProcessGroup::leave() {
  if (is_first()) heartbeat_->outlive_others();
  heartbeat_.reset();
}

}  // namespace weft
