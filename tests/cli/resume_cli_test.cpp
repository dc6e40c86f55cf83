// weft train on a run that is there: what --resume auto takes over, what a finished run still does, and
// the commands of a report, which repeat it.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstring>

#include "tests/cli/trainer_commands.h"

namespace weft::test {
namespace {

class Resume : public TrainerCommands {
 protected:
  Json record(const std::string& name) const {
    return Json::parse(contents(folder(name) + "/run.json"), "run.json");
  }
};

// The launcher's command counts, also where it says what would be the default.
TEST_F(Resume, AutoTakesWhatIsGivenThoughItIsTheDefault) {
  const std::vector<std::string> first = train("run", {"--clip", "0.5"}, "4");
  ASSERT_EQ(run(first).code, 0);
  const auto options_after = [&](const std::vector<std::string>& more) {
    const Outcome outcome = run(train("run", more, "6"));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return record("run")["options"];
  };
  EXPECT_EQ(options_after({"--resume", "auto"})["clip"], 0.5);  // not given: as it was
  put(folder("clip.toml"), "clip = 1.0\n");
  const std::vector<std::string> with_file = {"--resume", "auto", "--config", folder("clip.toml")};
  const Outcome outcome = run(train("run", with_file, "8"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(record("run")["options"]["clip"], 1.0);
  ASSERT_EQ(run({"train", "--resume", folder("run"), "--steps", "10", "--clip", "0.5"}).code, 0);
  ASSERT_EQ(run(train("run", {"--resume", "auto", "--clip", "1"}, "12")).code, 0);
  EXPECT_EQ(record("run")["options"]["clip"], 1.0);
  EXPECT_EQ(record("run")["changes"].size(), 4u) << record("run")["changes"].dump();
}

TEST_F(Resume, AFinishedRunStillExportsAndWritesEvents) {
  ASSERT_EQ(run(train("run", {}, "4")).code, 0);
  const std::string before = model("run");
  const Outcome outcome = run({"train", "--resume", folder("run"), "--export", "packed",
                               "--tensorboard", folder("events"), "--clip", "0.5"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "finished after 4 steps")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "packed.safetensors: ")) << outcome.out;
  EXPECT_EQ(outcome.err, "weft: the run is finished: without more --steps nothing uses --clip\n");
  EXPECT_EQ(run({"check", folder("run") + "/packed.safetensors"}).code, 0);
  EXPECT_EQ(record("run")["result"]["packed_bytes"],
            std::filesystem::file_size(folder("run") + "/packed.safetensors"));
  EXPECT_TRUE(std::filesystem::exists(folder("events") + "/run/events.out.tfevents.weft"));
  EXPECT_EQ(model("run"), before);
  EXPECT_EQ(run({"train", "--resume", folder("run")}).err, "");
}

// The commands between <pre><code> and its end, as a browser shows them.
std::vector<std::string> commands_in(const std::string& page) {
  std::vector<std::string> commands;
  const std::string begin = "<pre><code>", end = "</code></pre>";
  for (size_t at = page.find(begin); at != std::string::npos; at = page.find(begin, at)) {
    at += begin.size();
    std::string text = page.substr(at, page.find(end, at) - at);
    for (const auto& [from, to] : {std::pair{"&#39;", "'"}, {"&quot;", "\""}, {"&amp;", "&"}}) {
      for (size_t found; (found = text.find(from)) != std::string::npos;) {
        text.replace(found, std::strlen(from), to);
      }
    }
    commands.push_back(text);
  }
  return commands;
}

TEST_F(Resume, ARunThatWasExtendedIsRepeatedByTheCommandsOfItsReport) {
  ASSERT_EQ(run(train("a run", {"--recipe", "t-sr-ste"}, "6")).code, 0);
  ASSERT_EQ(run({"train", "--resume", folder("a run"), "--steps", "12", "--lr", "1e-4"}).code, 0);
  const std::string page = folder("report.html");
  ASSERT_EQ(run({"report", folder("a run"), "--out", page}).code, 0);
  const std::vector<std::string> commands = commands_in(contents(page));
  ASSERT_EQ(commands.size(), 1u);
  EXPECT_TRUE(contains(commands[0], "--steps 6 ")) << commands[0];
  const std::string script =
      "export PATH='" + program_folder().string() + "':$PATH; { " + commands[0] + "} >/dev/null";
  ASSERT_EQ(std::system(script.c_str()), 0) << script;
  EXPECT_EQ(model("a run-again"), model("a run"));
}

TEST_F(Resume, ARunThatWasChangedOnTheWayIsNotSaidToBeRepeatable) {
  {
    Program program(train("run", {}, "600"));
    ASSERT_TRUE(wait_for_step("run", 20));
    ::kill(program.pid(), SIGTERM);
    program.wait();
  }
  ASSERT_EQ(run({"train", "--resume", folder("run"), "--clip", "0.5"}).code, 0);
  const std::string page = folder("report.html");
  ASSERT_EQ(run({"report", folder("run"), "--out", page}).code, 0);
  EXPECT_TRUE(commands_in(contents(page)).empty());
  EXPECT_TRUE(contains(contents(page), "No command repeats it: it was changed after step "));
  EXPECT_TRUE(contains(contents(page), ": clip 1.0 to 0.5."));
}

// libtorch's own error, which names an allocator and a C++ frame, is one line about memory.
TEST_F(Resume, WhatLibtorchCannotAllocateIsOneLine) {
  const auto memory =
      static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  if (memory < 12e9) GTEST_SKIP() << "such a model is refused before anything is allocated";
  rlimit old{};
  ::getrlimit(RLIMIT_AS, &old);
  rlimit tight = old;
  tight.rlim_cur = 2'300'000'000;  // the program itself takes half of it
  ::setrlimit(RLIMIT_AS, &tight);
  const Outcome outcome = run(train("run", {"--width", "24576", "--depth", "2"}));
  ::setrlimit(RLIMIT_AS, &old);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.err, "weft: out of memory: 2.42 GB more were needed\n");
  EXPECT_FALSE(std::filesystem::exists(folder("run")));
}

}  // namespace
}  // namespace weft::test
