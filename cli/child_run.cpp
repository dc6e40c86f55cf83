#include "cli/child_run.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include "weft/core/error.h"
#include "weft/core/text.h"
#include "weft/run/run_folder.h"

extern char** environ;

namespace weft::cli {
namespace {

struct Pipe {
  Pipe() {
    WEFT_CHECK(::pipe2(ends, O_CLOEXEC) == 0, "cannot make a pipe: {}", std::strerror(errno));
  }
  ~Pipe() {
    ::close(ends[0]);
    close_write();
  }
  void close_write() {
    if (ends[1] >= 0) ::close(ends[1]);
    ends[1] = -1;
  }
  int ends[2];
};

// A process that is ended unless it was waited for.
class Child {
 public:
  explicit Child(pid_t id) : id_(id) {}
  ~Child() {
    if (id_ > 0) end();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  int wait() {
    int status = 0;
    while (::waitpid(id_, &status, 0) < 0 && errno == EINTR) {
    }
    id_ = 0;
    return status;
  }

 private:
  // It has two seconds to come to a good end.
  void end() {
    ::kill(id_, SIGTERM);
    for (int i = 0; i < 200; ++i) {
      if (::waitpid(id_, nullptr, WNOHANG) != 0) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ::kill(id_, SIGKILL);
    wait();
  }

  pid_t id_;
};

std::string read_all(int fd, const StopSignal& stop) {
  std::string text;
  char buffer[4096];
  while (true) {
    pollfd wanted{fd, POLLIN, 0};
    // A signal that comes before poll() does not end it: hence the limit.
    const int ready = ::poll(&wanted, 1, /*milliseconds=*/200);
    if (stop.signal() != 0) throw Stopped();
    if (ready <= 0) continue;
    const ssize_t count = ::read(fd, buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return text;
    text.append(buffer, static_cast<size_t>(count));
  }
}

// Gone when this is.
struct TemporaryFolder {
  explicit TemporaryFolder(const std::filesystem::path& path) : path(path) {
    std::filesystem::remove_all(path);  // what a killed comparison has left
  }
  ~TemporaryFolder() {
    std::error_code failure;
    std::filesystem::remove_all(path, failure);
  }
  const std::filesystem::path& path;
};

}  // namespace

std::string output_of_self(const std::vector<std::string>& arguments, const StopSignal& stop) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  Pipe pipe;  // both streams: one of them is enough to say what went wrong
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, pipe.ends[1], STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, pipe.ends[1], STDERR_FILENO);
  pid_t id = 0;
  const int failure = ::posix_spawn(&id, program.c_str(), &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  WEFT_CHECK(failure == 0, "cannot run {}: {}", program, std::strerror(failure));
  Child child(id);
  pipe.close_write();
  const std::string output = read_all(pipe.ends[0], stop);
  const int status = child.wait();
  WEFT_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "weft {} failed: {}",
             fmt::join(arguments, " "),
             printable(output.substr(output.size() - std::min<size_t>(output.size(), 300)), 300));
  return output;
}

uint64_t peak_memory_of(const RunOptions& options, const std::filesystem::path& folder,
                        const StopSignal& stop) {
  const TemporaryFolder temporary(folder);
  std::vector<std::string> arguments = {"train", "--out", folder.string()};
  for (const OptionField& field : option_fields()) {
    const std::vector<std::string> values = field.get(options);
    if (field.kind == OptionKind::kSwitch) {
      if (values[0] == "true") arguments.push_back("--" + field.name);
      continue;
    }
    for (const std::string& value : values) {
      arguments.push_back("--" + field.name);
      arguments.push_back(value);
    }
  }
  output_of_self(arguments, stop);
  const Json record = read_run_record(folder);
  return record["result"]["peak_resident_bytes"].get<uint64_t>();
}

}  // namespace weft::cli
