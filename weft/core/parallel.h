// parallel_for: independent work items on the threads of OpenMP.
//
// Items are claimed in any order, so an item must write only what is its own and must not depend on
// others: then the result does not depend on the number of threads. If items throw, the exception
// of the lowest one is rethrown, whatever the order in which they ran.
#pragma once

#include <cstdint>
#include <functional>

namespace weft {

constexpr int kMaxThreads = 1024;

int threads();
void set_threads(int count);  // 1 <= count <= kMaxThreads

void parallel_for(int64_t items, const std::function<void(int64_t)>& body);

}  // namespace weft
