// The commands of weft on files, as functions: prune, check, convert, pack, unpack.
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "python/core/arrays.h"
#include "weft/prune/check_checkpoint.h"
#include "weft/prune/convert_checkpoint.h"
#include "weft/prune/mask_checkpoint.h"
#include "weft/prune/pack_checkpoint.h"

namespace weft::python {
namespace {

using Path = std::filesystem::path;
using Progress = std::function<void(uint64_t, uint64_t)>;

NameExpressions names_of(const std::string& include, const std::string& exclude) {
  NameExpressions names;
  names.include = include;
  names.exclude = exclude;
  return names;
}

// Work goes on without the interpreter's lock; a listener takes it back for its call.
Listener listener_of(const std::optional<Progress>& progress) {
  Listener listener;
  if (progress) {
    listener.progress = [progress](uint64_t done, uint64_t total) {
      nb::gil_scoped_acquire held;
      (*progress)(done, total);
    };
  }
  return listener;
}

nb::dict prune(const Path& in, const Path& out, const std::string& pattern, bool transposable,
               const std::string& solver_name, const std::optional<Path>& masks,
               const std::string& include, const std::string& exclude, bool in_place,
               const std::optional<Progress>& progress) {
  MaskOptions options;
  options.in = in;
  options.out = {out, in_place};
  options.masks = masks;
  options.pattern = Pattern::parse(pattern);
  options.solver = solver_name.empty() ? &default_solver(transposable) : &solver(solver_name);
  options.names = names_of(include, exclude);
  MaskReport report;
  {
    nb::gil_scoped_release released;
    report = mask_checkpoint(options, listener_of(progress));
  }
  nb::list tensors;
  for (const MaskedTensor& tensor : report.tensors) {
    nb::dict row;
    row["name"] = tensor.info.name;
    row["density"] = tensor.density();
    row["retained"] = tensor.figures.retained.fraction();
    tensors.append(row);
  }
  nb::dict result;
  result["out"] = report.out.string();
  result["retained"] = report.retained().fraction();
  result["tensors"] = tensors;
  result["skipped"] = report.skipped.size();
  return result;
}

nb::dict check(const Path& file, const std::string& pattern, const std::string& axis, bool strict,
               const std::string& include, const std::string& exclude) {
  CheckOptions options;
  options.file = file;
  if (!pattern.empty()) options.pattern = Pattern::parse(pattern);
  if (!axis.empty()) options.axis = parse_axis(axis);
  options.strict = strict;
  options.names = names_of(include, exclude);
  CheckReport report;
  {
    nb::gil_scoped_release released;
    report = check_checkpoint(options);
  }
  nb::list tensors;
  for (const CheckedTensor& tensor : report.tensors) {
    nb::dict row;
    row["name"] = tensor.info.name;
    row["pattern"] = tensor.promise.pattern.str();
    row["obeys"] = tensor.obeys;
    row["density"] = tensor.density();
    row["first_violation"] =
        tensor.first_violation ? nb::cast(tensor.first_violation->index) : nb::none();
    tensors.append(row);
  }
  nb::dict result;
  result["valid"] = report.valid();
  result["tensors"] = tensors;
  return result;
}

nb::dict convert(const Path& in, const Path& out, const std::string& method,
                 const std::string& support, const std::string& pattern,
                 const std::optional<Path>& calibration, bool transposable,
                 const std::string& include, const std::string& exclude, bool in_place,
                 const std::optional<Progress>& progress) {
  ConvertOptions options;
  options.in = in;
  options.out = {out, in_place};
  options.conversion.method = method_of(method, support);
  if (pattern != "auto") options.conversion.pattern = Pattern::parse(pattern);
  options.conversion.transposable = transposable;
  options.calibration = calibration;
  options.names = names_of(include, exclude);
  ConvertReport report;
  {
    nb::gil_scoped_release released;
    report = convert_checkpoint(options, listener_of(progress));
  }
  nb::list layers;
  for (const LayerOutcome& layer : report.layers) {
    nb::dict row;
    row["name"] = layer.name;
    row["pattern"] = layer.pattern.str();
    row["error_before"] = layer.error_before ? nb::cast(*layer.error_before) : nb::none();
    row["error_after"] = layer.error_after ? nb::cast(*layer.error_after) : nb::none();
    row["retained"] = layer.retained.fraction();
    layers.append(row);
  }
  nb::dict result;
  result["out"] = report.out.string();
  result["layers"] = layers;
  result["left_out"] = report.left_out.size();
  return result;
}

nb::dict as_dict(const PackReport& report) {
  nb::list tensors;
  for (const PackReport::Tensor& tensor : report.tensors) {
    nb::dict row;
    row["name"] = tensor.info.name;
    row["pattern"] = tensor.pattern.str();
    row["packed_bytes"] = tensor.packed_bytes;
    tensors.append(row);
  }
  nb::dict result;
  result["out"] = report.out.string();
  result["dense_bytes"] = report.dense_bytes;
  result["packed_bytes"] = report.packed_bytes;
  result["tensors"] = tensors;
  return result;
}

nb::dict pack_file(const Path& in, const Path& out, const std::string& pattern, bool by_magnitude,
                   const std::string& include, const std::string& exclude, bool in_place) {
  PackOptions options;
  options.in = in;
  options.out = {out, in_place};
  if (!pattern.empty()) options.pattern = Pattern::parse(pattern);
  options.by_magnitude = by_magnitude;
  options.names = names_of(include, exclude);
  PackReport report;
  {
    nb::gil_scoped_release released;
    report = pack_checkpoint(options);
  }
  return as_dict(report);
}

nb::dict unpack_file(const Path& in, const Path& out, bool in_place) {
  UnpackOptions options;
  options.in = in;
  options.out = {out, in_place};
  PackReport report;
  {
    nb::gil_scoped_release released;
    report = unpack_checkpoint(options);
  }
  return as_dict(report);
}

}  // namespace

void bind_files(nb::module_& m) {
  m.def("prune_file", &prune, nb::arg("in"), nb::arg("out"), nb::arg("pattern"),
        nb::arg("transposable"), nb::arg("solver"), nb::arg("masks").none(), nb::arg("include"),
        nb::arg("exclude"), nb::arg("in_place"), nb::arg("progress").none());
  m.def("check_file", &check);
  m.def("convert_file", &convert, nb::arg("in"), nb::arg("out"), nb::arg("method"),
        nb::arg("support"), nb::arg("pattern"), nb::arg("calibration").none(),
        nb::arg("transposable"), nb::arg("include"), nb::arg("exclude"), nb::arg("in_place"),
        nb::arg("progress").none());
  m.def("pack_file", &pack_file);
  m.def("unpack_file", &unpack_file);
}

}  // namespace weft::python
