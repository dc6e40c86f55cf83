// RankPlace: which process of a group this one is, as torchrun, Slurm or mpirun say it.
//
//   RANK, WORLD_SIZE            of all processes
//   LOCAL_RANK                  on this host
//   MASTER_ADDR, MASTER_PORT    where the store is: on the host of rank 0
//
// and, from torchrun alone: TORCHELASTIC_USE_AGENT_STORE (its agent hosts the store already) and
// TORCHELASTIC_RESTART_COUNT. GLOO_SOCKET_IFNAME names the network interface.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace weft {

struct RankPlace {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  std::string master = "127.0.0.1";
  int port = 0;
  bool agent_hosts_store = false;
  int restarts = 0;
  std::string interface;  // empty: the one that leads to the master

  std::string name() const;  // "rank 1 of 4"
};

using Environment = std::function<const char*(const char* name)>;

// Nothing if WORLD_SIZE is not set, or 1: then the process is alone. Throws Error that names the
// variable if another is missing or wrong.
std::optional<RankPlace> rank_place(const Environment& environment);
std::optional<RankPlace> rank_place();  // of this process

// The address of this host from which packets go to another one. Throws Error if the name is not
// known.
std::string own_address_towards(const std::string& host, int port);

}  // namespace weft
