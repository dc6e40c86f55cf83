#include "weft/core/parallel.h"

#include <omp.h>

#include <atomic>
#include <exception>
#include <mutex>

#include "weft/core/error.h"

namespace weft {

int threads() { return omp_get_max_threads(); }

void set_threads(int count) {
  WEFT_CHECK(count >= 1 && count <= kMaxThreads, "threads {}: accepted is 1 to {}", count,
             kMaxThreads);
  omp_set_num_threads(count);
}

void parallel_for(int64_t items, const std::function<void(int64_t)>& body) {
  std::exception_ptr failure;
  std::atomic<int64_t> failed_item{items};
  std::mutex failure_mutex;

#pragma omp parallel for schedule(dynamic) if (items > 1)
  for (int64_t item = 0; item < items; ++item) {
    if (item > failed_item.load()) continue;  // a lower item has failed already: its error wins
    try {
      body(item);
    } catch (...) {
      const std::lock_guard lock(failure_mutex);
      if (item < failed_item.load()) {
        failed_item.store(item);
        failure = std::current_exception();
      }
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace weft
