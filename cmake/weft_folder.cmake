include(GNUInstallDirs)

# weft_arrows(NAME FOLDERS...): weft/NAME may include the headers of these folders.
function(weft_arrows name)
  set_property(GLOBAL PROPERTY WEFT_ARROWS_${name} ${ARGN})
  add_subdirectory(${name})
endfunction()

# weft_folder(NAME PUBLIC ... SOURCES ... SIMD ... LINKS ... USES ...): the library of weft/NAME, as
# weft::NAME. It links the folders that its arrows name (weft/CMakeLists.txt); callers see them too.
#
#   PUBLIC headers that are installed; they include no others of weft. The rest are internals
#   SIMD   sources that Highway compiles once for each instruction set; always units of their own
#   LINKS  outside libraries that the headers need
#   USES   outside libraries that only the sources need
function(weft_folder name)
  cmake_parse_arguments(arg "" "" "PUBLIC;SOURCES;SIMD;LINKS;USES" ${ARGN})
  get_property(arrows GLOBAL PROPERTY WEFT_ARROWS_${name})
  list(TRANSFORM arrows PREPEND weft::)
  set(type STATIC)
  if(WEFT_MUTATE)  # one source changes at a time: with shared libraries no test is linked again
    set(type SHARED)
  endif()
  add_library(weft_${name} ${type} ${arg_SOURCES} ${arg_SIMD})
  target_sources(weft_${name} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}
    FILES ${arg_PUBLIC})
  set_source_files_properties(${arg_SIMD} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  add_library(weft::${name} ALIAS weft_${name})
  set_target_properties(weft_${name} PROPERTIES EXPORT_NAME ${name})
  target_compile_features(weft_${name} PUBLIC cxx_std_20)
  target_include_directories(weft_${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(weft_${name} PUBLIC ${arrows} ${arg_LINKS} PRIVATE ${arg_USES})
  weft_compile_options(weft_${name})
  weft_sanitize(weft_${name})
endfunction()

# The targets that the installed Highway knows, joined by |: those of Debian 13's (1.2) that Debian
# 12's (1.0.3) lacks are not even names there, and HWY_TARGETS would not compile.
function(weft_highway_targets out)
  file(STRINGS ${WEFT_HIGHWAY_INCLUDE}/hwy/detect_targets.h lines REGEX "^#define HWY_[A-Z0-9_]+ \\(1LL")
  list(TRANSFORM lines REPLACE "^#define HWY_([A-Z0-9_]+) .*" "\\1")
  set(known "")
  foreach(name ${ARGN})
    if(name IN_LIST lines)
      list(APPEND known HWY_${name})
    endif()
  endforeach()
  list(JOIN known "|" known)
  set(${out} ${known} PARENT_SCOPE)
endfunction()

function(weft_compile_options target)
  # g++ 12 sees overflows that are not there in fmt's and libstdc++'s inlined copies.
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wconversion
    -Wno-sign-conversion $<$<BOOL:${WEFT_WERROR}>:-Werror>
    $<$<CXX_COMPILER_ID:GNU>:-Wno-stringop-overflow;-Wno-stringop-overread>)
  # Targets that Highway is not to compile for, the same for every source, so that
  # `weft::current_isa` speaks for all. SVE and RVV: vectors of unknown length cannot be members of a
  # struct, as ours are; NEON serves on ARM. SSSE3, and AVX3_DL, AVX3_ZEN4, AVX3_SPR, NEON_BF16: have
  # nothing that weft uses and SSE4, AVX3 or NEON lack (products in bf16 have sources of their own,
  # kernel/tile), and each adds as much to the time to build as AVX2 does.
  weft_highway_targets(disabled SVE SVE2 SVE_256 SVE2_128 RVV SSSE3 AVX3_DL AVX3_ZEN4 AVX3_SPR
    NEON_BF16)
  # Sanitized are the baseline and AVX2, two widths of vectors that nearly every machine has: it is
  # one source for all targets, and then takes half as long. The release tests run every target that
  # the CPU has. WEFT_SANITIZE_AVX3=ON adds AVX-512, for a machine that has it.
  if(WEFT_SANITIZE)
    string(APPEND disabled "|HWY_SSE4")
    if(NOT WEFT_SANITIZE_AVX3)
      string(APPEND disabled "|HWY_AVX3")
    endif()
  endif()
  if(WEFT_FUZZ)  # reads files: the baseline is enough, and takes half as long
    string(APPEND disabled "|HWY_AVX2")
  endif()
  if(WEFT_MUTATE)  # AVX2 as the baseline, and nothing else: a source is compiled once
    string(APPEND disabled "|HWY_AVX3")
    target_compile_options(${target} PRIVATE -march=haswell -ffp-contract=off)
  endif()
  target_compile_definitions(${target} PRIVATE "HWY_DISABLED_TARGETS=(${disabled})")
endfunction()

function(weft_sanitize target)
  # What fuzzers do not read files with would take most of the time to build.
  if(WEFT_FUZZ AND target MATCHES "^weft_(mask|estimate|kernel)$")
    return()
  endif()
  if(WEFT_SANITIZE)
    # With a sanitizer g++ takes much in libstdc++ and LEMON for uninitialised that is not. Asking
    # every pointer for null takes a sixth of the time to build; what is then accessed through it is
    # a report of AddressSanitizer.
    target_compile_options(${target} PRIVATE -fsanitize=${WEFT_SANITIZE} -fno-sanitize=null
      -fno-omit-frame-pointer
      -fno-sanitize-recover=all $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
    target_link_options(${target} PUBLIC -fsanitize=${WEFT_SANITIZE})
  endif()
endfunction()
