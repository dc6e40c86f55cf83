// What libFuzzer calls, in each program: the target that the build names.
#include "tests/fuzz/target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  weft::fuzz::WEFT_FUZZ_TARGET({data, size});
  return 0;
}
