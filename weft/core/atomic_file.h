// AtomicFile: a file that appears whole or not at all.
//
// Written beside its target under a hidden temporary name, ".<name>.weft-<process>-<number>",
// synced, and renamed by commit(). If it is destroyed before that, the temporary file is removed
// and the target is as it was.
//
// A killed process leaves its temporary file. So every temporary file is locked (flock) while it is
// written: the system releases the lock with the process, even if its id is used again. The next
// writer of the same target removes temporary files without a lock; one that is locked, or whose
// lock cannot be tested, stays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace weft {

// A path that must not outlive the process should a signal end it: tracked by
// remove_unfinished_files() until this object is destroyed or assigned to. Tracking is best effort
// and never fails: a path of PATH_MAX bytes or more, or one that finds the table full, is merely
// not tracked. Relative paths mean the folder that is current when the signal comes.
class UnfinishedPath {
 public:
  UnfinishedPath() = default;  // tracks nothing
  explicit UnfinishedPath(const std::filesystem::path& path) noexcept;
  ~UnfinishedPath();
  UnfinishedPath(UnfinishedPath&& other) noexcept;
  UnfinishedPath& operator=(UnfinishedPath&& other) noexcept;

 private:
  int slot_ = -1;
};

// A folder that is made if it is not there. One that was made is removed again, if it is empty then,
// unless keep() is called; also when a signal ends the program.
class NewFolder {
 public:
  NewFolder() = default;  // none
  explicit NewFolder(const std::filesystem::path& path);
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(NewFolder&& other) noexcept;

  void keep();

 private:
  std::filesystem::path path_;  // empty: nothing to remove
  UnfinishedPath unfinished_;
};

class AtomicFile {
 public:
  // The folder must exist; an existing target must be a regular file (it is replaced by commit).
  explicit AtomicFile(const std::filesystem::path& target);
  ~AtomicFile();
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(AtomicFile&&) = delete;

  const std::filesystem::path& target() const { return target_; }

  void write_at(uint64_t offset, std::span<const std::byte> bytes);
  void sync();    // to the disk, so that commit() has nothing left that can fail but the rename
  void commit();  // sync, rename, sync the folder
  void commit_as(const std::filesystem::path& path);  // by another name, beside the target

 private:
  void discard() noexcept;

  std::filesystem::path target_;
  std::filesystem::path temporary_;
  int fd_ = -1;
  UnfinishedPath unfinished_;  // temporary_
};

void write_file_atomically(const std::filesystem::path& target, std::string_view text);

// Removes the temporary files of all targets in a folder that no process holds any more.
void remove_stale_temporaries(const std::filesystem::path& folder);

// Removes every UnfinishedPath: first the files, such as those of every AtomicFile that is not
// committed, then the folders that are empty without them. Async-signal-safe: a program calls it
// from its handlers of SIGINT and SIGTERM, then ends.
void remove_unfinished_files() noexcept;

}  // namespace weft
