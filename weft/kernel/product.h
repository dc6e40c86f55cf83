// The three products of a layer, linear or convolution, in one enum; and the forms that they take
// when something in them is sparse.
//
//   forward          y  = x Wᵀ
//   backward data    dx = g W
//   backward weight  dw = gᵀ x
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace weft {

enum class Product : uint8_t { kForward, kBackwardData, kBackwardWeight };
inline constexpr std::array kProducts = {Product::kForward, Product::kBackwardData,
                                         Product::kBackwardWeight};
std::string_view product_name(Product product);  // "fwd", "bwd_x", "bwd_w"

// A product and what is sparse in it: what its time depends on, beside the sizes.
//
//   fwd            W, N:M along inputs
//   bwd_x          W, N:M along outputs too: its mask is transposable
//   bwd_x_ragged   W, N:M along inputs only: the rows of Wᵀ keep different numbers of weights
//   bwd_w          g, N:M along tokens
//   bwd_w_masked   dw: both operands are dense, and only what the mask of W keeps is computed
struct ProductForm {
  Product product;
  bool ragged = false;  // backward data only
  bool masked = false;  // backward weight only

  constexpr ProductForm(Product product, bool ragged = false, bool masked = false)
      : product(product), ragged(ragged), masked(masked) {}
  // The form that a product of a layer has: transposable is its mask; masked_gradient says that dw
  // is wanted only where that mask keeps it.
  static ProductForm of(Product product, bool transposable, bool masked_gradient);
  static ProductForm parse(std::string_view name);  // Error unless it is one of kProductForms

  // Whether what is packed is a gradient: another one in every product.
  constexpr bool packs_gradient() const { return product == Product::kBackwardWeight && !masked; }
  std::string name() const;  // as above

  friend auto operator<=>(const ProductForm&, const ProductForm&) = default;
};
inline constexpr std::array<ProductForm, 5> kProductForms = {{
    {Product::kForward},
    {Product::kBackwardData},
    {Product::kBackwardData, /*ragged=*/true},
    {Product::kBackwardWeight},
    {Product::kBackwardWeight, /*ragged=*/false, /*masked=*/true},
}};
// Those with a packed operand.
inline constexpr std::span<const ProductForm> kPackedForms{kProductForms.data(), 4};

}  // namespace weft
