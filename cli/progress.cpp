#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

namespace weft::cli {

Progress::Progress(std::string label, uint64_t total)
    : label_(std::move(label)), total_(total), terminal_(::isatty(STDERR_FILENO) == 1) {}

void Progress::reach(double fraction) {
  const auto reached = static_cast<uint64_t>(fraction * static_cast<double>(total_));
  if (reached > done_) add(reached - done_);
}

void Progress::reach(uint64_t done, uint64_t total) {
  total_ = total;
  if (done > done_) add(done - done_);
}

void Progress::finish() {
  if (drawn_) std::fputs("\r\033[K", stderr);
  drawn_ = false;
}

void Progress::add(uint64_t done) {
  done_ += done;
  if (!terminal_ || total_ == 0) return;
  const auto seconds = [](auto duration) {
    return std::chrono::duration<double>(duration).count();
  };
  const Clock::time_point now = Clock::now();
  const double elapsed = seconds(now - begun_);
  if (elapsed < 0.5 || seconds(now - drawn_at_) < 0.1) return;  // short work needs no bar
  drawn_at_ = now;
  draw(static_cast<double>(done_) / static_cast<double>(total_), elapsed);
}

void Progress::draw(double fraction, double elapsed) {
  constexpr int kWidth = 30;
  const int filled = static_cast<int>(fraction * kWidth);
  const double left = fraction > 0 ? elapsed * (1 - fraction) / fraction : 0;
  const std::string bar =
      fmt::format("\r{} [{:#<{}}{:.<{}}] {:3.0f}%  {:.0f} s left \033[K", label_, "", filled, "",
                  kWidth - filled, 100 * fraction, left);
  std::fputs(bar.c_str(), stderr);  // a bar that cannot be drawn is no reason to stop
  std::fflush(stderr);
  drawn_ = true;
}

}  // namespace weft::cli
