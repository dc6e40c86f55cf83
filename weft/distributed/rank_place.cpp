#include "weft/distributed/rank_place.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "weft/core/error.h"
#include "weft/core/text.h"

namespace weft {
namespace {

int whole_of(const char* text, const char* name, int low, int high) {
  int value = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, problem] = std::from_chars(text, end, value);
  WEFT_CHECK(problem == std::errc() && stop == end && value >= low && value <= high,
             "{}='{}': accepted are whole numbers from {} to {}", name, printable(text), low, high);
  return value;
}

}  // namespace

std::string RankPlace::name() const { return fmt::format("rank {} of {}", rank, size); }

std::optional<RankPlace> rank_place(const Environment& environment) {
  constexpr int kMostRanks = 1 << 16;
  const char* world = environment("WORLD_SIZE");
  if (world == nullptr || *world == '\0') return std::nullopt;
  RankPlace place;
  place.size = whole_of(world, "WORLD_SIZE", 1, kMostRanks);
  if (place.size == 1) return std::nullopt;
  const auto needed = [&](const char* name) {
    const char* text = environment(name);
    WEFT_CHECK(text != nullptr && *text != '\0',
               "WORLD_SIZE is {}, but {} is not set: ranks need RANK, WORLD_SIZE, LOCAL_RANK, "
               "MASTER_ADDR and MASTER_PORT, as torchrun sets them",
               place.size, name);
    return text;
  };
  place.rank = whole_of(needed("RANK"), "RANK", 0, place.size - 1);
  place.local_rank = whole_of(needed("LOCAL_RANK"), "LOCAL_RANK", 0, place.size - 1);
  place.master = needed("MASTER_ADDR");
  place.port = whole_of(needed("MASTER_PORT"), "MASTER_PORT", 1, 65535);
  const char* agent = environment("TORCHELASTIC_USE_AGENT_STORE");
  place.agent_hosts_store = agent != nullptr && std::strcmp(agent, "True") == 0;
  const char* restarts = environment("TORCHELASTIC_RESTART_COUNT");
  if (restarts != nullptr && *restarts != '\0') {
    place.restarts = whole_of(restarts, "TORCHELASTIC_RESTART_COUNT", 0, kMostRanks);
  }
  const char* interface = environment("GLOO_SOCKET_IFNAME");
  if (interface != nullptr) place.interface = interface;
  return place;
}

std::optional<RankPlace> rank_place() {
  return rank_place([](const char* name) { return std::getenv(name); });
}

std::string own_address_towards(const std::string& host, int port) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_DGRAM;
  addrinfo* list = nullptr;
  const int failure = ::getaddrinfo(host.c_str(), fmt::format("{}", port).c_str(), &wanted, &list);
  WEFT_CHECK(failure == 0, "the host '{}' (MASTER_ADDR) is not known: {}", printable(host),
             ::gai_strerror(failure));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> found(list, ::freeaddrinfo);
  for (const addrinfo* one = list; one != nullptr; one = one->ai_next) {
    const int fd = ::socket(one->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    sockaddr_storage own{};
    socklen_t size = sizeof own;
    char text[NI_MAXHOST] = "";
    // No packet is sent: a datagram socket only finds its route.
    const bool known = ::connect(fd, one->ai_addr, one->ai_addrlen) == 0 &&
                       ::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) == 0 &&
                       ::getnameinfo(reinterpret_cast<sockaddr*>(&own), size, text, sizeof text,
                                     nullptr, 0, NI_NUMERICHOST) == 0;
    ::close(fd);
    if (known) return text;
  }
  throw Error(fmt::format("there is no route to the host '{}' (MASTER_ADDR)", printable(host)));
}

}  // namespace weft
