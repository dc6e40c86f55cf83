#include "weft/distributed/c10d.h"

#include "weft/core/error.h"

#ifdef WEFT_C10D
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#endif

namespace weft {

#ifdef WEFT_C10D
namespace {

// Messages of c10d have pages of frames, and addresses of source files in front.
std::string first_line(const std::exception& error) {
  const auto* torchs = dynamic_cast<const c10::Error*>(&error);
  const std::string what = torchs != nullptr ? torchs->what_without_backtrace() : error.what();
  return what.substr(0, what.find('\n'));
}

template <typename Body>
auto one_line(Body body) {
  try {
    return body();
  } catch (const std::exception& error) {
    throw Error(first_line(error));
  }
}

// Newer libtorch prefers libuv, which Debian's is built without: an error when the store opens.
void without_libuv(auto& options) {
  if constexpr (requires { options.useLibUV; }) options.useLibUV = false;
}

class TcpRankStore : public RankStore {
 public:
  TcpRankStore(const StoreAddress& address, std::chrono::seconds timeout) {
    c10d::TCPStoreOptions options;
    without_libuv(options);
    options.port = static_cast<uint16_t>(address.port);
    options.isServer = address.serves;
    options.waitWorkers = false;
    options.timeout = timeout;
    one_line([&] {
      store = c10::make_intrusive<c10d::PrefixStore>(
          address.prefix, c10::make_intrusive<c10d::TCPStore>(address.host, options));
      // A client says nothing before its first question; a server of another protocol shows here.
      store->check({"begin"});
    });
  }

  void set(const std::string& key, const std::string& value) override {
    one_line([&] { store->set(key, std::vector<uint8_t>(value.begin(), value.end())); });
  }
  bool has(const std::string& key) override {
    return one_line([&] { return store->check({key}); });
  }
  std::string get(const std::string& key) override {
    return one_line([&] {
      const std::vector<uint8_t> value = store->get(key);
      return std::string(value.begin(), value.end());
    });
  }

  c10::intrusive_ptr<c10d::Store> store;
};

class GlooTransfer : public Transfer {
 public:
  explicit GlooTransfer(c10::intrusive_ptr<c10d::Work> work) : work_(std::move(work)) {}

  bool wait(std::chrono::milliseconds most) override {
    try {
      work_->wait(most);
      return true;
    } catch (const std::exception& error) {
      // wait() says by an exception that time is up, too.
      if (!work_->isCompleted()) return false;
      if (work_->isSuccess()) return true;
      throw Error(first_line(error));
    }
  }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
};

class GlooCollectives : public Collectives {
 public:
  GlooCollectives(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                  const std::string& interface, const std::string& address) {
    using Gloo = c10d::ProcessGroupGloo;
    // How long a rank may keep others waiting is known better to who watches its heartbeats.
    const auto options = Gloo::Options::create(std::chrono::hours(24 * 7));
    options->devices.push_back(interface.empty() ? Gloo::createDeviceForHostname(address)
                                                 : Gloo::createDeviceForInterface(interface));
    options->threads = 2;  // transfers at a time
    gloo_ = c10::make_intrusive<Gloo>(store, rank, size, options);
  }

  std::unique_ptr<Transfer> sum(const torch::Tensor& tensor) override {
    return one_line([&]() -> std::unique_ptr<Transfer> {
      std::vector<at::Tensor> one{tensor};
      return std::make_unique<GlooTransfer>(gloo_->allreduce(one));
    });
  }
  std::unique_ptr<Transfer> broadcast(const torch::Tensor& tensor, int from) override {
    return one_line([&]() -> std::unique_ptr<Transfer> {
      std::vector<at::Tensor> one{tensor};
      c10d::BroadcastOptions options;
      options.rootRank = from;
      options.rootTensor = 0;
      return std::make_unique<GlooTransfer>(gloo_->broadcast(one, options));
    });
  }

 private:
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
};

}  // namespace

bool has_c10d() { return true; }

std::unique_ptr<RankStore> open_store(const StoreAddress& address, std::chrono::seconds timeout) {
  return std::make_unique<TcpRankStore>(address, timeout);
}

std::unique_ptr<Collectives> connect_ranks(RankStore& store, int rank, int size,
                                           const std::string& interface,
                                           const std::string& address) {
  return one_line([&]() -> std::unique_ptr<Collectives> {
    return std::make_unique<GlooCollectives>(dynamic_cast<TcpRankStore&>(store).store, rank, size,
                                             interface, address);
  });
}

#else

namespace {
[[noreturn]] void refuse() {
  throw Error(
      "this build of weft has no c10d with Gloo, and cannot train on several ranks: build it where "
      "libgloo-dev is installed, with a libtorch that has Gloo");
}
}  // namespace

bool has_c10d() { return false; }
std::unique_ptr<RankStore> open_store(const StoreAddress&, std::chrono::seconds) { refuse(); }
std::unique_ptr<Collectives> connect_ranks(RankStore&, int, int, const std::string&,
                                           const std::string&) {
  refuse();
}

#endif

}  // namespace weft
