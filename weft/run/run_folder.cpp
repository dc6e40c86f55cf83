#include "weft/run/run_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <utility>

#include "weft/core/atomic_file.h"
#include "weft/core/error.h"
#include "weft/core/median.h"
#include "weft/core/regular_file.h"
#include "weft/core/text.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostLineBytes = size_t{1} << 20;  // of metrics.jsonl; weft's have hundreds

std::string shown(const fs::path& path) { return printable(path.string(), 4096); }

void make_folder(const fs::path& path) {
  std::error_code failure;
  fs::create_directories(path, failure);
  WEFT_CHECK(!failure, "{}: cannot make the folder: {}", shown(path), failure.message());
}

// A file of the run that is a symbolic link would be written through, to wherever it leads.
void refuse_links(const fs::path& folder) {
  std::error_code failure;
  for (fs::directory_iterator entry(folder, failure), end; !failure && entry != end;
       entry.increment(failure)) {
    const std::string name = entry->path().filename().string();
    const bool ours = name == "run.json" || name == "metrics.jsonl" || name == "best.safetensors" ||
                      name == "model.safetensors" || name == "packed.safetensors" ||
                      name.starts_with("step-");
    WEFT_CHECK(!ours || !entry->is_symlink(failure),
               "{}: is a symbolic link, which weft does not write through: remove it, or choose "
               "another folder",
               shown(entry->path()));
  }
}

}  // namespace

void RunFolder::require_free(const fs::path& path) {
  WEFT_CHECK(!path.empty(), "a run needs a folder");
  const RunFolder folder(path);
  std::error_code failure;
  WEFT_CHECK(!fs::exists(folder.record(), failure),
             "{}: has a run already: continue it with --resume, or choose another folder",
             shown(path));
  WEFT_CHECK(!fs::exists(path / "checkpoints", failure) || folder.checkpoints().empty() ||
                 folder.checkpoints().front() == 0,
             "{}: has checkpoints without a run.json: choose another folder", shown(path));
}

RunFolder RunFolder::create(const fs::path& path) {
  require_free(path);
  RunFolder folder(path);
  std::error_code failure;
  folder.made_ = !fs::exists(path, failure);
  make_folder(path / "checkpoints");
  folder.lock();
  require_free(path);  // no other process came in between
  fs::remove(folder.checkpoint(0), failure);
  WEFT_CHECK(!failure, "{}: cannot be removed: {}", shown(folder.checkpoint(0)), failure.message());
  return folder;
}

void RunFolder::discard() const {
  std::error_code failure;  // what stays does no harm
  for (const fs::path& file : {record(), metrics(), checkpoint(0)}) fs::remove(file, failure);
  fs::remove(path_ / "checkpoints", failure);  // if it is empty,
  if (made_) fs::remove(path_, failure);       // and so here
}

RunFolder RunFolder::open(const fs::path& path) {
  RunFolder folder(path);
  std::error_code failure;
  WEFT_CHECK(fs::exists(folder.record(), failure),
             "{}: not the folder of a run: run.json is missing", shown(path));
  make_folder(path / "checkpoints");
  folder.lock();
  return folder;
}

RunFolder::RunFolder(RunFolder&& other) noexcept
    : path_(std::move(other.path_)), lock_(std::exchange(other.lock_, -1)), made_(other.made_) {}

RunFolder::~RunFolder() {
  if (lock_ >= 0) ::close(lock_);
}

