// Runs the weft program as a user does, and looks at everything that comes out of it.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/scratch_folder.h"
#include "weft/core/json.h"

namespace weft::test {

// bin/, where the tests lie and the programs beside them.
inline std::filesystem::path program_folder() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path();
}

// Whether the commands that need libtorch were built.
inline bool has_torch() { return std::filesystem::exists(program_folder() / "weft-train"); }

// Whether programs run under an emulator: their peak memory and times are then the emulator's.
inline bool emulated() { return std::getenv("WEFT_EMULATOR") != nullptr; }

struct Outcome {
  int code = -1;  // exit code, or 128 + signal
  std::string out;
  std::string err;
  int64_t peak_bytes = 0;

  Json json() const { return Json::parse(out, "standard output"); }
};

class Program {
 public:
  // Begins the program; what it prints goes to files of ours unless `out` or `err` name others.
  explicit Program(std::vector<std::string> args, const std::string& out = "",
                   const std::string& err = "") {
    const std::string out_path = out.empty() ? (logs_ / "out").string() : out;
    const std::string err_path = err.empty() ? (logs_ / "err").string() : err;
    pid_ = ::fork();
    if (pid_ != 0) return;
    ::setenv("WEFT_PROGRESS", "0", /*overwrite=*/0);
    redirect(out_path, STDOUT_FILENO);
    redirect(err_path, STDERR_FILENO);
    std::string program = program_folder() / "weft";
    std::vector<char*> argv = {program.data()};
    // Set where the tests run in an emulator: Linux cannot start a program for another CPU itself.
    if (char* emulator = std::getenv("WEFT_EMULATOR")) argv.insert(argv.begin(), emulator);
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }

  pid_t pid() const { return pid_; }

  Outcome wait() {
    int status = 0;
    rusage usage{};
    ::wait4(pid_, &status, 0, &usage);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return {code, contents(logs_ / "out"), contents(logs_ / "err"), usage.ru_maxrss * 1024};
  }

 private:
  static void redirect(const std::string& path, int to) {
    ::dup2(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), to);
  }

  ScratchFolder logs_;
  pid_t pid_ = 0;
};

inline Outcome run(const std::vector<std::string>& args, const std::string& out = "",
                   const std::string& err = "") {
  return Program(args, out, err).wait();
}

}  // namespace weft::test
