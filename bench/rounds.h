// Rounds of a measurement: as many as planned, and up to twice as many more while others keep the
// machine busy. Medians over more rounds are worth more there.
//
//   for (Rounds rounds(options.rounds); rounds.next();) { ... rounds.number() ... }
#pragma once

#include "weft/core/machine_load.h"

namespace weft::bench {

class Rounds {
 public:
  explicit Rounds(int planned) : planned_(planned) {}

  bool next() {
    ++number_;
    if (number_ < planned_) return true;
    return number_ < 3 * planned_ && number_ > 0 && load_.is_busy();
  }
  int number() const { return number_; }  // from 0
  double done() const { return number_ + 1 < planned_ ? (number_ + 1.0) / planned_ : 1.0; }

 private:
  int planned_;
  int number_ = -1;
  MachineLoad load_;
};

}  // namespace weft::bench
