#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "weft/core/error.h"
#include "weft/core/hold_signals.h"
#include "weft/core/number.h"
#include "weft/core/text.h"

namespace weft::cli {
namespace {

double seconds_between_lines() {
  constexpr double kUsual = 10.0;
  const char* text = std::getenv("WEFT_PROGRESS");
  if (text == nullptr || *text == '\0') return kUsual;
  try {
    return parse_number(text, 0.0, 1e6);
  } catch (const Error&) {
    throw Error(fmt::format("WEFT_PROGRESS='{}': accepted is a number of seconds, 0 for no lines",
                            printable(text)));
  }
}

double seconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

double seconds_left(double fraction, double elapsed) {
  return fraction > 0 ? elapsed * (1 - fraction) / fraction : 0;
}

}  // namespace

Progress::Progress(std::string label, uint64_t total)
    : label_(std::move(label)), total_(total), terminal_(::isatty(STDERR_FILENO) == 1) {
  const std::chrono::duration<double> interval(seconds_between_lines());
  if (terminal_ || interval.count() == 0) return;
  const HoldSignals hold;  // they come to the thread that works
  printer_ = std::thread([this, interval] { print_lines(interval); });
}

Progress::~Progress() { finish(); }

void Progress::reach(double fraction) {
  const auto reached = static_cast<uint64_t>(fraction * static_cast<double>(total_));
  if (reached > done_) add(reached - done_);
}

void Progress::reach(uint64_t done, uint64_t total) {
  total_ = total;
  if (done > done_) add(done - done_);
}

void Progress::wipe() {
  if (drawn_) std::fputs("\r\033[K", stderr);
  drawn_ = false;
}

void Progress::finish() {
  wipe();
  if (!printer_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    finished_ = true;
  }
  changed_.notify_one();
  printer_.join();
}

void Progress::add(uint64_t done) {
  done_ += done;
  if (!terminal_ || total_ == 0) return;
  const Clock::time_point now = Clock::now();
  if (seconds(now - begun_) < 0.5 || seconds(now - drawn_at_) < 0.1) return;  // short work
  drawn_at_ = now;
  draw_bar();
}

double Progress::fraction() const {
  const uint64_t total = total_;
  if (total == 0) return 0.0;
  return std::min(1.0, static_cast<double>(done_) / static_cast<double>(total));
}

void Progress::draw_bar() {
  constexpr int kWidth = 30;
  const double part = fraction();
  const int filled = static_cast<int>(part * kWidth);
  const std::string bar =
      fmt::format("\r{} [{:#<{}}{:.<{}}] {:3.0f}%  {:.0f} s left \033[K", label_, "", filled, "",
                  kWidth - filled, 100 * part, seconds_left(part, seconds(drawn_at_ - begun_)));
  std::fputs(bar.c_str(), stderr);  // a bar that cannot be drawn is no reason to stop
  std::fflush(stderr);
  drawn_ = true;
}

void Progress::print_lines(std::chrono::duration<double> interval) {
  std::unique_lock lock(mutex_);
  auto next = Clock::now();
  while (true) {
    next += std::chrono::duration_cast<Clock::duration>(interval);
    if (changed_.wait_until(lock, next, [&] { return finished_; })) return;
    const double part = fraction(), elapsed = seconds(Clock::now() - begun_);
    const std::string left =
        part > 0 ? fmt::format("{:.0f}%, {:.0f} s left", 100 * part, seconds_left(part, elapsed))
                 : fmt::format("{:.0f} s", elapsed);
    std::fputs(fmt::format("weft: {}: {}\n", label_, left).c_str(), stderr);
  }
}

}  // namespace weft::cli
