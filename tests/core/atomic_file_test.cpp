// Files that appear whole or not at all, and the removal of those that were never finished.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tests/scratch_folder.h"
#include "tests/support.h"
#include "weft/core/atomic_file.h"
#include "weft/core/error.h"

namespace weft {
namespace {

using test::contains;
using test::contents;
using test::message_of;
using test::names_in;
using test::put;
using test::ScratchFolder;

namespace fs = std::filesystem;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

TEST(AtomicFile, NothingIsUnderTheTargetBeforeCommit) {
  const ScratchFolder folder;
  AtomicFile file(folder / "out");
  file.write_at(3, bytes_of("lo"));
  file.write_at(0, bytes_of("hel"));
  file.sync();
  EXPECT_FALSE(fs::exists(folder / "out"));
  file.commit();
  EXPECT_EQ(contents(folder / "out"), "hello");
  EXPECT_EQ(names_in(folder.path()), std::set<std::string>{"out"});
}

TEST(AtomicFile, DestroyedWithoutCommitLeavesNothing) {
  const ScratchFolder folder;
  {
    AtomicFile file(folder / "new");
    file.write_at(0, bytes_of("x"));
    const AtomicFile moved(std::move(file));
    EXPECT_EQ(names_in(folder.path()).size(), 1u);
  }
  EXPECT_TRUE(names_in(folder.path()).empty());
}

TEST(AtomicFile, ReplacesAFileAndKeepsItsMode) {
  const ScratchFolder folder;
  put(folder / "out", "a longer text than the new one");
  ASSERT_EQ(::chmod((folder / "out").c_str(), 0640), 0);
  write_file_atomically(folder / "out", "new");
  EXPECT_EQ(contents(folder / "out"), "new");
  struct stat status {};
  ASSERT_EQ(::stat((folder / "out").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0640u);
}

TEST(AtomicFile, ANewFileObeysTheUmask) {
  const ScratchFolder folder;
  const mode_t before = ::umask(027);
  write_file_atomically(folder / "out", "new");
  ::umask(before);
  struct stat status {};
  ASSERT_EQ(::stat((folder / "out").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0640u);
}

// No space left, in the form that needs no second disk: a limit on the size of files.
TEST(AtomicFile, AFailedWriteLeavesTheTargetAsItWas) {
  const ScratchFolder folder;
  put(folder / "out", "old");
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  struct rlimit tight = before;
  tight.rlim_cur = 4096;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tight), 0);
  const std::string message =
      message_of([&] { write_file_atomically(folder / "out", std::string(8192, 'x')); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);

  EXPECT_TRUE(contains(message, (folder / "out").string())) << message;
  EXPECT_TRUE(contains(message, "cannot write")) << message;
  EXPECT_EQ(contents(folder / "out"), "old");
  EXPECT_EQ(names_in(folder.path()), std::set<std::string>{"out"});
}

TEST(AtomicFile, AFailedRenameLeavesTheTargetAsItWas) {
  const ScratchFolder folder;
  {
    AtomicFile file(folder / "out");
    fs::create_directory(folder / "out");  // in the way since the file was begun
    const std::string message = message_of([&] { file.commit(); });
    EXPECT_TRUE(contains(message, (folder / "out").string())) << message;
  }
  EXPECT_TRUE(fs::is_directory(folder / "out"));
  EXPECT_EQ(names_in(folder.path()), std::set<std::string>{"out"});
}

TEST(AtomicFile, RefusesWhatIsNotARegularFile) {
  const ScratchFolder folder;
  fs::create_directory(folder / "folder");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  fs::create_symlink("/dev/null", folder / "link to null");
  fs::create_symlink("nowhere", folder / "dangling link");
  fs::create_symlink("circle", folder / "circle");
  const std::set<std::string> before = names_in(folder.path());
  // Never committed: should AtomicFile take /dev/null, the machine must survive the test.
  for (const fs::path& path :
       {fs::path("/dev/null"), fs::path("/dev/stdout/"), fs::path("/"), folder / "folder",
        folder / "folder/", folder / "pipe", folder / "link to null", folder / "dangling link",
        folder / "circle", folder / "pipe/out", folder / "new folder/"}) {
    const std::string message = message_of([&] { const AtomicFile file(path); });
    EXPECT_TRUE(contains(message, path.string() + ": cannot write")) << path << ": " << message;
  }
  EXPECT_THROW(AtomicFile(""), Error);
  EXPECT_EQ(names_in(folder.path()), before);
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST(AtomicFile, AMissingFolderIsAnErrorThatNamesThePath) {
  const ScratchFolder folder;
  const fs::path path = folder / "missing/out";
  const std::string message = message_of([&] { write_file_atomically(path, "x"); });
  EXPECT_TRUE(contains(message, path.string())) << message;
  EXPECT_TRUE(contains(message, "No such file or directory")) << message;
  EXPECT_TRUE(names_in(folder.path()).empty());
}

TEST(AtomicFile, FollowsASymbolicLink) {
  const ScratchFolder folder;
  fs::create_directory(folder / "elsewhere");
  put(folder / "elsewhere/real", "old");
  fs::create_symlink("elsewhere/real", folder / "link");
  write_file_atomically(folder / "link", "new");
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_FALSE(fs::is_symlink(folder / "elsewhere/real"));
  EXPECT_EQ(contents(folder / "elsewhere/real"), "new");
}

// In a container the process has the same id in every run: what a killed run left behind must not
// stop all later ones.
TEST(AtomicFile, LeftoversOfAKilledProcessWithTheSameIdAreRemoved) {
  const ScratchFolder folder;
  for (int i = 0; i < 300; ++i) put(folder / fmt::format(".out.weft-{}-{}", ::getpid(), i), "old");
  write_file_atomically(folder / "out", "new");
  EXPECT_EQ(contents(folder / "out"), "new");
  EXPECT_EQ(names_in(folder.path()), std::set<std::string>{"out"});
}

// A child that begins a file, says so, and waits to be killed.
class Writer {
 public:
  explicit Writer(const fs::path& target) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      AtomicFile file(target);
      file.write_at(0, bytes_of("half"));
      if (::write(ends[1], "x", 1) == 1) ::pause();
      ::_exit(1);
    }
    ::close(ends[1]);
    char begun = 0;
    EXPECT_EQ(::read(ends[0], &begun, 1), 1);
    ::close(ends[0]);
  }
  ~Writer() { kill(); }
  pid_t pid() const { return pid_; }
  void kill() {
    if (pid_ == 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(std::exchange(pid_, 0), nullptr, 0);
  }

 private:
  pid_t pid_ = 0;
};

TEST(AtomicFile, TemporaryFilesOfTheDeadAreRemovedAndThoseOfTheLivingAreNot) {
  const ScratchFolder folder;
  Writer living(folder / "out"), dead(folder / "out"), of_another(folder / "other");
  dead.kill();
  of_another.kill();
  ASSERT_EQ(names_in(folder.path()).size(), 3u);
  put(folder / ".out.weft-notes", "of the user");
  put(folder / ".out.weft-1-2.txt", "of the user");
  write_file_atomically(folder / "out", "new");
  std::set<std::string> names = names_in(folder.path());
  EXPECT_EQ(names.size(), 5u);
  const auto has = [&](const std::string& part) {
    return std::any_of(names.begin(), names.end(),
                       [&](const std::string& name) { return name.starts_with(part); });
  };
  EXPECT_TRUE(has(fmt::format(".out.weft-{}-", living.pid()))) << "still written";
  EXPECT_TRUE(has(".other.weft-")) << "another target's";
  EXPECT_TRUE(has(".out.weft-notes") && has(".out.weft-1-2.txt"));

  // The id of a process that died may be that of another one now: ours, for example.
  living.kill();
  put(folder / fmt::format(".out.weft-{}-0", ::getpid()), "half");
  write_file_atomically(folder / "out", "newer");
  names = names_in(folder.path());
  EXPECT_EQ(names.size(), 4u);
  remove_stale_temporaries(folder.path());
  EXPECT_EQ(names_in(folder.path()),
            (std::set<std::string>{"out", ".out.weft-notes", ".out.weft-1-2.txt"}));
}

// What one process removes as stale, another may just have begun.
TEST(AtomicFile, ManyWritersOfOneTargetDoNotTakeEachOthersFiles) {
  const ScratchFolder folder;
  std::vector<std::thread> writers;
  for (int t = 0; t < 4; ++t) {
    writers.emplace_back([&] {
      for (int i = 0; i < 100; ++i) write_file_atomically(folder / "out", "whole");
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(names_in(folder.path()), std::set<std::string>{"out"});
  EXPECT_EQ(contents(folder / "out"), "whole");
}

TEST(AtomicFile, TakesTheLongestNamesAndARelativePath) {
  const ScratchFolder folder;
  const std::string longest(255, 'n');
  write_file_atomically(folder / longest, "x");
  EXPECT_EQ(contents(folder / longest), "x");

  const fs::path before = fs::current_path();
  fs::current_path(folder / "");
  write_file_atomically("relative", "y");
  fs::current_path(before);
  EXPECT_EQ(contents(folder / "relative"), "y");
}

TEST(AtomicFile, ACommittedFileRefusesMore) {
  const ScratchFolder folder;
  AtomicFile file(folder / "out");
  file.commit();
  EXPECT_THROW(file.write_at(0, bytes_of("late")), Error);
  EXPECT_THROW(file.commit(), Error);
  EXPECT_EQ(contents(folder / "out"), "");
}

TEST(RemoveUnfinishedFiles, RemovesTheTemporaryFilesAndNothingElse) {
  const ScratchFolder folder;
  put(folder / "bystander", "stays");
  write_file_atomically(folder / "done", "stays");
  {
    AtomicFile first(folder / "first"), second(folder / "second");
    EXPECT_EQ(names_in(folder.path()).size(), 4u);
    remove_unfinished_files();
    EXPECT_EQ(names_in(folder.path()), (std::set<std::string>{"bystander", "done"}));
    EXPECT_THROW(first.commit(), Error);  // its bytes are gone: it must not claim success
  }
  write_file_atomically(folder / "next", "x");
  remove_unfinished_files();
  EXPECT_EQ(names_in(folder.path()), (std::set<std::string>{"bystander", "done", "next"}));
}

TEST(RemoveUnfinishedFiles, RemovesAFolderAfterTheFilesInIt) {
  const ScratchFolder folder;
  for (const char* name : {"made", "released", "full"}) fs::create_directory(folder / name);
  put(folder / "full/bystander", "stays");
  {
    const UnfinishedPath made(folder / "made"), full(folder / "full");
    UnfinishedPath released(folder / "released");
    released = {};
    const AtomicFile file(folder / "made/file"), other(folder / "full/file");
    errno = ENOTTY;
    remove_unfinished_files();
    EXPECT_EQ(errno, ENOTTY);  // the interrupted code may be about to look at it
    EXPECT_EQ(names_in(folder.path()), (std::set<std::string>{"full", "released"}));
    EXPECT_EQ(names_in(folder / "full"), std::set<std::string>{"bystander"});
  }
  fs::create_directory(folder / "made");
  remove_unfinished_files();
  EXPECT_TRUE(fs::exists(folder / "made"));
}

TEST(UnfinishedPath, IsTrackedByTheObjectItWasMovedTo) {
  const ScratchFolder folder;
  put(folder / "a", "");
  put(folder / "b", "");
  UnfinishedPath a(folder / "a");
  UnfinishedPath moved(std::move(a));
  a = UnfinishedPath(folder / "b");
  moved = std::move(a);  // "a" is released, "b" is tracked
  remove_unfinished_files();
  EXPECT_EQ(names_in(folder.path()), std::set<std::string>{"a"});
}

TEST(UnfinishedPath, WhatFindsNoRoomIsNotTrackedAndSlotsAreUsedAgain) {
  const ScratchFolder folder;
  put(folder / "late", "");
  for (int round = 0; round < 2; ++round) {
    std::vector<UnfinishedPath> many;
    for (int i = 0; i < 2000; ++i) many.emplace_back(folder / fmt::format("missing {}", i));
    const UnfinishedPath late(folder / "late"), nothing(""), long_one(std::string(5000, 'p'));
    remove_unfinished_files();
    EXPECT_TRUE(fs::exists(folder / "late"));
  }
  const UnfinishedPath late(folder / "late");
  remove_unfinished_files();
  EXPECT_FALSE(fs::exists(folder / "late"));
}

// Slots change hands while paths are removed: a file is committed whole, or its commit fails.
TEST(RemoveUnfinishedFiles, WhileThreadsWriteTakesNoCommittedFile) {
  const ScratchFolder folder;
  std::array<std::set<std::string>, 3> committed;
  std::atomic<int> writing{3};
  std::vector<std::thread> writers;
  for (size_t t = 0; t < committed.size(); ++t) {
    writers.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const std::string name = fmt::format("{} {}", t, i);
        try {
          write_file_atomically(folder / name, "whole");
          committed[t].insert(name);
        } catch (const Error&) {
        }
      }
      writing.fetch_sub(1);
    });
  }
  while (writing.load() > 0) remove_unfinished_files();
  for (std::thread& writer : writers) writer.join();
  std::set<std::string> expected;
  for (const std::set<std::string>& names : committed) expected.insert(names.begin(), names.end());
  EXPECT_EQ(names_in(folder.path()), expected);
  for (const std::string& name : expected) EXPECT_EQ(contents(folder / name), "whole");
}

}  // namespace
}  // namespace weft
