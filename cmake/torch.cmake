# weft_find_torch(DIR): the target `torch`. Installed too, so that users of weft::train get the same.
#
# DIR empty: Debian's libtorch. Otherwise DIR is a Python environment with PyTorch from PyPI in it (or
# the folder site-packages/torch itself), and `torch` is its libtorch_cpu and libc10. Its own CMake
# package is not asked: it demands a CUDA toolkit. At run time libtorch_cpu finds the two libraries of
# CUDA that it needs in the environment.
include_guard()

function(weft_find_torch dir)
  if(NOT dir)
    find_package(Torch REQUIRED)
    return()
  endif()
  # A glob for the version of Python; sorted, so that the choice is the same each time.
  file(GLOB found ${dir}/lib/libtorch_cpu.so ${dir}/lib/python3*/site-packages/torch/lib/libtorch_cpu.so)
  if(NOT found)
    message(FATAL_ERROR "no libtorch_cpu.so in ${dir}/lib or ${dir}/lib/python3*/site-packages/torch/lib: "
      "name a Python environment with torch from PyPI, or its folder site-packages/torch")
  endif()
  list(GET found 0 library)
  cmake_path(GET library PARENT_PATH lib)
  cmake_path(GET lib PARENT_PATH root)
  file(STRINGS ${root}/share/cmake/Torch/TorchConfig.cmake old_abi REGEX "GLIBCXX_USE_CXX11_ABI=0")
  if(old_abi)
    message(FATAL_ERROR "${root} is built for the C++ ABI of before 2015, which Debian's libraries do "
      "not have: install torch 2.7 or newer")
  endif()
  message(STATUS "torch: ${root}")

  # Headers: torch's own come first, because Debian's libtorch may be installed too. They are reached
  # through links, because beside them lie headers of oneDNN, fmt and others, of versions that are
  # not those of Debian's libraries; these serve only where Debian has none.
  set(headers ${CMAKE_BINARY_DIR}/torch_headers)
  file(MAKE_DIRECTORY ${headers})
  foreach(folder ATen c10 caffe2 torch)
    file(CREATE_LINK ${root}/include/${folder} ${headers}/${folder} SYMBOLIC)
  endforeach()

  add_library(torch INTERFACE IMPORTED GLOBAL)
  target_include_directories(torch SYSTEM INTERFACE ${headers} ${headers}/torch/csrc/api/include)
  target_compile_options(torch INTERFACE "SHELL:-idirafter ${root}/include")
  # Beside libtorch_cpu lies a libgomp.so.1, and a process has one library of a name: it is torch's, in
  # Python too, and has all that oneDNN and weft call (up to GOMP_4.0). No other folder may be searched
  # before torch's: Debian's has another libtorch_cpu.so. Named so, and not by path, because CMake
  # warns of each second libgomp that it sees; and so the programs keep the folder when installed.
  target_link_options(torch INTERFACE -L${lib} -Wl,-rpath,${lib})
  target_link_libraries(torch INTERFACE -ltorch_cpu -lc10)
  # libtorch_cpu holds a oneDNN of its own, and a few weak symbols of it are visible: the functions that
  # set up sgemm. Both libraries use those of the first one that is loaded. Debian's must be that one,
  # because weft computes with it; torch multiplies with MKL.
  find_library(WEFT_DNNL_LIBRARY dnnl REQUIRED)
  target_link_options(torch BEFORE INTERFACE
    LINKER:--push-state,--no-as-needed ${WEFT_DNNL_LIBRARY} LINKER:--pop-state)
endfunction()

# weft_find_c10d(): WEFT_C10D, whether `torch` has c10d with Gloo, for weft/distributed. Its headers
# include some of Gloo's, which Debian has in libgloo-dev; they serve for any libtorch, because only
# pointers to what they declare pass between weft and libtorch.
function(weft_find_c10d)
  include(CheckCXXSourceCompiles)
  set(CMAKE_REQUIRED_LIBRARIES torch)
  set(CMAKE_REQUIRED_FLAGS "-std=c++20 -w")
  check_cxx_source_compiles("
    #define USE_C10D_GLOO
    #include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
    #include <torch/csrc/distributed/c10d/TCPStore.hpp>
    int main() {
      const auto store = c10::make_intrusive<c10d::TCPStore>(\"localhost\", c10d::TCPStoreOptions());
      c10d::ProcessGroupGloo gloo(store, 0, 1);
    }" WEFT_C10D)
  if(NOT WEFT_C10D)
    message(STATUS "libtorch has no c10d with Gloo, or libgloo-dev is not installed: weft train will "
      "run on one rank only")
  endif()
endfunction()
