// Sparsity: which tensors of a file have which pattern, along which axis.
//
// weft writes it into the metadata of every file whose tensors it made sparse, under
// "weft.sparsity":
//
//   {"version": 1, "tensors": {"fc1.weight": {"pattern": "2:4", "axis": "both"}}}
//
// with "row_order": "fc1.row_order" where rows share by an order of their own (row_order_tensor.h),
// and "transposed": true where the tensor is stored [ins, outs] (stored_weight.h), so that a later
// reader knows what the file promises. docs/files.md describes it.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "weft/checkpoint/header.h"
#include "weft/core/pattern.h"

namespace weft {

enum class Axis { kIn, kOut, kBoth };

Axis parse_axis(std::string_view text);  // "in", "out", "both"
std::string_view axis_name(Axis axis);

struct Promise {
  Pattern pattern;
  Axis axis;
  std::string row_order = {};  // the tensor that says which rows share (row_order_tensor.h), if any
  bool transposed = false;     // stored [ins, outs]; the axis is that of the weight all the same

  // The pattern of the rows in stored order: rows that share by a row order obey keep:group alone.
  Pattern without_row_order() const {
    return row_order.empty() ? pattern : Pattern(pattern.keep(), pattern.group());
  }
};

struct Sparsity {
  std::map<std::string, Promise> tensors;

  // Throws Error that begins with `file` if the entry is there but not one that we know.
  static Sparsity from_metadata(const Metadata& metadata, const std::string& file);
  // Throws Error that begins with `file` and names a tensor that is stored [ins, outs]: networks of
  // weft's own have none.
  void require_outs_first(const std::string& file) const;
  // Replaces the entry; removes it if it is empty.
  void store_in(Metadata& metadata) const;
};

}  // namespace weft
