// Runs the weft program as a user does, and looks at everything that comes out of it.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace weft::test {

namespace fs = std::filesystem;

inline std::string read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// A folder that is gone when the test is.
class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "weft-test-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  const fs::path& path() const { return path_; }

  std::set<std::string> names() const {
    std::set<std::string> found;
    for (const auto& entry : fs::recursive_directory_iterator(path_)) {
      found.insert(fs::relative(entry.path(), path_).string());
    }
    return found;
  }

 private:
  fs::path path_;
};

struct Outcome {
  int code = -1;  // exit code, or 128 + signal
  std::string out;
  std::string err;
  int64_t peak_bytes = 0;

  nlohmann::json json() const { return nlohmann::json::parse(out); }
};

class Program {
 public:
  // Begins the program; standard output goes to a file unless `out` names another one.
  explicit Program(std::vector<std::string> args, const std::string& out = "") {
    const std::string out_path = out.empty() ? logs_ / "out" : out;
    const std::string err_path = logs_ / "err";
    pid_ = ::fork();
    if (pid_ != 0) return;
    redirect(out_path, STDOUT_FILENO);
    redirect(err_path, STDERR_FILENO);
    std::string program = WEFT_PROGRAM;
    std::vector<char*> argv = {program.data()};
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    ::execv(program.c_str(), argv.data());
    ::_exit(127);
  }

  pid_t pid() const { return pid_; }

  Outcome wait() {
    int status = 0;
    rusage usage{};
    ::wait4(pid_, &status, 0, &usage);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return {code, read_text(logs_ / "out"), read_text(logs_ / "err"), usage.ru_maxrss * 1024};
  }

 private:
  static void redirect(const std::string& path, int to) {
    ::dup2(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), to);
  }

  Folder logs_;
  pid_t pid_ = 0;
};

inline Outcome run(const std::vector<std::string>& args, const std::string& out = "") {
  return Program(args, out).wait();
}

}  // namespace weft::test
