// The one place that knows how the C++ interfaces of oneDNN 2 and oneDNN 3 differ. Debian 12
// has 2.6, Debian 13 has 3.7. Only for weft's own sources, as onednn.h.
//
//   primitive descriptors   2: from an operation descriptor, Op::desc(fields...)
//                           3: from the fields
//   memory::desc            2: dims()
//                           3: get_dims()
#pragma once

#include <oneapi/dnnl/dnnl.hpp>

namespace weft::onednn {

// The descriptor of a forward primitive: `fields` in the order that both versions have.
template <typename Op, typename... Fields>
typename Op::primitive_desc describe(const dnnl::engine& engine,
                                     const dnnl::primitive_attr& attributes,
                                     const Fields&... fields) {
  if constexpr (requires { typename Op::desc; }) {
    return {typename Op::desc(fields...), attributes, engine};
  } else {
    return {engine, fields..., attributes};
  }
}

// The same for a backward primitive; `forward` is the descriptor of the forward primitive.
template <typename Op, typename Forward, typename... Fields>
typename Op::primitive_desc describe_backward(const dnnl::engine& engine,
                                              const dnnl::primitive_attr& attributes,
                                              const Forward& forward, const Fields&... fields) {
  if constexpr (requires { typename Op::desc; }) {
    return {typename Op::desc(fields...), attributes, engine, forward};
  } else {
    return {engine, fields..., forward, attributes};
  }
}

// A template, so that the branch that is not taken need not compile.
template <typename Desc>
dnnl::memory::dims dims_of(const Desc& desc) {
  if constexpr (requires { desc.get_dims(); }) {
    return desc.get_dims();
  } else {
    return desc.dims();
  }
}

}  // namespace weft::onednn
