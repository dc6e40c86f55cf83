// Heartbeat: tells the other ranks that this one lives, and finds out when one does not.
//
//   every 0.5 s   each rank writes beat/<rank>; rank 0 reads all of them, the others that of rank 0
//   failed        the last words of the run, once: which rank, and why. Every rank reads it
//
// A rank is lost if its beat stands still for `patience`; for a few seconds only, once a connection
// has broken: then somebody is gone, and the question is who. A store that does not answer for so
// long is lost with the rank or the agent that hosts it. A thread of its own, because training may
// compute for minutes without a word.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "weft/distributed/c10d.h"

namespace weft {

class Heartbeat {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kEvery{500};
  static constexpr std::chrono::seconds kPatienceWhenBroken{4};

  // store: a connection of its own. store_name: who hosts it, for messages.
  Heartbeat(std::unique_ptr<RankStore> store, int rank, int size, std::chrono::seconds patience,
            std::string store_name);
  // Says that the rank has ended, and waits for the thread, unless it hangs in the store.
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  // Why the run is over: the last words of a rank, or which one is lost. Nothing if all is well.
  std::optional<std::string> verdict() const;
  // A connection of this rank broke.
  void connection_broke();
  // The last words of this rank, for the others. Returns when they are written, or cannot be.
  void fail(const std::string& reason);
  // Rank 0: waits until the others have ended, `patience` at most. It may host the store.
  void outlive_others();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;  // with the thread, which may have to be left behind
  std::thread thread_;
};

}  // namespace weft
