// The tables of parts. Rows stand in the file of their formula.
#include <deque>

#include "weft/core/error.h"
#include "weft/core/text.h"
#include "weft/recipe/best_combination.h"
#include "weft/recipe/bi_mask.h"
#include "weft/recipe/decay.h"
#include "weft/recipe/gradient.h"
#include "weft/recipe/magnitude_masks.h"
#include "weft/recipe/part.h"
#include "weft/recipe/soft_threshold.h"

namespace weft {
namespace {

constexpr ForwardPart kDensePart = {.name = "dense", .dense = true};
constexpr BackwardPart kSamePart = {.name = "same"};

std::vector<const ForwardPart*>& forward_table() {
  static std::vector<const ForwardPart*> rows = {&kDensePart, &kTopNPart, &kTransposablePart,
                                                 &kUnionPart, &kSoftPart};
  return rows;
}
std::vector<const BackwardPart*>& backward_table() {
  static std::vector<const BackwardPart*> rows = {&kSamePart, &kBiMaskPart};
  return rows;
}
std::vector<const GradientPart*>& gradient_table() {
  static std::vector<const GradientPart*> rows = {&kExactPart, &kMaskedPart, &kMvuePart,
                                                  &kTwoDrawPart};
  return rows;
}
std::vector<const DecayPart*>& decay_table() {
  static std::vector<const DecayPart*> rows = {&kNoDecay, &kGradientDecay, &kDecoupledDecay,
                                               &kAutoDecay};
  return rows;
}

template <typename Part>
const Part* find_in(const std::vector<const Part*>& rows, std::string_view name) {
  for (const Part* row : rows) {
    if (row->name == name) return row;
  }
  return nullptr;
}

template <typename Part>
const Part& part_in(const std::vector<const Part*>& rows, std::string_view kind,
                    std::string_view name) {
  const Part* found = find_in(rows, name);
  if (found != nullptr) return *found;
  std::string known;
  for (const Part* row : rows) known += (known.empty() ? "" : ", ") + std::string(row->name);
  throw Error(fmt::format("recipe: {}={}: accepted are {}", kind, printable(name), known));
}

// Keeps a copy, at an address that stays.
template <typename Part>
void add_to(std::vector<const Part*>& rows, std::string_view kind, const Part& part) {
  static std::deque<Part> added;
  const bool writable = !part.name.empty() && part.name.find_first_of("+=@, ") == part.name.npos;
  WEFT_CHECK(writable, "{} part '{}': a name must not be empty or contain any of '+=@, '", kind,
             printable(part.name));
  WEFT_CHECK(find_in(rows, part.name) == nullptr, "{} part '{}': another part has this name", kind,
             part.name);
  rows.push_back(&added.emplace_back(part));
}

void require_both(bool one, bool other, std::string_view kind, std::string_view name,
                  const char* functions) {
  WEFT_CHECK(one == other, "{} part '{}': {} must both be given, or neither", kind, name,
             functions);
}

}  // namespace

std::vector<const ForwardPart*> forward_parts() { return forward_table(); }
std::vector<const BackwardPart*> backward_parts() { return backward_table(); }
std::vector<const GradientPart*> gradient_parts() { return gradient_table(); }
std::vector<const DecayPart*> decay_parts() { return decay_table(); }

const ForwardPart& forward_part(std::string_view name) {
  return part_in(forward_table(), "forward", name);
}
const BackwardPart& backward_part(std::string_view name) {
  return part_in(backward_table(), "backward", name);
}
const GradientPart& gradient_part(std::string_view name) {
  return part_in(gradient_table(), "gradient", name);
}
const DecayPart& decay_part(std::string_view name) { return part_in(decay_table(), "decay", name); }

void add_part(const ForwardPart& part) {
  WEFT_CHECK(part.dense || part.find != nullptr,
             "forward part '{}': the function that finds masks is missing", part.name);
  require_both(part.values != nullptr, part.values_in_double != nullptr, "forward", part.name,
               "values and values_in_double");
  const ScoreRow* scores = part.scores;
  WEFT_CHECK(
      scores == nullptr ||
          (scores->shape != nullptr && scores->first != nullptr && scores->gradient != nullptr &&
           scores->gradient_in_double != nullptr && scores->are_trained != nullptr),
      "forward part '{}': scores need all of their functions", part.name);
  add_to(forward_table(), "forward", part);
}

void add_part(const BackwardPart& part) {
  WEFT_CHECK(part.find != nullptr, "backward part '{}': the function that finds masks is missing",
             part.name);
  require_both(part.refresh != nullptr, part.is_refresh_due != nullptr, "backward", part.name,
               "refresh and is_refresh_due");
  add_to(backward_table(), "backward", part);
}

void add_part(const GradientPart& part) { add_to(gradient_table(), "gradient", part); }

void add_part(const DecayPart& part) {
  require_both(part.apply != nullptr, part.apply_in_double != nullptr, "decay", part.name,
               "apply and apply_in_double");
  add_to(decay_table(), "decay", part);
}

}  // namespace weft
