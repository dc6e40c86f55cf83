#include "weft/report/page_sections.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "weft/core/text.h"
#include "weft/report/axis.h"
#include "weft/report/curves.h"
#include "weft/report/mask_picture.h"
#include "weft/run/repeat_command.h"

namespace weft {
namespace {

constexpr uint32_t kMaskColour = 0x3f83c8;  // seen on white and on black

Html name_cell(const Variant& variant) { return html("{}{}", swatch(variant.style), variant.name); }

struct MeanAndSpread {
  double mean = std::nan("");
  double sd = 0.0;  // of the sample; 0 for one value
  size_t count = 0;
};

MeanAndSpread spread_of(const std::vector<double>& values) {
  MeanAndSpread found{0.0, 0.0, values.size()};
  const auto count = static_cast<double>(values.size());
  for (const double value : values) found.mean += value / count;
  for (const double value : values) found.sd += (value - found.mean) * (value - found.mean);
  found.sd = values.size() > 1 ? std::sqrt(found.sd / (count - 1)) : 0.0;
  if (values.empty()) found.mean = std::nan("");
  return found;
}

template <typename Figure>
MeanAndSpread over_finished(const Variant& variant, Figure figure) {
  std::vector<double> values;
  for (const ReportedRun* run : variant.runs) {
    if (run->result) values.push_back(figure(*run->result));
  }
  return spread_of(values);
}

std::string with_spread(const MeanAndSpread& value, double scale, int decimals) {
  if (value.count == 0) return "–";
  std::string text = fmt::format("{:.{}f}", scale * value.mean, decimals);
  if (value.count > 1) text += fmt::format(" ± {:.{}f}", scale * value.sd, decimals);
  return text;
}

std::string state_of(const ReportedRun& run) {
  if (run.result) return fmt::format("{} steps", run.result->eval.step);
  return fmt::format("unfinished: {} of {} steps{}", run.last_step(), run.options.steps,
                     run.diverged() ? ", the loss is not finite" : "");
}

std::string speed_text(const Variant& variant) {
  if (!variant.speed) return "–";
  std::string text = fmt::format("{:.2f}", variant.speed->ratio);
  if (variant.speed->low < variant.speed->high) {
    text += fmt::format(" ({:.2f} to {:.2f})", variant.speed->low, variant.speed->high);
  }
  return text;
}

std::string products_of(const Variant& variant) {
  for (const ReportedRun* run : variant.runs) {
    if (run->result) return run->result->products.empty() ? "none" : run->result->products;
  }
  return "–";
}

// The highest mean accuracy of the finished variants of a kind: its variant, if there is one.
const Variant* best_of(const std::vector<Variant>& variants, bool dense, MeanAndSpread& most) {
  const Variant* best = nullptr;
  for (const Variant& variant : variants) {
    if (variant.dense != dense) continue;
    const auto found = over_finished(variant, [](const RunResult& r) { return r.eval.accuracy; });
    if (found.count == 0 || (best != nullptr && !(found.mean > most.mean))) continue;
    best = &variant;
    most = found;
  }
  return best;
}

// "Test accuracy: 53.80 ± 0.99 % (dense); best sparse variant: 50.90 ± 1.98 % (sr-ste 2:4)."
std::string headline_of(const std::vector<Variant>& variants) {
  std::string text;
  for (const bool dense : {true, false}) {
    MeanAndSpread most;
    const Variant* best = best_of(variants, dense, most);
    if (best == nullptr) continue;
    text += fmt::format("{}{} % ({})", text.empty() ? "Test accuracy: " : "; best sparse variant: ",
                        with_spread(most, 100.0, 2), best->name);
  }
  return text.empty() ? "No run has finished." : text + ".";
}

const char* choice_class(const std::string& choice) {
  return choice == "sparse" ? "sparse" : "quiet";
}

Html choice_cell(const ReportedLayer& layer, std::string_view product) {
  for (const ReportedProduct& one : layer.products) {
    if (!std::string_view(one.name).starts_with(product)) continue;
    return html("<span class=\"{}\">{}</span>", choice_class(one.choice), one.choice);
  }
  return {};
}

Html figure_cell(const Json& layers, const std::string& layer, std::string_view figure) {
  if (!layers.contains(layer) || !layers[layer].contains(figure)) return {};
  const Json& value = layers[layer][figure];
  return html("{}", value.is_number() ? figure_text(value.get<double>(), 3) : "–");
}

Html layers_table(const ReportedRun& run) {
  HtmlTable table(fmt::format("Layers of {}", run.name),
                  {"layer", "kind", "recipe", "pattern", "fwd", "bwd_x", "bwd_w", ">density",
                   ">flip rate", ">retained", "recipe chosen by"});
  for (const ReportedLayer& layer : run.layers) {
    table.add({html("{}", layer.name), html("{}", layer.kind), html("{}", layer.recipe),
               html("{}", layer.pattern.empty() ? "–" : layer.pattern), choice_cell(layer, "fwd"),
               choice_cell(layer, "bwd_x"), choice_cell(layer, "bwd_w"),
               figure_cell(run.last_layers, layer.name, "density"),
               figure_cell(run.last_layers, layer.name, "flip_rate"),
               figure_cell(run.last_layers, layer.name, "retained"), html("{}", layer.reason)});
  }
  return table.html();
}

Html choices_table(const ReportedRun& run) {
  HtmlTable table(fmt::format("The planner's choices in {}", run.name),
                  {"layer", "product", "choice", "why"});
  for (const ReportedLayer& layer : run.layers) {
    for (const ReportedProduct& product : layer.products) {
      table.add({html("{}", layer.name), html("{}", product.name),
                 html("<span class=\"{}\">{}</span>", choice_class(product.choice), product.choice),
                 html("{}", product.reason)});
    }
  }
  if (table.empty()) return {};
  return html("<details><summary>Why each product is dense or sparse</summary>\n{}</details>\n",
              table.html());
}

Html mask_figure(const MaskPicture& picture) {
  // Small ones larger, by a whole number, so that pixels stay square.
  const int scale = std::max(1, 192 / std::max(picture.bitmap.width, picture.bitmap.height));
  const std::string size = picture.taps == 1
                               ? fmt::format("{} outputs × {} inputs", picture.outs, picture.ins)
                               : fmt::format("{} outputs × {} inputs × {} taps", picture.outs,
                                             picture.ins, picture.taps);
  const std::string drawn =
      picture.is_whole()
          ? "whole"
          : fmt::format("an even sample of {} × {}", picture.bitmap.height, picture.bitmap.width);
  const std::string pattern =
      picture.pattern.str() + (picture.axis == "both" ? ", along both axes" : "");
  return html(
      "<figure><img src=\"{}\" width=\"{}\" height=\"{}\" alt=\"Mask of {}, {}: {} of the weights "
      "drawn are kept\">\n<figcaption><b>{}</b><br>{}, {} kept<br>{}, {}</figcaption></figure>\n",
      Html::trusted(data_uri(png_of(picture.bitmap, kMaskColour))), picture.bitmap.width * scale,
      picture.bitmap.height * scale, picture.tensor, pattern, share_text(picture.density()),
      picture.tensor, pattern, share_text(picture.density()), size, drawn);
}

// The first run of a variant that has a model, else the first.
const ReportedRun& shown_run(const Variant& variant) {
  for (const ReportedRun* run : variant.runs) {
    if (run->result) return *run;
  }
  return *variant.runs.front();
}

Html masks_of(const ReportedRun& run) {
  std::error_code failure;
  if (!run.result || !std::filesystem::exists(run.folder / "model.safetensors", failure)) {
    return html("<p class=\"note\">No masks: the run has no model yet.</p>\n");
  }
  Html pictures;
  for (const MaskPicture& picture : mask_pictures(run.folder / "model.safetensors")) {
    pictures += mask_figure(picture);
  }
  if (pictures.empty()) {
    return html("<p class=\"note\">No masks: the model ends with dense weights.</p>\n");
  }
  return html(
      "<p class=\"note\">The masks of {}: a pixel per weight, blue if it is kept; a row per "
      "output.</p>\n<div class=\"masks\">\n{}</div>\n",
      run.name, pictures);
}

}  // namespace

PageSection summary_section(const std::vector<Variant>& variants) {
  HtmlTable table("Variants: runs that differ in the seed alone",
                  {"variant", ">runs", ">test accuracy, %", ">test loss", ">density",
                   ">step vs dense", ">ms per step", ">flip rate", "sparse products"});
  bool compared = false, spread = false;
  for (const Variant& variant : variants) {
    compared |= variant.speed.has_value();
    spread |= variant.runs.size() > 1;
    const auto accuracy = over_finished(variant, [](const auto& r) { return r.eval.accuracy; });
    const auto loss = over_finished(variant, [](const auto& r) { return r.eval.loss; });
    const auto density = over_finished(variant, [](const auto& r) { return r.density; });
    const auto ms = over_finished(variant, [](const auto& r) { return 1e3 * r.step_seconds; });
    const auto flips = over_finished(variant, [](const auto& r) { return r.flip_rate; });
    table.add({name_cell(variant), html("{}", variant.runs.size()),
               html("{}", with_spread(accuracy, 100.0, 2)), html("{}", with_spread(loss, 1.0, 4)),
               html("{}", density.count ? fmt::format("{:.3f}", density.mean) : "–"),
               html("{}", speed_text(variant)), html("{}", figure_text(ms.mean, 3)),
               html("{}", variant.dense || flips.count == 0 ? "–" : figure_text(flips.mean, 2)),
               html("{}", products_of(variant))});
  }
  Html body = html("<p>{}</p>\n", headline_of(variants));
  body += table.html();
  std::string notes = "Accuracy and loss are those of the test data at the end of finished runs";
  notes += spread ? ", mean ± standard deviation over the seeds. " : ". ";
  if (compared) {
    notes +=
        "Step vs dense: time of the dense runs / time of these, in turns in one process, with "
        "its range over the seeds; above 1 is faster than dense. ";
  }
  notes +=
      "ms per step: the median of a run. Flip rate: mask bits that change in a step, per "
      "weight, mean over the sparse phase.";
  body += html("<p class=\"note\">{}</p>\n", notes);
  return {"summary", "Summary", body};
}

PageSection curves_section(const std::vector<Variant>& variants) {
  Html charts;
  for (const LineChart& chart : curves_of(variants)) charts += figure_of(chart);
  if (charts.empty()) return {"curves", "Curves", {}};
  return {
      "curves", "Curves",
      html("<p class=\"note\">Seconds are those of training steps, without evaluations. Legends "
           "give the last figure.</p>\n<div class=\"charts\">\n{}</div>\n",
           charts)};
}

PageSection time_section(const std::vector<Variant>& variants) {
  const BarChart chart = step_times_of(variants);
  if (chart.rows.empty()) return {"time", "Time of a step", {}};
  return {"time", "Time of a step", html("<div class=\"charts\">\n{}</div>\n", figure_of(chart))};
}

PageSection layers_section(const std::vector<Variant>& variants) {
  Html body;
  bool open = true;  // the first sparse variant
  for (const Variant& variant : variants) {
    const ReportedRun& run = shown_run(variant);
    if (variant.dense || run.layers.empty()) continue;
    const auto sparse = std::ranges::count_if(
        run.layers, [](const ReportedLayer& layer) { return !layer.pattern.empty(); });
    body += html("<details{}><summary>{}{}: {} of {} layers sparse</summary>\n{}{}{}</details>\n",
                 Html::trusted(open ? " open" : ""), swatch(variant.style), variant.name, sparse,
                 run.layers.size(), layers_table(run), choices_table(run), masks_of(run));
    open = false;
  }
  if (body.empty()) return {"layers", "Layers and masks", {}};
  const char* about =
      "fwd, bwd_x, bwd_w: whether the planner chose dense or sparse products. Density, flip rate "
      "and "
      "retained magnitude (share of Σ|w| kept) are the last that the run measured.";
  return {"layers", "Layers and masks", html("<p class=\"note\">{}</p>\n{}", about, body)};
}

PageSection runs_section(const std::vector<Variant>& variants) {
  HtmlTable table("Runs", {"run", "variant", ">seed", "state", ">test accuracy, %", ">test loss",
                           ">training, s", ">ms per step", ">peak memory, MB", ">model, MB"});
  for (const Variant& variant : variants) {
    for (const ReportedRun* run : variant.runs) {
      const std::optional<RunResult>& r = run->result;
      const auto figure = [&](auto value, double scale, const char* format) {
        return html("{}", r ? fmt::format(fmt::runtime(format), scale * value(*r)) : "–");
      };
      table.add(
          {html("{}", run->name), name_cell(variant), html("{}", run->options.seed),
           html("{}", state_of(*run)),
           figure([](const auto& v) { return v.eval.accuracy; }, 100.0, "{:.2f}"),
           figure([](const auto& v) { return v.eval.loss; }, 1.0, "{:.4f}"),
           html("{}", run->steps.empty() ? "–" : figure_text(run->steps.back().seconds, 3)),
           figure([](const auto& v) { return v.step_seconds; }, 1e3, "{:.3g}"),
           figure([](const auto& v) { return static_cast<double>(v.peak_bytes); }, 1e-6, "{:.0f}"),
           figure([](const auto& v) { return static_cast<double>(v.model_bytes); }, 1e-6,
                  "{:.3g}")});
    }
  }
  return {"runs", "Runs", table.html()};
}

PageSection environment_section(const std::vector<Variant>& variants) {
  // Runs by environment; nearly always there is one.
  std::vector<std::pair<std::map<std::string, std::string>, std::vector<std::string>>> found;
  for (const Variant& variant : variants) {
    for (const ReportedRun* run : variant.runs) {
      const auto same =
          std::ranges::find(found, run->environment, [](const auto& f) { return f.first; });
      if (same == found.end())
        found.push_back({run->environment, {run->name}});
      else
        same->second.push_back(run->name);
    }
  }
  Html body;
  for (const auto& [environment, names] : found) {
    HtmlTable table(found.size() == 1 ? "All runs" : fmt::format("{}", fmt::join(names, ", ")),
                    {"", "recorded by the run"});
    for (const auto& [name, value] : environment) {
      table.add({html("{}", name), html("{}", value)});
    }
    body += table.html();
  }
  body += html(
      "<p class=\"note\">isa: the instruction set of weft's kernels; dense_isa: that of the "
      "dense products.</p>\n");
  return {"environment", "Environment", body};
}

PageSection repeat_section(const std::vector<Variant>& variants) {
  Html list;
  for (const Variant& variant : variants) {
    for (const ReportedRun* run : variant.runs) {
      const Repetition found = repetition_of(
          run->folder, run->lambda ? with_lambda(run->options, *run->lambda) : run->options,
          run->changes);
      Html commands;
      for (const std::string& command : found.commands) commands += html("{}\n", command);
      list += html("<dt>{}</dt>\n", run->name);
      list += found.commands.empty()
                  ? html("<dd>No command repeats it: it was {}.</dd>\n", found.obstacle)
                  : html("<dd><pre><code>{}</code></pre></dd>\n", commands);
    }
  }
  return {"repeat", "Repeat a run",
          html("<p class=\"note\">With the choices of the run's planner: on the same "
               "machine, the same bits.</p>\n<dl>\n{}</dl>\n",
               list)};
}

}  // namespace weft
