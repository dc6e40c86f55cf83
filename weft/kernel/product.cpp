#include "weft/kernel/product.h"

#include "weft/core/error.h"
#include "weft/core/text.h"

namespace weft {

std::string_view product_name(Product product) {
  switch (product) {
    case Product::kForward: return "fwd";
    case Product::kBackwardData: return "bwd_x";
    case Product::kBackwardWeight: return "bwd_w";
  }
  return "";
}

ProductForm ProductForm::of(Product product, bool transposable, bool masked_gradient) {
  return {product, product == Product::kBackwardData && !transposable,
          product == Product::kBackwardWeight && masked_gradient};
}

ProductForm ProductForm::parse(std::string_view name) {
  std::string names;
  for (const ProductForm& form : kProductForms) {
    if (form.name() == name) return form;
    names += (names.empty() ? "" : ", ") + form.name();
  }
  throw Error(fmt::format("product '{}': accepted are {}", printable(name), names));
}

std::string ProductForm::name() const {
  return fmt::format("{}{}{}", product_name(product), ragged ? "_ragged" : "",
                     masked ? "_masked" : "");
}

}  // namespace weft
