// Progress of long work, on standard error: a bar if that is a terminal, else a line every ten
// seconds (WEFT_PROGRESS: every so many seconds, 0 for none).
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

namespace weft::cli {

class Progress {
 public:
  // Throws Error if WEFT_PROGRESS is no number of seconds.
  explicit Progress(std::string label, uint64_t total = 0);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // From one thread.
  void add(uint64_t done);
  void reach(uint64_t done, uint64_t total);  // a total that is known only now
  void reach(double fraction);                // of the total; never goes back
  void wipe();    // the bar, before a line is printed; it may come again
  void finish();  // wipes the bar for good, before the result is printed

 private:
  using Clock = std::chrono::steady_clock;
  void draw_bar();
  void print_lines(std::chrono::duration<double> interval);
  double fraction() const;

  const std::string label_;
  std::atomic<uint64_t> total_;
  std::atomic<uint64_t> done_ = 0;
  const bool terminal_;
  bool drawn_ = false;
  const Clock::time_point begun_ = Clock::now();
  Clock::time_point drawn_at_ = begun_;

  // Prints lines, also while one piece of the work takes long. Only without a terminal.
  std::mutex mutex_;
  std::condition_variable changed_;
  bool finished_ = false;
  std::thread printer_;
};

}  // namespace weft::cli
