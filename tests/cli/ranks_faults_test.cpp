// What each rank says, and how soon, when one of them fails.
#include <sys/resource.h>

#include "tests/cli/ranks.h"

namespace weft::test {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::vector<std::string> endless() { return {"--checkpoint-every", "5", "--rank-timeout", "5"}; }

// No file half-written: what a killed rank 0 leaves is under a hidden name, and gone when the run
// goes on.
void expect_whole_files(const std::string& run_folder) {
  for (const char* part : {"", "/checkpoints"}) {
    for (const std::string& name : names_in(run_folder + part)) {
      EXPECT_FALSE(contains(name, ".weft-")) << name;
    }
  }
}

TEST_F(Ranks, AKilledRankEndsAllOfThem) {
  start(3, train("run", {"--rank-timeout", "5", "--batch", "24"}, "1000000"));
  ASSERT_TRUE(wait_for_step("run", 8));
  const auto begin = Clock::now();
  ::kill(ranks_[1]->pid(), SIGKILL);
  const std::vector<Outcome> outcomes = wait_all();
  EXPECT_LT(seconds_since(begin), 10.0);
  for (const int other : {0, 2}) {
    expect_line(outcomes[static_cast<size_t>(other)], fmt::format("rank {} of 3", other),
                "rank 1 has been silent");
  }
  expect_whole_files(folder("run"));
}

TEST_F(Ranks, AKilledFirstRankEndsAllOfThem) {
  start(2, train("run", endless(), "1000000"));
  ASSERT_TRUE(wait_for_step("run", 8));
  const auto begin = Clock::now();
  ::kill(ranks_[0]->pid(), SIGKILL);
  expect_line(wait_all()[1], "rank 1 of 2", "rank 0");
  EXPECT_LT(seconds_since(begin), 10.0);
  EXPECT_EQ(run({"train", "--resume", folder("run"), "--steps", "999999"}).code, 1);
  expect_whole_files(folder("run"));
}

TEST_F(Ranks, AStoppedRankEndsTheOthers) {
  for (const int stopped : {0, 1}) {
    const std::string name = fmt::format("stop{}", stopped);
    start(2, train(name, endless(), "1000000"));
    ASSERT_TRUE(wait_for_step(name, 8));
    const auto begin = Clock::now();
    ::kill(ranks_[static_cast<size_t>(stopped)]->pid(), SIGSTOP);
    const int other = 1 - stopped;
    const Outcome outcome = ranks_[static_cast<size_t>(other)]->wait();
    EXPECT_LT(seconds_since(begin), 15.0);
    expect_line(outcome, fmt::format("rank {} of 2", other), fmt::format("rank {}", stopped));
    ::kill(ranks_[static_cast<size_t>(stopped)]->pid(), SIGCONT);
    const Outcome late = ranks_[static_cast<size_t>(stopped)]->wait();
    expect_line(late, fmt::format("rank {} of 2", stopped), other == 0 ? "rank 0" : "rank 1");
  }
}

TEST_F(Ranks, AMissingRankOrMasterIsNamed) {
  const auto begin = Clock::now();
  const std::vector<std::string> arguments = train("run", {"--rank-timeout", "2"});
  expect_line(rank(0, 3, arguments)->wait(), "rank 0 of 3", "rank 1, 2 did not join within 2 s");
  expect_line(rank(1, 2, arguments)->wait(), "rank 1 of 2", "no store of rank 0 at 127.0.0.1:");
  EXPECT_LT(seconds_since(begin), 24.0);
  EXPECT_FALSE(std::filesystem::exists(folder("run")));
}

TEST_F(Ranks, WhatDiffersBetweenRanksIsNamed) {
  const auto both = [&](const std::vector<std::string>& more, const Variables& variables,
                        const std::string& reason) {
    port_ = free_port();
    std::vector<std::string> arguments = train("run", {"--rank-timeout", "20"});
    const auto first = rank(0, 2, arguments);
    arguments.insert(arguments.end(), more.begin(), more.end());
    const auto second = rank(1, 2, arguments, variables);
    expect_line(first->wait(), "rank 0 of 2", reason);
    expect_line(second->wait(), "rank 1 of 2", reason);
    EXPECT_FALSE(std::filesystem::exists(folder("run")));
  };
  both({"--seed", "7"}, {}, "rank 1 has --seed \"7\", rank 0 has \"1\"");
  both({"--batch", "32"}, {}, "rank 1 has --batch \"32\"");
  both({}, {{"WEFT_ISA", "avx2"}}, "rank 1 has instruction set \"avx2\"");
}

TEST_F(Ranks, APortInUseIsNamed) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(fd, 8), 0);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  port_ = ntohs(address.sin_port);
  const auto begin = Clock::now();
  const std::vector<std::string> arguments = train("run", {"--rank-timeout", "2"});
  const auto first = rank(0, 2, arguments), second = rank(1, 2, arguments);
  expect_line(first->wait(), "rank 0 of 2", fmt::format("cannot host the store on port {}", port_));
  expect_line(second->wait(), "rank 1 of 2", "no store of rank 0");
  EXPECT_LT(seconds_since(begin), 24.0);
  ::close(fd);
}

