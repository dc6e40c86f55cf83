// Checkpoints that are written over themselves, killed at every moment: all old or all new.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fcntl.h>

#include <map>
#include <string>
#include <vector>

#include "tests/model_files.h"
#include "tests/program.h"
#include "tests/scratch_folder.h"
#include "tests/support.h"
#include "weft/checkpoint/checkpoint.h"
#include "weft/core/same_file.h"

namespace {

// Counts the calls that change a folder or wait for the disk; before and after the one at `fatal`
// the process is killed.
int calls = 0;
int fatal = -1;

template <typename... Arguments>
int counted(long number, Arguments... arguments) {
  if (calls++ == fatal) ::raise(SIGKILL);
  const int result = static_cast<int>(::syscall(number, arguments...));
  if (calls++ == fatal) ::raise(SIGKILL);
  return result;
}

}  // namespace

// In place of those of libc, for this program.
extern "C" {
int rename(const char* from, const char* to) noexcept {
  return counted(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}
int link(const char* from, const char* to) noexcept {
  return counted(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0);
}
int unlink(const char* path) noexcept { return counted(SYS_unlinkat, AT_FDCWD, path, 0); }
int fsync(int fd) { return counted(SYS_fsync, fd); }
}

namespace weft::test {
namespace {

namespace fs = std::filesystem;

using Tensors = std::map<std::string, std::string>;

Tensors read_all(const fs::path& path) {
  const Checkpoint checkpoint = Checkpoint::open(path);
  Tensors all;
  for (const ShardedTensor& tensor : checkpoint.tensors()) {
    std::string bytes(tensor.info.bytes(), '\0');
    checkpoint.read(tensor, 0, std::as_writable_bytes(std::span(bytes)));
    all[tensor.info.name] = bytes;
  }
  return all;
}

constexpr const char* kIndex = "model.safetensors.index.json";

std::string shard_name(int shard) { return fmt::format("model-{}-of-3.safetensors", shard + 1); }

void write_shards(const fs::path& folder, uint64_t seed = 0) {
  fs::create_directory(folder);
  Json weight_map = Json::object();
  for (int shard = 0; shard < 3; ++shard) {
    const std::string name = fmt::format("layer{}.weight", shard);
    write_file(folder / shard_name(shard),
               {{name, Dtype::kF32, {8, 8}, gaussian(64, seed + static_cast<uint64_t>(shard))}});
    weight_map[name] = shard_name(shard);
  }
  put(folder / kIndex, Json{{"metadata", Json::object()}, {"weight_map", weight_map}}.dump());
  fs::permissions(folder / shard_name(1), fs::perms::owner_read | fs::perms::owner_write);
}

// Every byte becomes its complement.
void invert(const fs::path& path, const fs::path& out) {
  const Checkpoint from = Checkpoint::open(path);
  CheckpointWriter writer(out, from, {});
  for (const ShardedTensor& tensor : from.tensors()) {
    std::vector<std::byte> bytes(tensor.info.bytes());
    from.read(tensor, 0, bytes);
    for (std::byte& byte : bytes) byte = ~byte;
    writer.write(tensor, 0, bytes);
  }
  writer.commit();
}

std::map<std::string, std::string> files_in(const fs::path& path) {
  std::map<std::string, std::string> found;
  if (!fs::is_directory(path)) return {{path.string(), contents(path)}};
  for (const std::string& name : names_in(path)) found[name] = contents(path / name);
  return found;
}

void invert_in_place(const fs::path& path) { invert(path, path); }

Tensors inverted(Tensors tensors) {
  for (auto& [name, bytes] : tensors) {
    for (char& byte : bytes) byte = static_cast<char>(~byte);
  }
  return tensors;
}

// Whether a child that is killed at that call lived to the end.
bool survives(const fs::path& path, int call, const fs::path& out = {}) {
  const pid_t child = ::fork();
  if (child == 0) {
    calls = 0;
    fatal = call;
    invert(path, out.empty() ? path : out);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) || WTERMSIG(status) == SIGKILL) << status;
  return WIFEXITED(status);
}

std::set<std::string> visible(const std::set<std::string>& names) {
  std::set<std::string> found;
  for (const std::string& name : names) {
    if (name[0] != '.') found.insert(name);
  }
  return found;
}

// At each moment: whole, and the next command finishes the work and leaves nothing of the killed
// one but its temporary files, which belong to atomic_file.h.
void kill_everywhere(const std::function<void(const fs::path&)>& make, const char* target) {
  bool done = false;
  int old = 0, fresh = 0;
  for (int call = 0; !done; ++call) {
    SCOPED_TRACE(fmt::format("killed at call {}", call));
    ASSERT_LT(call, 1000);
    const ScratchFolder scratch;
    make(scratch.path());
    const fs::path path = scratch / target;
    const fs::path folder = fs::is_directory(path) ? path : path.parent_path();
    const Tensors before = read_all(path), after = inverted(before);
    const std::set<std::string> names = names_in(folder);
    done = survives(path, call);
    const Tensors found = read_all(path);
    EXPECT_TRUE(found == before || found == after) << "a mixture";
    EXPECT_EQ(visible(names_in(folder)), names);
    found == before ? ++old : ++fresh;
    EXPECT_TRUE(!done || found == after);
    invert_in_place(path);
    EXPECT_EQ(read_all(path), inverted(found));
    for (const std::string& name : names_in(folder)) {
      EXPECT_TRUE(names.contains(name) || contains(name, ".weft-")) << name;
    }
    EXPECT_TRUE(!done || names_in(folder) == names);
  }
  EXPECT_GT(old, 1);
  EXPECT_GT(fresh, 1);
}

TEST(InPlace, ShardsKilledAtEveryCallAreAllOldOrAllNew) {
  kill_everywhere([](const fs::path& folder) { write_shards(folder / "in"); }, "in");
}

TEST(InPlace, AFileKilledAtEveryCallIsOldOrNew) {
  kill_everywhere(
      [](const fs::path& folder) {
        write_file(folder / "m.safetensors", {{"w", Dtype::kF32, {8, 8}, gaussian(64)}});
      },
      "m.safetensors");
}

TEST(InPlace, ASecondKillAfterTheFirstIsSurvivedAsWell) {
  for (int first = 0; first < 60; first += 7) {
    for (int second = 1; second < 60; second += 11) {
      SCOPED_TRACE(fmt::format("killed at calls {} and {}", first, second));
      const ScratchFolder scratch;
      write_shards(scratch / "in");
      const Tensors before = read_all(scratch / "in");
      survives(scratch / "in", first);
      survives(scratch / "in", second);
      const Tensors found = read_all(scratch / "in");
      EXPECT_TRUE(found == before || found == inverted(before)) << "a mixture";
    }
  }
}

// Two indices may lead to files of one folder; what is provisional for one may be all that the other
// has.
TEST(InPlace, WhatAnotherIndexLeadsToIsNotALeftOver) {
  const ScratchFolder scratch;
  write_shards(scratch / "in");
  const fs::path folder = scratch / "in";
  const std::string other = ".in-place-1." + shard_name(0), mine = ".in-place-2." + shard_name(0);
  fs::copy(folder / shard_name(0), folder / other);
  fs::copy(folder / shard_name(0), folder / mine);
  put(folder / "other.safetensors.index.json",
      Json{{"metadata", Json::object()}, {"weight_map", {{"layer0.weight", other}}}}.dump());
  invert_in_place(folder / kIndex);
  EXPECT_TRUE(fs::exists(folder / other));
  EXPECT_FALSE(fs::exists(folder / mine));
}

TEST(InPlace, AFolderThatIsLockedIsAnErrorAndNotAWaitForEver) {
  const ScratchFolder scratch;
  write_shards(scratch / "in");
  const auto before = files_in(scratch / "in");
  const int fd = ::open((scratch / "in").c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(::flock(fd, LOCK_EX), 0);
  EXPECT_THROW(invert_in_place(scratch / "in"), Error);
  EXPECT_EQ(files_in(scratch / "in"), before);
  ::close(fd);
}

// Shards of the same names without an index are files that a user has. Killed at each moment they are
// all old, or an index leads to all of the new ones.
TEST(InPlace, ShardsThatNoIndexLeadsToAreReplacedAsOneToo) {
  bool done = false;
  int old = 0;
  for (int call = 0; !done; ++call) {
    SCOPED_TRACE(fmt::format("killed at call {}", call));
    ASSERT_LT(call, 1000);
    const ScratchFolder scratch;
    write_shards(scratch / "in");
    write_shards(scratch / "out", 7);
    fs::remove(scratch / "out" / kIndex);
    const auto before = files_in(scratch / "out");
    done = survives(scratch / "in", call, scratch / "out");
    if (fs::exists(scratch / "out" / kIndex)) {
      EXPECT_EQ(read_all(scratch / "out"), inverted(read_all(scratch / "in")));
    } else {
      for (const auto& [name, bytes] : before) EXPECT_EQ(contents(scratch / "out" / name), bytes);
      ++old;
    }
  }
  EXPECT_GT(old, 3);  // not only before the first shard
}

TEST(InPlace, KeepsWhoMayReadEachShard) {
  const ScratchFolder scratch;
  write_shards(scratch / "in");
  invert_in_place(scratch / "in");
  EXPECT_EQ(fs::status(scratch / "in" / shard_name(1)).permissions(),
            fs::perms::owner_read | fs::perms::owner_write);
}

// ---- What is one file

TEST(SameFile, EverySpellingOfAPath) {
  const ScratchFolder scratch;
  put(scratch / "a", "x");
  fs::create_directory(scratch / "folder");
  fs::create_symlink("a", scratch / "soft");
  fs::create_hard_link(scratch / "a", scratch / "hard");
  fs::create_directory_symlink("folder", scratch / "linked");
  const auto same = [&](const std::string& a, const std::string& b) {
    return FileIdentity::of(scratch.path().string() + "/" + a) ==
           FileIdentity::of(scratch.path().string() + "/" + b);
  };
  for (const char* other : {"a", "./a", "folder/../a", "soft", "hard", "linked/../a", ".//a"}) {
    EXPECT_TRUE(same("a", other)) << other;
  }
  // Of what is not there yet.
  EXPECT_TRUE(same("folder/new", "linked/new"));
  EXPECT_TRUE(same("folder/new", "./folder/./new"));
  EXPECT_TRUE(same("no/new", "no/./x/../new"));
  EXPECT_FALSE(same("folder/new", "folder/newer"));
  EXPECT_FALSE(same("folder/new", "new"));
  EXPECT_FALSE(same("a", "folder"));
}

// ---- The commands

struct Change {
  std::string command;
  std::vector<std::string> flags;
};

void PrintTo(const Change& change, std::ostream* out) { *out << change.command; }

// A model and what each command needs beside it.
class OutIsIn : public ::testing::TestWithParam<Change> {
 protected:
  // IN as the command wants it, single or in shards.
  std::string make_in(bool sharded) {
    const std::string in = scratch_ / (sharded ? "in" : "in.safetensors");
    if (sharded) {
      write_shards(in);
    } else {
      write_file(in, {{"layer0.weight", Dtype::kF32, {8, 8}, gaussian(64)}});
    }
    write_file(scratch_ / "delta.safetensors",
               {{"layer0.weight", Dtype::kF32, {8, 8}, gaussian(64, 9)}});
    if (GetParam().command == "unpack") {
      const std::string dense = in + "-dense";
      fs::rename(in, dense);
      EXPECT_EQ(run({"pack", dense, in, "--pattern", "2:4", "--by-magnitude", "--any-size"}).code,
                0);
      fs::remove_all(dense);
    }
    return in;
  }
  std::vector<std::string> arguments(const std::string& in, const std::string& out) {
    std::vector<std::string> all = {GetParam().command, in};
    if (GetParam().command == "merge") all.push_back(scratch_ / "delta.safetensors");
    all.push_back(out);
    all.insert(all.end(), GetParam().flags.begin(), GetParam().flags.end());
    return all;
  }
  ScratchFolder scratch_;
};

TEST_P(OutIsIn, IsRefusedHoweverItIsSpelled) {
  for (const bool sharded : {false, true}) {
    const std::string in = make_in(sharded);
    const auto before = files_in(in);
    const fs::path link = scratch_ / (sharded ? "link" : "link.safetensors");
    fs::create_symlink(in, link);
    std::vector<std::string> spellings = {
        in, link, scratch_.path().string() + "/./" + fs::path(in).filename().string()};
    if (sharded) {
      spellings.push_back(fs::path(in) / kIndex);
      spellings.push_back(fs::path(in) / "other.index.json");  // with the same shards
    } else {
      spellings.push_back(scratch_ / "hard.safetensors");
      fs::create_hard_link(in, spellings.back());
    }
    for (const std::string& out : spellings) {
      SCOPED_TRACE(out);
      expect_one_line(run(arguments(in, out)), 2, {"is also a file of", "--in-place"});
      EXPECT_EQ(files_in(in), before);
    }
    fs::remove(link);
  }
}

TEST_P(OutIsIn, IsReplacedInPlaceByWhatAnotherFileWouldGet) {
  for (const bool sharded : {false, true}) {
    const std::string in = make_in(sharded);
    const std::string other = scratch_ / (sharded ? "other" : "other.safetensors");
    ASSERT_EQ(run(arguments(in, other)).code, 0);
    std::vector<std::string> flags = arguments(in, other);
    flags.push_back("--in-place");
    expect_one_line(run(flags), 2, {"--in-place: OUT", "is not"});
    flags = arguments(in, in);
    flags.push_back("--in-place");
    const Outcome outcome = run(flags);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(read_all(in), read_all(other));
    EXPECT_TRUE(!sharded || files_in(in) == files_in(other));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Commands, OutIsIn,
    ::testing::Values(Change{"mask", {"--pattern", "2:4"}}, Change{"convert", {"--pattern", "2:4"}},
                      Change{"pack", {"--pattern", "2:4", "--by-magnitude", "--any-size"}},
                      Change{"unpack", {}}, Change{"merge", {"--pattern", "2:4"}}),
    [](const auto& row) { return row.param.command; });

TEST(InPlace, TheFolderOfASingleFileNamesIt) {
  const ScratchFolder scratch;
  fs::create_directory(scratch / "model");
  write_file(scratch / "model" / "m.safetensors",
             {{"w1.weight", Dtype::kF32, {8, 8}, gaussian(64)}});
  const std::string folder = scratch / "model";
  const Outcome outcome = run({"mask", folder, folder + "/", "--pattern", "2:4", "--in-place"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(names_in(folder), std::set<std::string>{"m.safetensors"});
  EXPECT_EQ(run({"check", folder}).code, 0);
}

TEST(InPlace, MergeNeverReplacesItsDelta) {
  const ScratchFolder scratch;
  const std::string base = scratch / "base.safetensors", delta = scratch / "delta.safetensors";
  for (const std::string& file : {base, delta}) {
    write_file(file, {{"w.weight", Dtype::kF32, {8, 8}, gaussian(64)}});
  }
  const std::string before = contents(delta);
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{}, {"--dry-run"}, {"--in-place"}}) {
    std::vector<std::string> all = {"merge", base, delta, delta, "--pattern", "2:4"};
    all.insert(all.end(), more.begin(), more.end());
    expect_one_line(
        run(all), 2,
        {more == std::vector<std::string>{"--in-place"} ? "is not BASE" : "file of DELTA"});
    EXPECT_EQ(contents(delta), before);
  }
}

TEST(InPlace, MasksBesideOutBySpellingsAreRefused) {
  const ScratchFolder scratch;
  write_shards(scratch / "in");
  fs::create_directory_symlink(scratch.path(), scratch / "here");
  for (const char* masks :
       {"./out/model-1-of-3.safetensors", "here/out/model-1-of-3.safetensors",
        "in/../out/model.safetensors.index.json", "here/in/model-2-of-3.safetensors"}) {
    expect_one_line(run({"mask", scratch / "in", scratch / "out", "--pattern", "2:4", "--masks",
                         scratch.path().string() + "/" + masks}),
                    2, {"--masks", "is also a file of"});
    EXPECT_FALSE(fs::exists(scratch / "out")) << masks;
  }
}

TEST(InPlace, ASymbolicLinkInAFolderOfShardsIsNotFollowed) {
  const ScratchFolder scratch;
  write_shards(scratch / "in");
  for (const std::string& name : {shard_name(1), std::string(kIndex)}) {
    fs::create_directory(scratch / "out");
    put(scratch / "elsewhere", "precious");
    fs::create_symlink(scratch / "elsewhere", scratch / "out" / name);
    expect_one_line(run({"mask", scratch / "in", scratch / "out", "--pattern", "2:4"}), 1,
                    {(scratch / "out" / name).string(), "symbolic link"});
    EXPECT_EQ(contents(scratch / "elsewhere"), "precious");
    EXPECT_EQ(names_in(scratch / "out"), std::set<std::string>{name});
    fs::remove_all(scratch / "out");
  }
}

// As a user does it: kill -9, then look.
TEST(InPlace, ACommandKilledAtRandomMomentsLeavesAWholeCheckpoint) {
  const ScratchFolder scratch;
  ASSERT_EQ(run({"synth", scratch / "whole", "--size", "8MB", "--shards", "4"}).code, 0);
  ASSERT_EQ(run({"mask", scratch / "whole", scratch / "masked", "--pattern", "2:4"}).code, 0);
  const Tensors before = read_all(scratch / "whole"), after = read_all(scratch / "masked");
  const Rng rng(test_seed(), 3);
  int old = 0;
  for (int i = 0; i < 20; ++i) {
    fs::remove_all(scratch / "in");
    fs::copy(scratch / "whole", scratch / "in");
    Program program({"mask", scratch / "in", scratch / "in", "--pattern", "2:4", "--in-place"});
    ::usleep(static_cast<useconds_t>(rng.uniform(static_cast<uint64_t>(i)) * 150e3));
    ::kill(program.pid(), SIGKILL);
    program.wait();
    const Tensors found = read_all(scratch / "in");
    EXPECT_TRUE(found == before || found == after) << i;
    old += found == before;
  }
  EXPECT_GT(old, 0);
}

}  // namespace
}  // namespace weft::test
