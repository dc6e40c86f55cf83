# Every library weft uses, all from Debian's packages (scripts/setup lists them), but for libtorch if
# WEFT_TORCH_DIR names another.
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
if(WEFT_CLI)
  find_package(CLI11 REQUIRED)
endif()
find_package(OpenMP REQUIRED COMPONENTS CXX)
if(WEFT_TORCH)
  include(cmake/torch.cmake)
  weft_find_torch("${WEFT_TORCH_DIR}")
endif()

# Libraries that Debian ships without a CMake package of use. They lie where every compiler looks, so
# targets link them by name; looked for here, a missing one is named before anything is compiled.
function(weft_find_library name header)
  find_path(WEFT_${name}_INCLUDE ${header} REQUIRED)
  if(ARGC GREATER 2)
    find_library(WEFT_${name}_LIBRARY ${ARGV2} REQUIRED)
  endif()
endfunction()
weft_find_library(HIGHWAY hwy/highway.h hwy)
weft_find_library(RANDOM123 Random123/philox.h)
weft_find_library(LEMON lemon/network_simplex.h lemon)
weft_find_library(RE2 re2/re2.h re2)
weft_find_library(ONEDNN oneapi/dnnl/dnnl.h dnnl)
weft_find_library(GMP gmpxx.h gmpxx)
weft_find_library(ZLIB zlib.h z)
weft_find_library(TOMLPLUSPLUS toml++/toml.h)
