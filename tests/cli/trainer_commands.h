// The fixture of tests that run the commands which train: short runs, and how to wait for them.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/program.h"
#include "tests/support.h"

namespace weft::test {

class TrainerCommands : public ::testing::Test {
 protected:
  TrainerCommands() { ::setenv("XDG_CACHE_HOME", (scratch_ / "cache").c_str(), 1); }
  void SetUp() override {
    if (!has_torch()) GTEST_SKIP() << "built without libtorch";
  }

  std::string folder(const std::string& name) const { return scratch_ / name; }
  // A run of a second.
  std::vector<std::string> train(const std::string& name, const std::vector<std::string>& more,
                                 const std::string& steps = "20") const {
    std::vector<std::string> arguments = {
        "train", "--model",        "mlp", "--width",       "32", "--batch", "16",        "--steps",
        steps,   "--train-images", "200", "--test-images", "50", "--out",   folder(name)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    // Unless a test says otherwise.
    const auto otherwise = [&](const std::string& flag, const std::string& value) {
      if (std::find(more.begin(), more.end(), flag) != more.end()) return;
      arguments.insert(arguments.end(), {flag, value});
    };
    otherwise("--plan", "sparse");
    otherwise("--checkpoint-every", "5");
    return arguments;
  }
  std::string model(const std::string& name) const {
    return contents(folder(name) + "/model.safetensors");
  }
  // Whether the run gets there.
  bool wait_for_step(const std::string& name, int64_t step) const {
    for (int i = 0; i < 2000; ++i) {
      std::ifstream metrics(folder(name) + "/metrics.jsonl");
      int64_t lines = 0;
      for (std::string line; std::getline(metrics, line);) ++lines;
      if (lines >= step) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }

  bool wait_for(const std::filesystem::path& path) const {
    for (int i = 0; i < 6000; ++i) {
      if (std::filesystem::exists(path)) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }
  // Until the file is being written, under its temporary name.
  static void wait_for_begun(const std::filesystem::path& path) {
    const std::string prefix = "." + path.filename().string() + ".weft-";
    for (int i = 0; i < 6000; ++i) {
      for (const std::string& name : names_in(path.parent_path())) {
        if (name.starts_with(prefix)) return;
      }
      sleep_ms(2);
    }
    ADD_FAILURE() << path << " is not written";
  }
  // Until the program answers signals, and a little longer: loading libtorch takes a while.
  static void wait_until_at_work(const Program& program, bool torch) {
    const std::string process = fmt::format("/proc/{}", program.pid());
    for (int i = 0; i < 6000; ++i) {
      std::error_code failure;
      const auto exe = std::filesystem::read_symlink(process + "/exe", failure);
      const std::string status = contents(process + "/status");
      const size_t caught = status.find("SigCgt:");
      const bool answers =
          caught != std::string::npos &&
          (std::stoull(status.substr(caught + 7), nullptr, 16) >> (SIGTERM - 1) & 1);
      if (answers && exe.filename() == (torch ? "weft-train" : "weft")) return sleep_ms(700);
      sleep_ms(10);
    }
    ADD_FAILURE() << "does not start";
  }
  static void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

  // Asks a program to end: it must, soon, by the signal, and with a line that says so.
  static Outcome stop(Program& program, int signal = SIGTERM) {
    const auto start = std::chrono::steady_clock::now();
    ::kill(program.pid(), signal);
    const Outcome outcome = program.wait();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    EXPECT_EQ(outcome.code, 128 + signal) << outcome.out << outcome.err;
    EXPECT_LT(took.count(), 5.0);
    EXPECT_TRUE(contains(outcome.out + outcome.err, "stopped")) << outcome.out << outcome.err;
    return outcome;
  }
  // Words of running processes that have this one among them.
  static int processes_with(const std::string& word) {
    int found = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      found += contains(contents(entry.path() / "cmdline"), word);
    }
    return found;
  }
  // A text, of so many lines.
  std::string text_file(int lines) const {
    std::ofstream text(scratch_ / "text");
    for (int i = 0; i < lines; ++i) text << "Once upon a time there was number " << i % 97 << ".\n";
    return "text:" + folder("text");
  }
  std::vector<std::string> comparison(const std::string& width, const std::string& batch,
                                      const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {"compare",
                                          "--model",
                                          "mlp",
                                          "--width",
                                          width,
                                          "--batch",
                                          batch,
                                          "--train-images",
                                          "100",
                                          "--test-images",
                                          "50",
                                          "--seeds",
                                          "1",
                                          "--recipes",
                                          "dense,s-ste",
                                          "--out",
                                          folder("compare")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  ScratchFolder scratch_;
};

}  // namespace weft::test
