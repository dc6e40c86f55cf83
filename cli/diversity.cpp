// weft diversity: how many masks a structure admits, exactly, with the paper's figure beside it.
#include <charconv>

#include "cli/shared.h"
#include "weft/core/text.h"
#include "weft/prune/checkpoint_diversity.h"
#include "weft/report/table.h"

namespace weft::cli {
namespace {

// "8x8" or "64x32x3x3".
std::vector<int64_t> parse_shape(std::string_view text) {
  std::vector<int64_t> dims;
  int64_t product = 1;
  const char* at = text.data();
  const char* end = at + text.size();
  while (true) {
    int64_t dim = 0;
    const auto [next, failure] = std::from_chars(at, end, dim);
    const bool good =
        failure == std::errc() && dim >= 1 && !__builtin_mul_overflow(product, dim, &product);
    dims.push_back(dim);
    at = next;
    if (good && at == end && WeightShape::accepts(dims)) return dims;
    if (!good || at == end || *at++ != 'x' || dims.size() == 4) {
      throw UsageError(
          fmt::format("--shape '{}': accepted is OUTSxINS, as in 8x8, or "
                      "OUTSxCHANNELSxKHxKW, as in 64x32x3x3",
                      printable(text)));
    }
  }
}

std::string bits(double log2, int64_t weights) {
  return fmt::format("{:.3f}", log2 / static_cast<double>(weights));
}

// 2^log2, as "1.17e+11", also beyond what a double holds.
std::string count_text(double log2) {
  const double log10 = log2 * 0.30102999566398119521;
  const double exponent = std::floor(log10 + 1e-12);
  return exponent < 6 ? fmt::format("{:.0f}", std::exp2(log2))
                      : fmt::format("{:.4f}e{:.0f}", std::pow(10, log10 - exponent), exponent);
}

class DiversityCommand : public Command {
 public:
  void declare(Flags& flags) override {
    declare_pattern(flags, pattern_);
    flags.text("--shape", "OxI[xKHxKW]", shape_,
               "Shape of one layer: outs x ins, and the kernel of a convolution");
    flags.text("--checkpoint", "FILE", checkpoint_,
               "Sum over the weights that `weft mask` would select");
    flags.exclude("--checkpoint", "--shape");
    names_.declare(flags);
    tables_.declare(flags);
    common_.declare(flags);
  }

  int run() override {
    common_.apply();
    if (pattern_.empty() && shape_.empty() && checkpoint_.empty()) return print_paper_table();
    if (pattern_.empty()) throw UsageError("--pattern is needed");
    if (shape_.empty() && checkpoint_.empty()) {
      throw UsageError("--shape or --checkpoint is needed");
    }
    const Pattern pattern = Pattern::parse(pattern_);
    if (!shape_.empty()) {
      total_ = weft::diversity(WeightShape::of(parse_shape(shape_)), pattern);
    } else {
      const CheckpointDiversity report =
          checkpoint_diversity(checkpoint_, pattern, names_.expressions(), {{}, print_note});
      total_ = report.total;
      skipped_ = skipped(report.skipped);
      all_tensors_ = report.all_tensors;
    }
    common_.json ? report_json() : report(pattern);
    return 0;
  }

 private:
  void report(const Pattern& pattern) const {
    Table table({"structure", ">log2 of masks", ">bits/weight", "note"});
    const auto add = [&](const std::string& structure, double log2, const std::string& note) {
      table.add({structure, fmt::format("{:.6g}", log2), bits(log2, total_.weights), note});
    };
    add("unstructured", total_.log2_unstructured, "same number of weights kept");
    add(pattern.str(), total_.log2_nm, "");
    add(pattern.str() + " transposable", total_.log2_transposable,
        total_.transposable_exact ? "exact" : "estimate: too many to count");
    add(pattern.str() + " transposable", total_.log2_transposable_paper,
        fmt::format("the paper's formula: {}", paper_verdict()));
    tables_.print(table);
    tables_.print_left_alone(skipped_, all_tensors_);
  }

  std::string paper_verdict() const {
    switch (total_.paper_formula()) {
      case Diversity::Formula::kRight: return "right here";
      case Diversity::Formula::kOverCount: return "an over-count";
      case Diversity::Formula::kUnderCount: return "an under-count here";
    }
    return "";
  }

  void report_json() const {
    print_json({{"pattern", pattern_},
                {"weights", total_.weights},
                {"log2_unstructured", total_.log2_unstructured},
                {"log2_nm", total_.log2_nm},
                {"log2_transposable", total_.log2_transposable},
                {"log2_transposable_paper", total_.log2_transposable_paper},
                {"transposable_exact", total_.transposable_exact},
                {"skipped", to_json(skipped_)}});
  }

  // The table of Hubara et al. 2021 for an 8 x 8 block, and larger groups by bits per weight.
  int print_paper_table() const {
    Table table(
        {"structure", ">masks of 8x8", ">by the paper", ">bits/weight", ">paper's bits/weight"});
    Json list = Json::array();
    const auto add = [&](const std::string& structure, bool is_8x8, int64_t weights, double exact,
                         double paper) {
      table.add({structure, is_8x8 ? count_text(exact) : "-", is_8x8 ? count_text(paper) : "-",
                 bits(exact, weights), bits(paper, weights)});
      list.push_back(
          {{"structure", structure}, {"weights", weights}, {"log2", exact}, {"log2_paper", paper}});
    };
    const double half = weft::diversity({8, 8, 1}, Pattern(4, 8)).log2_unstructured;
    add("unstructured 50%", true, 64, half, half);
    for (const PaperBlock& block : paper_blocks()) {
      const std::string text = block.pattern.str();
      const Diversity& counted = block.counted;
      add(text, block.side == 8, counted.weights, counted.log2_nm, counted.log2_nm);
      add(fmt::format("{} transposable", text), block.side == 8, counted.weights,
          counted.log2_transposable, counted.log2_transposable_paper);
    }
    if (common_.json) {
      print_json(list);
    } else {
      tables_.print(table);
    }
    return 0;
  }

  std::string pattern_, shape_, checkpoint_;
  TensorTableFlags tables_;
  CommonFlags common_;
  NameFilter names_;
  Diversity total_;
  std::vector<Skipped> skipped_;
  size_t all_tensors_ = 0;
};

}  // namespace

CommandEntry diversity_command() {
  return {
      "diversity", "Count the masks that a structure admits",
      "  weft diversity                                  the table of the paper, counted exactly\n"
      "  weft diversity --pattern 4:8 --shape 8x8\n"
      "  weft diversity --pattern 2:4 --checkpoint model.safetensors --json\n"
      "\n"
      "Figures are log2, so that they add up over layers. The paper's formula for transposable\n"
      "masks is not exact; docs/masks.md gives its error and the consequences.",
      std::make_unique<DiversityCommand>()};
}

}  // namespace weft::cli
