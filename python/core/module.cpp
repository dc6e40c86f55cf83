// weft._core: the folders of weft that need no torch, for Python. What a user calls is in
// python/weft; it checks arguments, and this file and its neighbours only pass them on.
#include <nanobind/stl/string.h>

#include "python/core/arrays.h"
#include "weft/core/isa.h"
#include "weft/core/parallel.h"
#include "weft/core/version.h"
#include "weft/kernel/tile/tile_unit.h"

namespace weft::python {

NB_MODULE(_core, m) {
  m.doc() = "The core of weft. Use the functions of the package weft instead.";
  nb::exception<Error>(m, "Error", PyExc_ValueError);
  m.attr("version") = kVersion;
  m.def("threads", &threads);
  m.def("set_threads", &set_threads);
  m.def("isa", [] { return current_isa(); });
  m.def("tile_unit", [] { return std::string(tile_unit_name(tile_unit())); });
  force_isa_from_environment();
  force_tile_unit_from_environment();
  bind_functions(m);
  bind_packed(m);
  bind_files(m);
  bind_layers(m);
}

}  // namespace weft::python
