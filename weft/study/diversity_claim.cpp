// Hubara et al. 2021, section 3: the number of masks that a structure admits (mask/diversity.h)
// says how well it does. Before any training that is a statement about magnitude:
//
//   diversity(a) > diversity(b)  ⇒  retained(a) > retained(b)
//
// for structures that keep half of the weights, with both counts: the exact one and the formula of
// the paper. retained: Σ |w| under the best mask / Σ |w|, of i.i.d. normal weights.
#include <fmt/format.h>

#include "weft/core/rng.h"
#include "weft/mask/diversity.h"
#include "weft/mask/retained.h"
#include "weft/mask/solver.h"
#include "weft/report/table.h"
#include "weft/study/claims.h"
#include "weft/study/paired.h"

namespace weft {
namespace {

constexpr std::string_view kTransposable = " transposable";

std::vector<double> measure_diversity(const StudyRun& run, bool small) {
  const int64_t side = small ? 64 : 1024;
  const WeightShape shape{side, side, 1};
  std::vector<float> weights(static_cast<size_t>(side * side));
  const Rng rng(static_cast<uint64_t>(run.seed));
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>(rng.normal(i));
  const auto per_weight = [](double log2, const Diversity& of) {
    return log2 / static_cast<double>(of.weights);
  };
  if (run.variant == "unstructured") {
    const Diversity block = diversity({8, 8, 1}, Pattern(4, 8));
    const double bits = per_weight(block.log2_unstructured, block);
    return {bits, bits, retained_by_largest_half(weights.data(), shape).fraction()};
  }
  const bool both = run.variant.ends_with(kTransposable);
  const Pattern pattern = Pattern::parse(run.variant.substr(0, run.variant.find(' ')));
  const Diversity block = diversity({8, 8, 1}, pattern);  // the block of the paper's table
  const Mask mask = find_mask(default_solver(both), weights.data(), shape, pattern);
  return {per_weight(both ? block.log2_transposable : block.log2_nm, block),
          per_weight(both ? block.log2_transposable_paper : block.log2_nm, block),
          retained(weights.data(), shape, mask).fraction()};
}

Judgement judge_diversity(const Claim& claim, std::span<const StudyRow> rows) {
  Table table({"more magnitude", "than", ">by (95 %)", "exact count", "paper's count"});
  int pairs = 0, exact_right = 0, paper_right = 0, open = 0;
  const std::vector<std::string>& names = claim.variants;
  for (size_t i = 0; i < names.size(); ++i) {
    for (size_t j = i + 1; j < names.size(); ++j) {
      const auto difference = [&](std::string_view figure) {
        const size_t at = claim.figure(figure);
        return paired_difference(values_of(rows, names[i], at), values_of(rows, names[j], at));
      };
      const PairedDifference kept = difference("retained");
      if (!kept.separates()) {
        ++open;
        table.add({names[i], names[j], kept.str(), "not told apart", "not told apart"});
        continue;
      }
      const bool first = kept.mean > 0.0;
      const auto agrees = [&](std::string_view count) {
        const double more = difference(count).mean;
        return first ? more > 0.0 : more < 0.0;
      };
      const bool exact = agrees("exact bits"), paper = agrees("paper's bits");
      ++pairs;
      exact_right += exact;
      paper_right += paper;
      table.add({first ? names[i] : names[j], first ? names[j] : names[i],
                 fmt::format("{:.5f} ±{:.5f}", std::abs(kept.mean), kept.high - kept.mean),
                 exact ? "agrees" : "disagrees", paper ? "agrees" : "disagrees"});
    }
  }
  Judgement judgement;
  judgement.table = {table.str()};
  judgement.reason = fmt::format(
      "of {} pairs that the seeds tell apart the exact count orders {}, the paper's {}; {} pairs "
      "not told apart",
      pairs, exact_right, paper_right, open);
  judgement.verdict = pairs == 0                                     ? Verdict::kUndecided
                      : exact_right == pairs && paper_right == pairs ? Verdict::kHolds
                      : exact_right + paper_right > 0                ? Verdict::kInPart
                                                                     : Verdict::kDoesNotHold;
  return judgement;
}

}  // namespace

Claim diversity_claim() {
  return {.name = "diversity",
          .paper = "Hubara 2021",
          .statement = "a structure that admits more masks keeps more of the weights' magnitude",
          .variants = {"unstructured", "4:8", "2:4", "4:8 transposable", "2:4 transposable"},
          .figures = {"exact bits", "paper's bits", "retained"},
          .run_seconds = 0.2,
          .measure = measure_diversity,
          .judge = judge_diversity};
}

}  // namespace weft
