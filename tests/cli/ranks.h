// Ranks of one run, started as torchrun starts them: by five variables.
#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>

#include <map>
#include <memory>

#include "tests/cli/trainer_commands.h"

namespace weft::test {

// A port that nobody listens on just now.
inline int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ::bind(fd, reinterpret_cast<sockaddr*>(&address), size);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  ::close(fd);
  return ntohs(address.sin_port);
}

class Ranks : public TrainerCommands {
 protected:
  void SetUp() override {
    TrainerCommands::SetUp();
#ifndef WEFT_C10D
    GTEST_SKIP() << "built without c10d";
#endif
  }

  using Variables = std::map<std::string, std::string>;
  // Begins one rank.
  std::unique_ptr<Program> rank(int rank, int size, const std::vector<std::string>& arguments,
                                const Variables& more = {}) {
    Variables variables = {{"RANK", std::to_string(rank)},
                           {"LOCAL_RANK", std::to_string(rank)},
                           {"WORLD_SIZE", std::to_string(size)},
                           {"MASTER_ADDR", "127.0.0.1"},
                           {"MASTER_PORT", std::to_string(port_)}};
    for (const auto& [name, value] : more) variables[name] = value;
    for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
    auto program = std::make_unique<Program>(arguments);
    for (const auto& [name, value] : variables) ::unsetenv(name.c_str());
    return program;
  }
  // Begins all ranks with the same arguments.
  void start(int size, const std::vector<std::string>& arguments) {
    port_ = free_port();
    ranks_.clear();
    for (int i = 0; i < size; ++i) ranks_.push_back(rank(i, size, arguments));
  }
  std::vector<Outcome> wait_all() {
    std::vector<Outcome> outcomes;
    for (const auto& program : ranks_) outcomes.push_back(program->wait());
    return outcomes;
  }
  void run_all(int size, const std::vector<std::string>& arguments) {
    start(size, arguments);
    for (const Outcome& outcome : wait_all()) ASSERT_EQ(outcome.code, 0) << outcome.err;
  }

  // One line per rank on standard error, which begins with its name.
  static void expect_line(const Outcome& outcome, const std::string& rank,
                          const std::string& reason) {
    EXPECT_EQ(outcome.code, 1) << rank << ": " << outcome.err;
    EXPECT_TRUE(outcome.err.starts_with("weft: " + rank + ": ")) << outcome.err;
    EXPECT_TRUE(contains(outcome.err, reason)) << rank << ": " << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }

  std::vector<Json> step_lines(const std::string& name) const {
    std::vector<Json> lines;
    std::ifstream stream(folder(name) + "/metrics.jsonl");
    for (std::string line; std::getline(stream, line);) {
      Json entry = Json::parse(line, "metrics");
      if (entry.contains("loss")) lines.push_back(std::move(entry));
    }
    return lines;
  }

  int port_ = free_port();
  std::vector<std::unique_ptr<Program>> ranks_;
};

}  // namespace weft::test
