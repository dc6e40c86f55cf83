#include "weft/distributed/heartbeat.h"

#include <fmt/format.h>

#include <condition_variable>
#include <utility>

#include "weft/core/error.h"

namespace weft {

struct Heartbeat::Shared {
  std::unique_ptr<RankStore> store;
  int rank = 0, size = 1;
  std::chrono::seconds patience{};
  std::string store_name;

  mutable std::mutex mutex;
  std::condition_variable changed;
  // Under the mutex:
  std::optional<std::string> verdict;
  std::string last_words;  // of this rank, to be written
  bool broken = false;     // a connection of this rank
  bool ending = false;     // the thread is to end
  bool ended = false;      // it has
  bool others_gone = false;
  Clock::time_point answered = Clock::now();  // when the store last did
  std::optional<Clock::time_point> doubted;   // since when it seems silent

  // The thread's own:
  struct Other {
    std::string beat;
    Clock::time_point moved = Clock::now();
    bool left = false;
  };
  std::vector<Other> others{};
  Clock::time_point last = Clock::now();
  int64_t beats = 0;

  void run();
  void beat_once();
  void look_at(int other, std::chrono::seconds limit);
  void decide(const std::string& text) {
    const std::lock_guard lock(mutex);
    if (!verdict) verdict = text;
    changed.notify_all();
  }
};

void Heartbeat::Shared::look_at(int other, std::chrono::seconds limit) {
  Other& one = others[static_cast<size_t>(other)];
  if (one.left) return;
  const std::string key = fmt::format("beat/{}", other);
  const std::string beat = store->has(key) ? store->get(key) : "";
  const auto now = Clock::now();
  one.left = beat == "left";
  if (beat != one.beat) one.moved = now;
  one.beat = beat;
  if (one.left || now - one.moved < limit) return;
  const auto silent = std::chrono::duration_cast<std::chrono::seconds>(now - one.moved).count();
  const std::string text = fmt::format(
      "rank {} has been silent for {} s: it was killed or stopped, or its host is cut off", other,
      silent);
  if (!store->has("failed")) store->set("failed", text);
  decide(text);
}

void Heartbeat::Shared::beat_once() {
  // A process that was stopped itself has heard nothing meanwhile, which proves nothing.
  const auto now = Clock::now();
  if (now - std::exchange(last, now) > 4 * kEvery) {
    for (Other& one : others) one.moved = now;
  }
  std::string words;
  bool broke = false;
  {
    const std::lock_guard lock(mutex);
    words = last_words;
    broke = broken;
  }
  store->set(fmt::format("beat/{}", rank), fmt::format("{}", ++beats));
  if (store->has("failed")) {
    decide(store->get("failed"));
  } else if (!words.empty()) {
    store->set("failed", words);
    decide(words);
  }
  if (broke) store->set("broken", "1");
  const bool doubt = broke || store->has("broken");
  const auto limit = doubt ? std::min(patience, kPatienceWhenBroken) : patience;
  if (rank != 0) look_at(0, limit);
  bool gone = true;
  for (int other = 1; rank == 0 && other < size; ++other) {
    look_at(other, limit);
    gone &= others[static_cast<size_t>(other)].left;
  }
  const std::lock_guard lock(mutex);
  answered = Clock::now();
  others_gone = rank == 0 && gone;
  changed.notify_all();
}

void Heartbeat::Shared::run() {
  std::string problem;
  while (true) {
    try {
      beat_once();
    } catch (const std::exception& error) {
      problem = error.what();
      break;
    }
    std::unique_lock lock(mutex);
    if (ending) break;
    // Last words do not wait for the next beat.
    changed.wait_for(lock, kEvery, [&] { return ending || (!last_words.empty() && !verdict); });
    if (ending) break;
  }
  try {
    if (problem.empty()) store->set(fmt::format("beat/{}", rank), "left");
  } catch (const std::exception&) {  // whoever hosted it is gone, and so nobody asks
  }
  const std::lock_guard lock(mutex);
  if (!problem.empty() && !verdict) {
    verdict = fmt::format("the connection to the store of {} broke ({})", store_name, problem);
  }
  ended = true;
  changed.notify_all();
}

Heartbeat::Heartbeat(std::unique_ptr<RankStore> store, int rank, int size,
                     std::chrono::seconds patience, std::string store_name)
    : shared_(std::make_shared<Shared>()) {
  shared_->store = std::move(store);
  shared_->rank = rank;
  shared_->size = size;
  shared_->patience = patience;
  shared_->store_name = std::move(store_name);
  shared_->others.resize(static_cast<size_t>(size));
  thread_ = std::thread([shared = shared_] { shared->run(); });
}

Heartbeat::~Heartbeat() {
  std::unique_lock lock(shared_->mutex);
  shared_->ending = true;
  shared_->changed.notify_all();
  const bool ended = shared_->changed.wait_for(lock, 2 * kEvery, [&] { return shared_->ended; });
  lock.unlock();
  ended ? thread_.join() : thread_.detach();
}

std::optional<std::string> Heartbeat::verdict() const {
  const std::lock_guard lock(shared_->mutex);
  if (shared_->verdict) return shared_->verdict;
  const auto silent = Clock::now() - shared_->answered;
  if (shared_->ended || silent < shared_->patience) {
    shared_->doubted.reset();
    return std::nullopt;
  }
  // This process may have been stopped itself: then the thread has not had its turn yet.
  if (!shared_->doubted) shared_->doubted = Clock::now();
  if (Clock::now() - *shared_->doubted < 2 * kEvery) return std::nullopt;
  return fmt::format(
      "the store of {} has not answered for {} s: it was killed or stopped, or this host is cut "
      "off",
      shared_->store_name, std::chrono::duration_cast<std::chrono::seconds>(silent).count());
}

void Heartbeat::connection_broke() {
  const std::lock_guard lock(shared_->mutex);
  shared_->broken = true;
}

void Heartbeat::fail(const std::string& reason) {
  std::unique_lock lock(shared_->mutex);
  if (shared_->verdict) return;
  shared_->last_words = reason;
  shared_->changed.notify_all();
  shared_->changed.wait_for(lock, 4 * kEvery, [&] { return shared_->verdict || shared_->ended; });
}

void Heartbeat::outlive_others() {
  std::unique_lock lock(shared_->mutex);
  shared_->changed.wait_for(lock, shared_->patience,
                            [&] { return shared_->others_gone || shared_->ended; });
}

}  // namespace weft
