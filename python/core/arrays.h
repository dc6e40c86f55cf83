// NumPy arrays in and out of the core: what every file of the binding uses.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstring>
#include <memory>
#include <vector>

#include "weft/core/error.h"
#include "weft/core/mask.h"
#include "weft/core/weight_shape.h"

namespace weft::python {

namespace nb = nanobind;

// Contiguous, on the CPU. python/weft/arrays.py has checked that, and says what is wrong.
template <typename T>
using In = nb::ndarray<const T, nb::c_contig, nb::device::cpu>;
template <typename T>
using Out = nb::ndarray<nb::numpy, T>;
using Bits = In<bool>;

template <typename Array>
std::vector<int64_t> dims_of(const Array& array) {
  std::vector<int64_t> dims;
  for (size_t i = 0; i < array.ndim(); ++i) dims.push_back(static_cast<int64_t>(array.shape(i)));
  return dims;
}

// [outs, ins] or [outs, ins, kernel_h, kernel_w].
template <typename Array>
WeightShape weight_shape_of(const Array& array) {
  return WeightShape::of(dims_of(array));
}

// Memory that belongs to the array which Python gets.
template <typename T>
Out<T> new_array(const std::vector<int64_t>& dims) {
  size_t size = 1;
  std::vector<size_t> shape;
  for (const int64_t dim : dims) {
    shape.push_back(static_cast<size_t>(dim));
    size *= shape.back();
  }
  auto memory = std::make_unique<T[]>(size);
  nb::capsule owner(memory.get(), [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return Out<T>(memory.release(), shape.size(), shape.data(), owner);
}

template <typename T>
Out<T> array_of(const std::vector<T>& values, const std::vector<int64_t>& dims) {
  Out<T> out = new_array<T>(dims);
  std::copy(values.begin(), values.end(), out.data());
  return out;
}

inline Out<bool> array_of(const Mask& mask, const std::vector<int64_t>& dims) {
  Out<bool> out = new_array<bool>(dims);
  bool* to = out.data();
  for (int64_t r = 0; r < mask.rows(); ++r) {
    for (int64_t c = 0; c < mask.cols(); ++c) *to++ = mask.at(r, c);
  }
  return out;
}

inline Mask mask_of(const Bits& bits) {
  const WeightShape shape = weight_shape_of(bits);
  Mask mask(shape.outs, shape.cols());
  const bool* from = bits.data();
  for (int64_t r = 0; r < shape.outs; ++r) {
    for (int64_t c = 0; c < shape.cols(); ++c) {
      if (*from++) mask.set(r, c, true);
    }
  }
  return mask;
}

void bind_functions(nb::module_& m);
void bind_packed(nb::module_& m);
void bind_files(nb::module_& m);
void bind_layers(nb::module_& m);

}  // namespace weft::python