void RunFolder::lock() {
  lock_ = ::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  WEFT_CHECK(lock_ >= 0, "{}: cannot be opened: {}", shown(path_), std::strerror(errno));
  WEFT_CHECK(::flock(lock_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK,
             "{}: another process uses this run", shown(path_));
  for (const fs::path& folder : {path_, path_ / "checkpoints"}) {
    refuse_links(folder);
    remove_stale_temporaries(folder);
  }
}

fs::path RunFolder::checkpoint(int64_t step) const {
  return path_ / "checkpoints" / fmt::format("step-{:09}.safetensors", step);
}

std::vector<int64_t> RunFolder::checkpoints() const {
  std::vector<int64_t> steps;
  std::error_code failure;
  for (fs::directory_iterator entry(path_ / "checkpoints", failure), end; !failure && entry != end;
       entry.increment(failure)) {
    const std::string name = entry->path().filename().string();
    constexpr std::string_view kBefore = "step-", kAfter = ".safetensors";
    if (!name.starts_with(kBefore) || !name.ends_with(kAfter)) continue;
    int64_t step = 0;
    const char* last = name.data() + name.size() - kAfter.size();
    const auto parsed = std::from_chars(name.data() + kBefore.size(), last, step);
    if (parsed.ec == std::errc() && parsed.ptr == last) steps.push_back(step);
  }
  WEFT_CHECK(!failure, "{}: cannot be read: {}", shown(path_ / "checkpoints"), failure.message());
  std::ranges::sort(steps, std::greater());
  return steps;
}

void RunFolder::remove_old_checkpoints(size_t kept) const {
  const std::vector<int64_t> steps = checkpoints();
  for (size_t i = kept; i < steps.size(); ++i) {
    std::error_code failure;  // an old file that stays does no harm
    fs::remove(checkpoint(steps[i]), failure);
  }
}

void RunFolder::put_aside(int64_t step) const {
  fs::path aside = checkpoint(step);
  aside += ".refused";
  std::error_code failure;  // it may be gone already
  fs::rename(checkpoint(step), aside, failure);
}

Json read_run_record(const fs::path& folder) {
  const fs::path path = folder / "run.json";
  std::error_code failure;
  WEFT_CHECK(fs::exists(path, failure), "{}: not the folder of a run: run.json is missing",
             shown(folder));
  const std::string name = shown(path);
  Json record = Json::parse(read_small_file(path), name);
  WEFT_CHECK(record.is_object() && record.contains("format") && record["format"] == "weft.run",
             "{}: not the record of a run of weft", name);
  WEFT_CHECK(record.contains("version") && record["version"] == 1, "{}: version {}: accepted is 1",
             name, record.contains("version") ? printable(record["version"].dump()) : "unknown");
  for (const char* member : {"options", "environment", "plan", "status"}) {
    WEFT_CHECK(record.contains(member), "{}: '{}' is missing", name, member);
  }
  return record;
}

bool is_finished_run(const fs::path& folder) {
  std::error_code failure;
  return fs::exists(folder / "run.json", failure) && read_run_record(folder)["status"] == "done";
}

std::vector<StepSeconds> read_step_seconds(const fs::path& path, int64_t steps, int64_t every) {
  const int64_t expected = steps / every;
  const std::string name = shown(path);
  std::error_code failure;
  std::ifstream stream;
  if (fs::is_regular_file(path, failure)) stream.open(path, std::ios::binary);
  WEFT_CHECK(stream.is_open(), "{}: cannot be read", name);
  std::vector<StepSeconds> seconds;
  std::vector<char> text(kMostLineBytes + 1);
  for (int64_t line = 1; !stream.eof(); ++line) {  // of a long run, gigabytes
    const std::string where = fmt::format("{}:{}", name, line);
    stream.getline(text.data(), static_cast<std::streamsize>(text.size()));
    const auto bytes = static_cast<size_t>(stream.gcount());  // with the end of the line, if any
    if (bytes == 0) break;
    WEFT_CHECK(stream.good() || stream.eof(), "{}: a line of more than {} bytes", where,
               kMostLineBytes);
    const Json entry = Json::parse({text.data(), bytes - (stream.eof() ? 0 : 1)}, where);
    if (!entry.is_object() || entry.contains("eval_loss")) continue;
    const int64_t next = (static_cast<int64_t>(seconds.size()) + 1) * every;
    WEFT_CHECK(entry.contains("step") && entry["step"] == next, "{}: not the line of step {}",
               where, next);
    WEFT_CHECK(entry.contains("step_ms") && entry["step_ms"].is_number() &&
                   entry["step_ms"].get<double>() > 0.0,
               "{}: 'step_ms' is not a time", where);
    WEFT_CHECK(next <= steps, "{}: has more steps than the {} of the run", where, steps);
    const bool measuring = entry.contains("measuring") && entry["measuring"] == true;
    seconds.push_back({1e-3 * entry["step_ms"].get<double>(), measuring});
  }
  WEFT_CHECK(static_cast<int64_t>(seconds.size()) == expected,
             "{}: has {} steps, but the run has {}", name, seconds.size(), expected);
  return seconds;
}

std::optional<double> typical_seconds(std::span<const StepSeconds> steps) {
  std::vector<double> counted;
  for (const StepSeconds& step : steps) {
    if (!step.measuring) counted.push_back(step.seconds);
  }
  return counted.empty() ? std::nullopt : std::optional(median(counted));
}

bool ends_with_evaluation(const fs::path& path, int64_t step) {
  constexpr std::streamoff kLongest =
      4096;  // of a line of an evaluation; those of steps are longer
  std::ifstream stream(path, std::ios::binary | std::ios::ate);
  if (!stream.is_open()) return false;
  const std::streamoff end = stream.tellg(), begin = std::max<std::streamoff>(0, end - kLongest);
  std::string text(static_cast<size_t>(end - begin), '\0');
  stream.seekg(begin);
  stream.read(text.data(), end - begin);
  if (!stream.good() || !text.ends_with('\n')) return false;
  text.pop_back();
  const size_t before = text.rfind('\n');
  const Json line =
      Json::parse_or_null(before == std::string::npos ? text : text.substr(before + 1));
  return line.is_object() && line.contains("eval_loss") && line.contains("step") &&
         line["step"] == step;
}

MetricsFile::MetricsFile(const fs::path& path, uint64_t bytes) : name_(shown(path)) {
  fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  WEFT_CHECK(fd_ >= 0, "{}: cannot be written: {}", name_, std::strerror(errno));
  const off_t end = ::lseek(fd_, 0, SEEK_END);
  bytes_ = std::min(bytes, static_cast<uint64_t>(std::max<off_t>(end, 0)));
  WEFT_CHECK(::ftruncate(fd_, static_cast<off_t>(bytes_)) == 0, "{}: cannot be written: {}", name_,
             std::strerror(errno));
}

MetricsFile::~MetricsFile() {
  if (fd_ >= 0) ::close(fd_);
}

void MetricsFile::add(const Json& line) {
  const std::string text = line.dump() + "\n";
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t count = ::pwrite(fd_, text.data() + written, text.size() - written,
                                   static_cast<off_t>(bytes_ + written));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      const std::string reason = std::strerror(count < 0 ? errno : ENOSPC);
      if (::ftruncate(fd_, static_cast<off_t>(bytes_)) != 0) {
        // Half a line stays; a resumed run cuts it off.
      }
      throw Error(fmt::format("{}: cannot be written: {}", name_, reason));
    }
    written += static_cast<size_t>(count);
  }
  bytes_ += text.size();
}

void MetricsFile::sync() {
  WEFT_CHECK(::fsync(fd_) == 0, "{}: cannot be written: {}", name_, std::strerror(errno));
}

}  // namespace weft
