#include "cli/child_run.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "weft/core/error.h"
#include "weft/core/text.h"
#include "weft/train/run/run_folder.h"

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

std::string read_all(int fd) {
  std::string text;
  char buffer[4096];
  for (ssize_t count; (count = ::read(fd, buffer, sizeof buffer)) != 0;) {
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) break;
    text.append(buffer, static_cast<size_t>(count));
  }
  return text;
}

}  // namespace

std::string output_of_self(const std::vector<std::string>& arguments) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  Pipe pipe;  // both streams: one of them is enough to say what went wrong
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, pipe.ends[1], STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, pipe.ends[1], STDERR_FILENO);
  pid_t child = 0;
  const int failure =
      ::posix_spawn(&child, program.c_str(), &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  WEFT_CHECK(failure == 0, "cannot run {}: {}", program, std::strerror(failure));
  pipe.close_write();
  const std::string output = read_all(pipe.ends[0]);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  WEFT_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "weft {} failed: {}",
             fmt::join(arguments, " "),
             printable(output.substr(output.size() - std::min<size_t>(output.size(), 300)), 300));
  return output;
}

uint64_t peak_memory_of(const RunOptions& options, const std::filesystem::path& folder) {
  std::filesystem::remove_all(folder);
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
  output_of_self(arguments);
  const Json record = read_run_record(folder);
  std::filesystem::remove_all(folder);
  return record["result"]["peak_resident_bytes"].get<uint64_t>();
}

}  // namespace weft::cli