// A limit on the size of files fails as a full disk does.
TEST_F(Ranks, AFullDiskOnTheFirstRankEndsAllOfThem) {
  port_ = free_port();
  const std::vector<std::string> arguments = train("run", {"--rank-timeout", "5"}, "1000000");
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  rlimit small = before;
  small.rlim_cur = 100'000;  // a checkpoint has more
  ::setrlimit(RLIMIT_FSIZE, &small);
  const auto first = rank(0, 2, arguments);
  ::setrlimit(RLIMIT_FSIZE, &before);
  const auto second = rank(1, 2, arguments);
  const Outcome one = first->wait();
  expect_line(one, "rank 0 of 2", "step-000000005.safetensors");
  expect_line(second->wait(), "rank 1 of 2", "rank 0 of 2 failed: ");
  expect_whole_files(folder("run"));
}

TEST_F(Ranks, ALossThatIsNotFiniteEndsAllOfThem) {
  start(2, train("run", {"--learning-rate", "1e6", "--optimizer", "sgd", "--clip", "0"}, "100"));
  for (const Outcome& outcome : wait_all()) {
    EXPECT_EQ(outcome.code, 1);
    EXPECT_TRUE(contains(outcome.err, "not finite") || contains(outcome.err, "loss is"))
        << outcome.err;
  }
}

TEST_F(Ranks, BatchesMustBeSharable) {
  start(3, train("run", {}));
  for (const Outcome& outcome : wait_all()) {
    EXPECT_TRUE(contains(outcome.err, "16 samples per batch on 3 ranks")) << outcome.err;
  }
  start(2, train("run", {"--batch", "12"}));
  for (const Outcome& outcome : wait_all()) {
    EXPECT_TRUE(contains(outcome.err, "6 tokens here, and gradients are sampled in groups of 4"))
        << outcome.err;
  }
  EXPECT_FALSE(std::filesystem::exists(folder("run")));
}

TEST_F(Ranks, WrongVariablesAreNamed) {
  const auto line = [&](const Variables& variables) {
    return rank(1, 2, train("run", {"--rank-timeout", "2"}), variables)->wait().err;
  };
  EXPECT_TRUE(contains(line({{"RANK", "2"}}), "RANK='2': accepted are whole numbers from 0 to 1"));
  EXPECT_TRUE(contains(line({{"MASTER_ADDR", ""}}), "MASTER_ADDR is not set"));
  EXPECT_TRUE(contains(line({{"WORLD_SIZE", "two"}}), "WORLD_SIZE='two'"));
  EXPECT_TRUE(contains(line({{"MASTER_ADDR", "no.such.host.invalid"}}), "no.such.host.invalid"));
}

}  // namespace
}  // namespace weft::test
