// Masks, samples, roundings, conversion: one function each, arrays in, arrays out.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "python/core/arrays.h"
#include "weft/estimate/fp8.h"
#include "weft/estimate/mvue.h"
#include "weft/mask/diversity.h"
#include "weft/mask/solver.h"
#include "weft/mask/verify.h"
#include "weft/plan/planner.h"
#include "weft/prune/convert_layer.h"
#include "weft/recipe/recipe.h"
#include "weft/recipe/soft_threshold.h"

namespace weft::python {
namespace {

const Solver& solver_of(const std::string& name, bool transposable) {
  if (name.empty()) return default_solver(transposable);
  const Solver& found = solver(name);
  WEFT_CHECK(!transposable || found.transposable,
             "solver '{}' finds masks along inputs only: leave transposable out, or choose exact, "
             "flow, greedy-keep or greedy-prune",
             name);
  return found;
}

template <typename T>
Out<bool> find(const In<T>& w, const std::string& pattern, bool transposable,
               const std::string& solver_name) {
  const WeightShape shape = weight_shape_of(w);
  const Solver& chosen = solver_of(solver_name, transposable);
  const Pattern parsed = Pattern::parse(pattern);
  Mask mask;
  {
    nb::gil_scoped_release released;
    mask = find_mask(chosen, w.data(), shape, parsed);
  }
  return array_of(mask, dims_of(w));
}

nb::dict as_dict(const GroupCount& count) {
  nb::dict out;
  out["groups"] = count.groups;
  out["short_groups"] = count.short_groups;
  out["violations"] = count.violations;
  if (count.first_violation) {
    const WeightPosition& at = *count.first_violation;
    out["first_violation"] = nb::make_tuple(at.out, at.in, at.tap);
  } else {
    out["first_violation"] = nb::none();
  }
  return out;
}

nb::dict count(const Bits& nonzero, const std::string& pattern, bool along_outputs) {
  const Pattern parsed = Pattern::parse(pattern);
  const WeightShape shape = weight_shape_of(nonzero);
  const Mask mask = mask_of(nonzero);
  return as_dict(along_outputs ? count_groups_out(mask, shape, parsed)
                               : count_groups_in(mask, shape, parsed));
}

nb::dict diversity_of(int64_t outs, int64_t ins, int64_t taps, const std::string& pattern) {
  const Diversity found = diversity({outs, ins, taps}, Pattern::parse(pattern));
  nb::dict out;
  out["log2_unstructured"] = found.log2_unstructured;
  out["log2_nm"] = found.log2_nm;
  out["log2_transposable"] = found.log2_transposable;
  out["log2_transposable_paper"] = found.log2_transposable_paper;
  out["transposable_exact"] = found.transposable_exact;
  out["weights"] = found.weights;
  return out;
}

nb::tuple soft(const In<float>& w, const std::string& pattern, std::optional<double> beta) {
  const WeightShape shape = weight_shape_of(w);
  const Pattern parsed = Pattern::parse(pattern);
  const Mask mask = find_mask(default_solver(false), w.data(), shape, parsed);
  const double scale = beta ? *beta : soft_threshold_scale(w.data(), mask, shape, parsed);
  Out<float> out = new_array<float>(dims_of(w));
  soft_threshold(w.data(), mask, shape, parsed, scale, out.data());
  return nb::make_tuple(std::move(out), scale);
}

// [tokens, outs]
Out<float> sample(const In<float>& g, const std::string& pattern, const std::string& sampler,
                  uint64_t seed, uint64_t step, uint32_t layer, uint32_t call,
                  int64_t first_group) {
  WEFT_CHECK(g.ndim() == 2, "a gradient of {} dimensions: accepted is [tokens, outs]", g.ndim());
  const std::vector<int64_t> dims = dims_of(g);
  const SampleOptions options{
      Pattern::parse(pattern), parse_sampler(sampler), {seed, step, layer, call}, first_group, 0};
  Out<float> out = new_array<float>(dims);
  sample_scales({g.data(), dims[0], dims[1]}, options, {out.data(), dims[0], dims[1]});
  for (size_t i = 0; i < g.size(); ++i) {
    if (out.data()[i] != 0.0f) out.data()[i] *= g.data()[i];
  }
  return out;
}

Out<float> fp8(const In<float>& x, const std::string& format) {
  Out<float> out = new_array<float>(dims_of(x));
  round_to_fp8({x.data(), x.size()}, parse_fp8(format), {out.data(), out.size()});
  return out;
}

nb::list plan(int64_t tokens, int64_t ins, int64_t outs, const std::string& pattern,
              bool transposable, bool masked_gradient, int products_per_pack) {
  PlanRequest request{.shape = {tokens, ins, outs}, .pattern = Pattern::parse(pattern)};
  request.transposable = transposable;
  request.masked_gradient = masked_gradient;
  request.products_per_pack = products_per_pack;
  request.shape.check();
  LayerPlan found;
  {
    nb::gil_scoped_release released;
    Planner planner;
    found = planner.plan(request);
  }
  nb::list out;
  for (const Product product : kProducts) {
    nb::dict row;
    row["product"] = std::string(product_name(product));
    row["path"] = found[product].path();
    row["ratio"] = found[product].ratio;
    row["reason"] = found[product].reason();
    out.append(row);
  }
  return out;
}

// gram: mean of x xᵀ, [cols, cols]; mean: of x, [cols]
nb::dict convert(const In<double>& w, std::optional<In<double>> gram,
                 std::optional<In<double>> mean, int64_t samples, const std::string& pattern,
                 bool transposable, const std::string& method, const std::string& support,
                 bool free_bias, double damping, double tolerance, int64_t iterations) {
  LayerProblem problem;
  problem.weights = w.data();
  problem.shape = weight_shape_of(w);
  problem.pattern = Pattern::parse(pattern);
  problem.transposable = transposable;
  problem.method = method_of(method, support);
  problem.free_bias = free_bias;
  problem.damping = damping;
  problem.least_squares = {tolerance, iterations};
  Gram inputs;
  if (gram) {
    inputs.cols = problem.shape.cols();
    WEFT_CHECK(gram->ndim() == 2 && static_cast<int64_t>(gram->shape(0)) == inputs.cols &&
                   static_cast<int64_t>(gram->shape(1)) == inputs.cols,
               "a Gram matrix of another size than [{0}, {0}], the columns of the weight",
               inputs.cols);
    inputs.second.assign(gram->data(), gram->data() + gram->size());
    if (mean) {
      WEFT_CHECK(static_cast<int64_t>(mean->size()) == inputs.cols,
                 "a mean of {} inputs for a weight of {} columns", mean->size(), inputs.cols);
      inputs.mean.assign(mean->data(), mean->data() + mean->size());
    }
    inputs.samples = samples;
    problem.inputs = &inputs;
  }
  ConvertedLayer done;
  {
    nb::gil_scoped_release released;
    done = convert_layer(problem);
  }
  nb::dict out;
  out["weight"] = array_of(done.weights, dims_of(w));
  out["mask"] = array_of(done.support, dims_of(w));
  out["bias_change"] = array_of(done.bias_change, {static_cast<int64_t>(done.bias_change.size())});
  out["error_before"] = done.error_before ? nb::cast(*done.error_before) : nb::none();
  out["error_after"] = done.error_after ? nb::cast(*done.error_after) : nb::none();
  return out;
}

nb::dict recipe(const std::string& text) {
  const Recipe parsed = Recipe::parse(text);
  nb::dict out;
  out["name"] = parsed.name;
  out["needs_total_steps"] = parsed.needs_total_steps();
  out["dense"] = parsed.is_dense();
  out["samples_gradient"] = parsed.samples_gradient();
  out["fp8"] = parsed.fp8;
  out["schedule"] = describe_schedule(parsed);
  out["sparse_products"] = sparse_products(parsed);
  return out;
}

std::vector<std::string> names_of_recipes() {
  std::vector<std::string> names;
  for (const Recipe& one : recipes()) names.push_back(one.name);
  return names;
}

}  // namespace

void bind_functions(nb::module_& m) {
  m.def("mask", &find<float>, nb::arg("w").noconvert(), nb::arg("pattern"), nb::arg("transposable"),
        nb::arg("solver"));
  m.def("mask", &find<double>, nb::arg("w").noconvert(), nb::arg("pattern"),
        nb::arg("transposable"), nb::arg("solver"));
  m.def("count_groups", &count);
  m.def("diversity", &diversity_of);
  m.def("soft_threshold", &soft, nb::arg("w").noconvert(), nb::arg("pattern"),
        nb::arg("beta").none());
  m.def("sample", &sample);
  m.def("round_fp8", &fp8);
  m.def("plan", &plan);
  m.def("convert_layer", &convert, nb::arg("w"), nb::arg("gram").none(), nb::arg("mean").none(),
        nb::arg("samples"), nb::arg("pattern"), nb::arg("transposable"), nb::arg("method"),
        nb::arg("support"), nb::arg("free_bias"), nb::arg("damping"), nb::arg("tolerance"),
        nb::arg("iterations"));
  // The support that a method takes if none is named; empty: it has one of its own.
  m.def("support_of", [](const std::string& name, const std::string& support) {
    const Method method = method_of(name, support);
    return std::string(method.chooses_support() ? support_name(method.support) : "");
  });
  m.def("recipe", &recipe);
  m.def("recipes", &names_of_recipes);
  m.def("pattern", [](const std::string& text) {
    const Pattern parsed = Pattern::parse(text);
    return nb::make_tuple(parsed.keep(), parsed.group(), parsed.share());
  });
}

}  // namespace weft::python
