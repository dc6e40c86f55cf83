// Progress: a bar on standard error during long work, if standard error is a terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace weft::cli {

class Progress {
 public:
  explicit Progress(std::string label, uint64_t total = 0);
  ~Progress() { finish(); }

  void add(uint64_t done);
  void reach(uint64_t done, uint64_t total);  // a total that is known only now
  void reach(double fraction);                // of the total; never goes back
  void finish();                              // wipes the bar; called before anything is printed

 private:
  using Clock = std::chrono::steady_clock;
  void draw(double fraction, double elapsed);

  std::string label_;
  uint64_t total_;
  uint64_t done_ = 0;
  bool terminal_;
  bool drawn_ = false;
  Clock::time_point begun_ = Clock::now();
  Clock::time_point drawn_at_ = begun_;
};

}  // namespace weft::cli
