// A signal handler that interrupts a product finds the stack of its thread, not oneDNN's buffer:
// there its frame would overwrite the heap (weft/kernel/dense/onednn.cpp).
#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <vector>

#include "weft/core/parallel.h"
#include "weft/kernel/dense/dense.h"

namespace weft::test {
namespace {

uintptr_t stack_begin = 0, stack_end = 0;
std::atomic<int> on_stack{0}, elsewhere{0};

void look(int) {
  // Not the address of a variable, which AddressSanitizer may keep elsewhere.
  const auto address = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  (address >= stack_begin && address < stack_end ? on_stack : elsewhere) += 1;
}

// While it lives, this thread, and no other, is interrupted every 200 us.
class Interruptions {
 public:
  Interruptions() {
    pthread_attr_t attributes;
    ::pthread_getattr_np(::pthread_self(), &attributes);
    void* begin = nullptr;
    size_t size = 0;
    ::pthread_attr_getstack(&attributes, &begin, &size);
    ::pthread_attr_destroy(&attributes);
    stack_begin = reinterpret_cast<uintptr_t>(begin);
    stack_end = stack_begin + size;
    on_stack = elsewhere = 0;
    before_ = std::signal(SIGALRM, look);
    sigevent event{};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = SIGALRM;
    event._sigev_un._tid = ::gettid();
    ::timer_create(CLOCK_MONOTONIC, &event, &timer_);
    constexpr timespec kInterval{0, 200'000};
    const itimerspec interval{kInterval, kInterval};
    ::timer_settime(timer_, 0, &interval, nullptr);
  }
  ~Interruptions() {
    ::timer_delete(timer_);
    std::signal(SIGALRM, before_);
  }

 private:
  timer_t timer_ = {};
  void (*before_)(int);
};

// Sums over 800 numbers: in shorter ones oneDNN stays on the stack.
TEST(Signals, FindTheStackOfTheirThreadInDenseProducts) {
  set_threads(1);
  constexpr int64_t kTokens = 800, kIns = 800, kOuts = 800;
  const std::vector<float> x(kTokens * kIns, 1), w(kOuts * kIns, 1), g(kTokens * kOuts, 1);
  std::vector<float> y(kTokens * kOuts), dx(kTokens * kIns), dw(kOuts * kIns);
  const MatrixView<const float> x_view(x.data(), kTokens, kIns), w_view(w.data(), kOuts, kIns),
      g_view(g.data(), kTokens, kOuts);
  {
    const Interruptions interruptions;
    for (int round = 0; round < 5 && elsewhere == 0; ++round) {
      dense_forward(x_view, w_view, nullptr, 0, {y.data(), kTokens, kOuts});
      dense_backward_data(g_view, w_view, 0, {dx.data(), kTokens, kIns});
      dense_backward_weight(g_view, x_view, 0, {dw.data(), kOuts, kIns});
    }
  }
  EXPECT_GT(on_stack, 0);
  EXPECT_EQ(elsewhere, 0);
  EXPECT_EQ(y.front() + dx.front() + dw.front(), 3 * 800);
}

}  // namespace
}  // namespace weft::test
