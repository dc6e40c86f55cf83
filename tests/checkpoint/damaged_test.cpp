// Valid files that were damaged, files that lie, and things that are not files: refused as in
// malformed_test.cpp.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <exception>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/checkpoint/malformed.h"
#include "tests/scratch_folder.h"
#include "tests/support.h"
#include "weft/checkpoint/safetensors.h"
#include "weft/core/error.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;

// ---- Things that are not files

TEST(NotAFile, IsRefused) {
  const ScratchFolder folder;
  ::alarm(20);  // a pipe without a writer must not hang the test either
  fs::create_directory(folder / "folder.safetensors");
  fs::create_directory(folder / "folder.index.json");
  for (const char* name : {"pipe.safetensors", "pipe.index.json"}) {
    ASSERT_EQ(::mkfifo((folder / name).c_str(), 0600), 0);
  }
  fs::create_symlink("nowhere", folder / "link.safetensors");
  fs::create_symlink("circle.safetensors", folder / "circle.safetensors");
  for (const char* name : {"pipe.safetensors", "pipe.index.json"}) {
    expect_refused(folder / name, {(folder / name).string(), "not a regular file"});
  }
  for (const char* name : {"missing.safetensors", "missing.index.json", "no folder/m.safetensors",
                           "link.safetensors"}) {
    expect_refused(folder / name, {(folder / name).string(), "No such file or directory"});
  }
  for (const char* name : {"folder.safetensors", "folder.index.json"}) {
    expect_refused(folder / name, {(folder / name).string(), "no .safetensors file"});
  }
  expect_refused(folder / "circle.safetensors", {(folder / "circle.safetensors").string()});
  expect_refused("/dev/null", {"/dev/null", "not a regular file"});
  expect_refused("/dev/zero", {"/dev/zero", "not a regular file"});
  expect_refused("", {"No such file or directory"});
  EXPECT_THROW(SafetensorsReader(folder / "folder.safetensors"), Error);
  ::alarm(0);
}

// Root may read everything, so the test steps down for a moment.
TEST(NotAFile, WhatMayNotBeReadIsRefused) {
  const ScratchFolder folder;
  fs::create_directory(folder / "closed");
  put(folder / "closed.safetensors", safetensors("{}", 0));
  put(folder / "closed.index.json", "{\"weight_map\":{}}");
  for (const char* name : {"closed", "closed.safetensors", "closed.index.json"}) {
    fs::permissions(folder / name, fs::perms::none);
  }
  fs::permissions(folder.path(), fs::perms::all);
  const uid_t user = ::geteuid();
  ASSERT_EQ(user == 0 ? ::seteuid(65534) : 0, 0);
  for (const char* name : {"closed", "closed.safetensors", "closed.index.json"}) {
    expect_refused(folder / name, {(folder / name).string(), "Permission denied"});
  }
  ASSERT_EQ(::seteuid(user), 0);
}

// ---- Damage to a valid file

// Two tensors, an empty one, metadata and a plan: every kind of thing a file can hold.
std::string small_valid_file() {
  return safetensors(R"({"__metadata__":{"weft.sparsity":"{\"version\":1,\"tensors\":{\"w\":)"
                     R"({\"pattern\":\"2:4\",\"axis\":\"in\"}}}"},)" +
                         entry("w", 0, 6) + "," + entry("\\u00e9", 6, 6) + "," + entry("b", 6, 9) +
                         "}",
                     9);
}

TEST(Damage, EveryPrefixOfAValidFileIsRefused) {
  const ScratchFolder folder;
  const std::string whole = small_valid_file();
  put(folder / "m.safetensors", whole);
  ASSERT_NO_THROW(read_all(folder / "m.safetensors"));
  for (size_t length = whole.size(); length-- > 0;) {
    SCOPED_TRACE(fmt::format("the first {} of {} bytes", length, whole.size()));
    fs::resize_file(folder / "m.safetensors", length);
    expect_refused(folder / "m.safetensors", {(folder / "m.safetensors").string()});
  }
}

TEST(Damage, EveryChangedByteIsReadOrRefused) {
  const ScratchFolder folder;
  const fs::path path = folder / "m.safetensors";
  const std::string whole = small_valid_file();
  put(path, whole);
  // Changed in place: thousands of new files would wait for the disk.
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  const auto change = [&](size_t place, char value) {
    file.seekp(static_cast<std::streamoff>(place)).put(value).flush();
    ASSERT_TRUE(file);
  };
  int refused = 0, tried = 0;
  for (size_t place = 0; place < whole.size(); ++place) {
    const char old = whole[place];
    for (const char value :
         {static_cast<char>(old ^ 1), static_cast<char>(old ^ 0x80), static_cast<char>(old + 1),
          '\0', '\xff', '"', '{', '}', '[', ',', ' ', '0', '9', '-', '\\', '\n'}) {
      change(place, value);
      ++tried;
      try {
        read_all(path);
      } catch (const Error& error) {
        ++refused;
        expect_one_line(error.what());
        EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos) << error.what();
      } catch (const std::exception& error) {
        ADD_FAILURE() << fmt::format("byte {} as {:#04x}: ", place, static_cast<uint8_t>(value))
                      << error.what();
      }
    }
    change(place, old);
  }
  EXPECT_EQ(contents(path), whole);
  // Most of the file is structure; only names and data can change and stay legal.
  EXPECT_GT(refused, tried / 2);
  EXPECT_LT(refused, tried);
}

// A file of a few bytes may announce a header of 100 MB: none of it may be allocated. A child
// process with hardly more address space than it has already is the judge.
TEST(Damage, ALyingHeaderCostsNoMemory) {
  if (test::sanitized())
    GTEST_SKIP() << "AddressSanitizer needs the address space that this test takes away";
  const ScratchFolder folder;
  put(folder / "length.safetensors", length_prefix(99'999'999) + "{}");
  put(folder / "data.safetensors",
      with_fields(R"("dtype":"U8","shape":[1000000000000],"data_offsets":[0,1000000000000])", 4));
  put(folder / "vast.safetensors",
      with_fields(R"("dtype":"U8","shape":[0,9223372036854775807],"data_offsets":[0,0])", 0));
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    long pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t room = static_cast<rlim_t>(pages * ::sysconf(_SC_PAGESIZE)) + (rlim_t{32} << 20);
    const struct rlimit limit = {room, room};
    if (pages == 0 || ::setrlimit(RLIMIT_AS, &limit) != 0) ::_exit(3);
    int errors = 0;
    for (const char* name : {"length.safetensors", "data.safetensors", "vast.safetensors"}) {
      try {
        read_all(folder / name);
      } catch (const Error&) {
        ++errors;
      } catch (...) {
        ::_exit(4);  // std::bad_alloc
      }
    }
    ::_exit(errors == 2 ? 0 : 5);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace weft::test
