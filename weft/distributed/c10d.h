// libtorch's c10d: a store of keys that all ranks see, and collectives on Gloo. The one place that
// knows how versions of libtorch differ (c10d.cpp).
//
//   RankStore     text by key, at one host and port        for joining, heartbeats and last words
//   Collectives   sum and broadcast of CPU tensors         for data
//
// A libtorch without c10d, or without Gloo's headers (Debian: libgloo-dev), builds too: then
// has_c10d() is false, and the others throw Error.
#pragma once

#include <torch/types.h>

#include <chrono>
#include <memory>
#include <string>

namespace weft {

bool has_c10d();

struct StoreAddress {
  std::string host;
  int port = 0;
  bool serves = false;  // this process hosts it
  std::string prefix;   // of all keys
};

// Calls throw Error with what c10d says, in one line. They block while the host does not answer:
// nothing in c10d 1.13 ends that wait.
class RankStore {
 public:
  virtual ~RankStore() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  virtual bool has(const std::string& key) = 0;
  virtual std::string get(const std::string& key) = 0;  // that it has
};
// Tries to connect for so long.
std::unique_ptr<RankStore> open_store(const StoreAddress& address, std::chrono::seconds timeout);

// A collective under way. Keeps its tensor alive.
class Transfer {
 public:
  virtual ~Transfer() = default;
  // Whether it is done, after so long at most. Throws Error with what Gloo says if a connection
  // broke.
  virtual bool wait(std::chrono::milliseconds most) = 0;
};

// Every rank must begin the same collectives in the same order; several may be under way. A sum has
// the same bits on every rank, and in every run on as many ranks.
class Collectives {
 public:
  virtual ~Collectives() = default;
  virtual std::unique_ptr<Transfer> sum(const torch::Tensor& tensor) = 0;  // in place
  virtual std::unique_ptr<Transfer> broadcast(const torch::Tensor& tensor, int from) = 0;
};
// Connects to all ranks, which must do so too. store: of open_store. interface: the network
// interface to use, as in eth0; empty: that of `address`, an address of this host.
std::unique_ptr<Collectives> connect_ranks(RankStore& store, int rank, int size,
                                           const std::string& interface,
                                           const std::string& address);

}  // namespace weft
