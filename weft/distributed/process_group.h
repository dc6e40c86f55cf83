// ProcessGroup: the ranks that train together, from joining to leaving.
//
//   const std::optional<RankPlace> place = rank_place();      nothing: this process is alone
//   auto ranks = ProcessGroup::join(*place, {...});
//   ranks->sum(tensor);                                       in place, the same bits on every rank
//   ranks->leave();
//
// Joining compares what must be equal on all ranks: version, libtorch, instruction sets, options.
// Whatever goes wrong on one rank ends all of them, each with an Error that says which rank it was
// and why, within a stated time:
//
//   a rank that fails, and says so (fail())     about a second
//   a rank that is killed                       10 s
//   a rank that is stopped, or is cut off       patience + 10 s
//   a rank or a store that is not there         patience + 10 s, when joining
#pragma once

#include <torch/types.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>

#include "weft/core/error.h"
#include "weft/core/json.h"
#include "weft/distributed/c10d.h"
#include "weft/distributed/heartbeat.h"
#include "weft/distributed/rank_place.h"

namespace weft {

// Another rank has failed or is lost. The connections are of no use any more.
class RankLost : public Error {
 public:
  using Error::Error;
};

struct JoinOptions {
  std::chrono::seconds patience{30};
  int port = 0;  // if not 0, rank 0 hosts the store there, whatever MASTER_PORT says
  // What must be equal on all ranks: an object. Its names appear in messages.
  Json equal = Json::object();
};

class ProcessGroup {
 public:
  static std::shared_ptr<ProcessGroup> join(const RankPlace& place, const JoinOptions& options);
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int rank() const { return place_.rank; }
  int size() const { return place_.size; }
  bool is_first() const { return place_.rank == 0; }
  std::string name() const { return place_.name(); }  // "rank 1 of 4"
  int ranks_on_this_host() const { return on_this_host_; }

  // Collectives: all ranks call the same ones in the same order. They wait as long as the others
  // live, and throw RankLost if one does not.
  void sum(const torch::Tensor& tensor);
  void broadcast(const torch::Tensor& tensor);  // from rank 0
  std::string text_of_first(const std::string& text);
  void wait_for_first() { text_of_first(""); }  // until rank 0 is here
  std::unique_ptr<Transfer> begin_sum(const torch::Tensor& tensor);
  void wait(Transfer& transfer);

  // The last words of the run, of this rank unless another one was faster. Rank 0 stays until the
  // others have had time to read them. To be called whatever ended this rank: RankLost, too.
  void fail(const std::string& reason);
  // All ranks have done their work.
  void leave();

 private:
  explicit ProcessGroup(const RankPlace& place) : place_(place) {}
  [[noreturn]] void lose(const std::string& problem);

  RankPlace place_;
  int on_this_host_ = 1;
  std::unique_ptr<RankStore> store_;
  std::unique_ptr<Heartbeat> heartbeat_;
  std::unique_ptr<Collectives> collectives_;

  friend class Joining;
};

}  // namespace weft
