// Data (weft/data): what is read, what is refused, and that nothing depends on threads.
#include "weft/data/data.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/scratch_folder.h"
#include "tests/support.h"
#include "weft/core/parallel.h"
#include "weft/core/rng.h"
#include "weft/data/checksum.h"
#include "weft/data/cifar10.h"
#include "weft/data/glyph_strokes.h"
#include "weft/data/idx.h"

namespace weft {
namespace {

using test::contains;
using test::message_of;
using test::put;
using test::ScratchFolder;

namespace fs = std::filesystem;

std::string word(uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16),
          static_cast<char>(value >> 8), static_cast<char>(value)};
}

std::string gzip(const std::string& text) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string packed(deflateBound(&stream, text.size()), '\0');
  std::string input = text;
  stream.next_in = reinterpret_cast<Bytef*>(input.data());
  stream.avail_in = static_cast<uInt>(input.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

// Labels 0 1 2 0 1 2 ..., pixels that count up.
std::string idx_labels(uint32_t count) {
  std::string text = word(0x801) + word(count);
  for (uint32_t i = 0; i < count; ++i) text += static_cast<char>(i % 3);
  return text;
}
std::string idx_images(uint32_t count, uint32_t height, uint32_t width) {
  std::string text = word(0x803) + word(count) + word(height) + word(width);
  for (uint32_t i = 0; i < count * height * width; ++i) text += static_cast<char>(i);
  return text;
}

void put_idx(const fs::path& folder) {
  put(folder / "train-images-idx3-ubyte", idx_images(7, 3, 2));
  put(folder / "train-labels-idx1-ubyte", idx_labels(7));
  put(folder / "t10k-images-idx3-ubyte", idx_images(4, 3, 2));
  put(folder / "t10k-labels-idx1-ubyte", idx_labels(4));
}

// The message after one file of a sound folder was replaced.
std::string idx_message(const std::string& name, const std::string& bytes) {
  const ScratchFolder scratch;
  put_idx(scratch.path());
  if (name.ends_with(".gz")) fs::remove(scratch / name.substr(0, name.size() - 3));
  put(scratch / name, bytes);
  return message_of([&] { read_idx(scratch.path()); });
}

void expect_idx_refusal(const std::string& name, const std::string& bytes,
                        const std::string& reason) {
  const std::string message = idx_message(name, bytes);
  EXPECT_TRUE(contains(message, name) && contains(message, reason)) << message;
  EXPECT_FALSE(contains(message, "\n")) << message;
}

TEST(Idx, ReadsPlainAndGzip) {
  const ScratchFolder scratch;
  put_idx(scratch.path());
  const ImageData plain = read_idx(scratch.path());
  EXPECT_EQ(plain.train.count, 7);
  EXPECT_EQ(plain.train.channels, 1);
  EXPECT_EQ(plain.train.height, 3);
  EXPECT_EQ(plain.train.width, 2);
  EXPECT_EQ(plain.train.classes, 3);
  EXPECT_EQ(plain.test.classes, 3);
  EXPECT_EQ(plain.test.count, 4);
  EXPECT_EQ(plain.train.labels, (std::vector<uint8_t>{0, 1, 2, 0, 1, 2, 0}));
  EXPECT_EQ(plain.train.image(6)[5], 41);
  EXPECT_FLOAT_EQ(plain.normalisation.mean[0], 20.5f / 255);

  for (const std::string name : {"train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"}) {
    put(scratch / (name + ".gz"), gzip(test::contents(scratch / name)));
    fs::remove(scratch / name);
  }
  const ImageData packed = read_idx(scratch.path());
  EXPECT_EQ(packed.train.pixels, plain.train.pixels);
  EXPECT_EQ(packed.test.labels, plain.test.labels);

  // Members one after the other are one stream.
  const std::string labels = idx_labels(4);
  put(scratch / "t10k-labels-idx1-ubyte.gz", gzip(labels.substr(0, 5)) + gzip(labels.substr(5)));
  EXPECT_EQ(read_idx(scratch.path()).test.labels, plain.test.labels);
}

TEST(Idx, RefusesFilesThatDoNotFit) {
  const std::string images = idx_images(7, 3, 2), labels = idx_labels(7);
  const std::string images_name = "train-images-idx3-ubyte",
                    labels_name = "train-labels-idx1-ubyte";
  expect_idx_refusal(images_name, "", "truncated");
  expect_idx_refusal(images_name, images.substr(0, 11), "truncated");
  expect_idx_refusal(images_name, images.substr(0, images.size() - 1), "should have 58");
  expect_idx_refusal(images_name, images + "x", "should have 58");
  expect_idx_refusal(images_name, labels, "0x00000803");
  expect_idx_refusal(images_name, gzip(images), "begins with 0x1f8b");
  expect_idx_refusal(images_name, word(0x803) + word(0) + word(3) + word(2), "at least one");
  const std::string huge = word(0x803) + word(~0u);
  expect_idx_refusal(images_name, huge + word(~0u) + word(~0u), "1 to 4096");
  expect_idx_refusal(images_name, huge + word(4096) + word(4096), "should have 72057594021150736");
  expect_idx_refusal(labels_name, idx_labels(6), "6 labels");
  expect_idx_refusal(labels_name, labels.substr(0, 14), "should have 15");
  expect_idx_refusal(labels_name, word(0x801) + word(7) + "\1\2\3\1\2\3\377",
                     "no image has label 4");
  expect_idx_refusal("t10k-images-idx3-ubyte", idx_images(4, 2, 3), "2x3");
  expect_idx_refusal("t10k-labels-idx1-ubyte", word(0x801) + word(4) + "\1\2\3\1",
                     "image 2 has label 3");
}

TEST(Idx, CountsClassesFromOneAsTheLettersOfEmnist) {
  EXPECT_EQ(idx_message("train-labels-idx1-ubyte", word(0x801) + word(7) + "\1\2\3\1\2\3\1"),
            "(no Error)");
}

TEST(Idx, RefusesBrokenGzip) {
  const std::string name = "train-images-idx3-ubyte.gz";
  const std::string images = idx_images(7, 3, 2), packed = gzip(images);
  ASSERT_EQ(idx_message(name, packed), "(no Error)");
  for (size_t size = 0; size < packed.size(); ++size) {
    expect_idx_refusal(name, packed.substr(0, size), "truncated");
  }
  std::string flipped = packed;
  flipped[packed.size() - 6] ^= 1;  // of the checksum
  expect_idx_refusal(name, flipped, "incorrect data check");
  expect_idx_refusal(name, images, "not a valid gzip file");
  expect_idx_refusal(name, packed + "x", "truncated");
  expect_idx_refusal(name, packed + "some text", "not a valid gzip file");
  expect_idx_refusal(name, gzip(images + "x"), "trailing bytes");
  expect_idx_refusal(name, gzip(images.substr(0, 50)), "truncated");
  const std::string header = word(0x803) + word(~0u) + word(4096) + word(4096);
  expect_idx_refusal(name, gzip(header), "more than the file can hold");
  // 4 MB of zeros in 4 kB: may be what it says, and is not.
  expect_idx_refusal(
      name,
      gzip(header.substr(0, 4) + word(1) + word(1) + word(1) + std::string(size_t{1} << 22, '\0')),
      "trailing bytes");
}

TEST(Idx, SurvivesAnyByteChanged) {
  const std::string packed = gzip(idx_images(7, 3, 2)), plain = idx_images(7, 3, 2);
  const Rng rng(test::test_seed());
  for (uint64_t draw = 0; draw < 300; ++draw) {
    const bool zipped = draw % 2 == 0;
    std::string bytes = zipped ? packed : plain;
    bytes[rng.below(2 * draw, bytes.size())] ^= static_cast<char>(1 + rng.below(2 * draw + 1, 255));
    // An Error or a sound set, never anything else.
    const std::string name = zipped ? "train-images-idx3-ubyte.gz" : "train-images-idx3-ubyte";
    const std::string message = idx_message(name, bytes);
    EXPECT_TRUE(message == "(no Error)" || contains(message, "images-idx3-ubyte")) << message;
  }
}

TEST(Idx, NamesWhatIsMissing) {
  const ScratchFolder scratch;
  put_idx(scratch.path());
  fs::remove(scratch / "t10k-labels-idx1-ubyte");
  EXPECT_EQ(message_of([&] { read_idx(scratch.path()); }),
            (scratch / "t10k-labels-idx1-ubyte").string() +
                ": no such file, nor t10k-labels-idx1-ubyte.gz");
  fs::create_directory(scratch / "t10k-labels-idx1-ubyte");
  EXPECT_TRUE(contains(message_of([&] { read_idx(scratch.path()); }), "not a regular file"));
}

std::string cifar_records(int records, int first_label) {
  std::string text;
  for (int i = 0; i < records; ++i) {
    text += static_cast<char>((first_label + i) % 10);
    for (int pixel = 0; pixel < 3072; ++pixel) text += static_cast<char>(pixel / 1024 * 100 + i);
  }
  return text;
}

TEST(Cifar10, ReadsRecordsAndRefusesOthers) {
  const ScratchFolder scratch;
  for (int batch = 1; batch <= 5; ++batch) {
    put(scratch / ("data_batch_" + std::to_string(batch) + ".bin"), cifar_records(3, batch));
  }
  put(scratch / "test_batch.bin", cifar_records(3, 7));
  const auto message = [&] { return message_of([&] { read_cifar10(scratch.path(), 3); }); };
  const ImageData data = read_cifar10(scratch.path(), 3);
  EXPECT_EQ(data.train.count, 15);
  EXPECT_EQ(data.train.channels, 3);
  EXPECT_EQ(data.train.classes, 10);
  EXPECT_EQ(data.train.labels[14], 7);
  EXPECT_EQ(data.test.labels, (std::vector<uint8_t>{7, 8, 9}));
  EXPECT_EQ(data.train.image(14)[1024], 102);
  EXPECT_FLOAT_EQ(data.normalisation.mean[2], 201.0f / 255);

  EXPECT_TRUE(contains(message_of([&] { read_cifar10(scratch.path()); }), "data_batch_1.bin"));
  std::string bad = cifar_records(3, 4);
  bad[3073] = 10;
  put(scratch / "data_batch_4.bin", bad);
  EXPECT_TRUE(contains(message(), "data_batch_4.bin: record 1 has label 10")) << message();
  put(scratch / "data_batch_4.bin", bad.substr(1));
  EXPECT_TRUE(contains(message(), "data_batch_4.bin: the file has 9218 bytes")) << message();
  put(scratch / "data_batch_4.bin", cifar_records(2, 4));
  EXPECT_TRUE(contains(message(), "data_batch_4.bin")) << message();
  fs::remove(scratch / "data_batch_4.bin");
  EXPECT_TRUE(contains(message(), "data_batch_4.bin: cannot open: No such file")) << message();
}

std::string text_of(const TextSet& text) { return {text.bytes.begin(), text.bytes.end()}; }

TEST(Text, ReadsAFileAndCutsOffATenth) {
  const ScratchFolder scratch;
  put(scratch / "a.txt", "0123456789abcdefghijXYZ");
  const TextData data = read_text(scratch / "a.txt");
  EXPECT_EQ(text_of(data.train), "0123456789abcdefghijX");
  EXPECT_EQ(text_of(data.test), "YZ");
  EXPECT_EQ(data.train.windows(4), 5);
  EXPECT_EQ(data.train.windows(21), 0);
  const auto window = data.train.window(4, 4);
  EXPECT_EQ(std::string(window.begin(), window.end()), "ghijX");
  EXPECT_TRUE(contains(message_of([&] { data.train.window(5, 4); }), "it has 5"));
  EXPECT_EQ(TextSet().windows(4), 0);
}

TEST(Text, ReadsAFolderInTheOrderOfPaths) {
  const ScratchFolder scratch;
  fs::create_directories(scratch / "b/c");
  put(scratch / "z", "ZZZZZZZZZZZZ");
  put(scratch / "b/c/d", "dddd");
  put(scratch / "b/a.gz", "aaaa");  // as bytes, whatever the name says
  fs::create_symlink(scratch.path(), scratch / "b/loop");
  fs::create_symlink(scratch / "nowhere", scratch / "b/broken");
  ASSERT_EQ(::mkfifo((scratch / "b/pipe").c_str(), 0600), 0);
  const TextData data = read_text(scratch.path());
  EXPECT_EQ(text_of(data.train) + text_of(data.test), "aaaaddddZZZZZZZZZZZZ");
  EXPECT_EQ(text_of(data.test), "ZZ");
}

TEST(Text, RefusesWhatIsNoText) {
  const ScratchFolder scratch;
  put(scratch / "short", "123456789");
  EXPECT_TRUE(contains(message_of([&] { read_text(scratch / "short"); }), "short: a text of 9"));
  EXPECT_TRUE(contains(message_of([&] { read_text(scratch / "none"); }), "none: cannot open"));
  fs::create_directory(scratch / "empty");
  EXPECT_TRUE(contains(message_of([&] { read_text(scratch / "empty"); }), "has no files"));
  ASSERT_EQ(::mkfifo((scratch / "pipe").c_str(), 0600), 0);
  EXPECT_TRUE(contains(message_of([&] { read_text(scratch / "pipe"); }), "not a regular file"));
  put(scratch / "sparse", "");
  fs::resize_file(scratch / "sparse", kMostTextBytes + 1);
  EXPECT_TRUE(contains(message_of([&] { read_text(scratch / "sparse"); }), "more than the"));
  // Names of files are from outside too.
  fs::rename(scratch / "sparse", scratch / "two\nlines");
  const std::string message = message_of([&] { read_text(scratch / "two\nlines"); });
  EXPECT_TRUE(contains(message, "two\\nlines")) << message;
}

TEST(Text, TakesTheHeadersOfTheHighestVersion) {
  const ScratchFolder scratch;
  for (const char* name : {"9", "12", "v1", "backward"}) fs::create_directory(scratch / name);
  put(scratch / "13", "not a folder");
  EXPECT_EQ(default_text_path(scratch.path()), scratch / "12");
  EXPECT_TRUE(contains(message_of([&] { default_text_path(scratch / "v1"); }), "text:PATH"));
}

// zlib begins again when it is given a null pointer, which empty vectors have.
TEST(Checksum, AnEmptyPieceChangesNothing) {
  const std::string text = "weights";
  const uint32_t sum = weft::checksum(0, std::as_bytes(std::span(text)));
  EXPECT_EQ(sum, 0x1ad27358u);  // as Python's zlib.crc32(b"weights")
  EXPECT_EQ(weft::checksum(sum, {}), sum);
  EXPECT_EQ(weft::checksum(sum, std::as_bytes(std::span(text).first(0))), sum);
  EXPECT_EQ(weft::checksum(0, {}), 0u);
}

uint64_t checksum(std::span<const uint8_t> bytes) {  // FNV-1a
  uint64_t hash = 0xcbf29ce484222325;
  for (const uint8_t byte : bytes) hash = (hash ^ byte) * 0x100000001b3;
  return hash;
}

TEST(Glyphs, AreTheSameForAnyNumberOfThreads) {
  const int before = threads();
  set_threads(1);
  const ImageData one = make_glyphs({test::test_seed(), 300, 60});
  set_threads(4);
  const ImageData four = make_glyphs({test::test_seed(), 300, 60});
  set_threads(before);
  EXPECT_EQ(one.train.pixels, four.train.pixels);
  EXPECT_EQ(one.train.labels, four.train.labels);
  EXPECT_EQ(one.test.pixels, four.test.pixels);
  EXPECT_EQ(one.normalisation.mean, four.normalisation.mean);
  EXPECT_EQ(one.normalisation.sd, four.normalisation.sd);

  // An image depends on its own number only.
  std::vector<uint8_t> pixels(784);
  EXPECT_EQ(draw_glyph(test::test_seed(), Split::kTest, 59, pixels), one.test.labels[59]);
  EXPECT_TRUE(std::ranges::equal(pixels, one.test.image(59)));
}

TEST(Glyphs, AreTheSameOnEveryMachine) {
  const ImageData data = make_glyphs({1, 64, 32});
  EXPECT_EQ(checksum(data.train.pixels), 8669073999259071921u);
  EXPECT_EQ(checksum(data.train.labels), 13821069341412960763u);
  EXPECT_EQ(checksum(data.test.pixels), 15213326996245310288u);
}

TEST(Glyphs, AreAllDifferentAndOfEveryClass) {
  const ImageData data = make_glyphs({test::test_seed(), 2000, 2000});
  std::set<uint64_t> images;
  std::vector<int> counts(16);
  for (const ImageSet* set : {&data.train, &data.test}) {
    EXPECT_EQ(set->classes, 16);
    for (int64_t i = 0; i < set->count; ++i) {
      images.insert(checksum(set->image(i)));
      ++counts.at(set->labels[static_cast<size_t>(i)]);
    }
  }
  const ImageData other = make_glyphs({test::test_seed() + 1, 100, 100});
  for (int64_t i = 0; i < 100; ++i) images.insert(checksum(other.train.image(i)));
  EXPECT_EQ(images.size(), 4100u);
  // 250 each, of standard deviation 15.
  EXPECT_GT(*std::min_element(counts.begin(), counts.end()), 170);
  EXPECT_LT(*std::max_element(counts.begin(), counts.end()), 330);
}

TEST(Glyphs, StrokesStayInTheirBox) {
  for (int glyph = 0; glyph < static_cast<int>(kGlyphNames.size()); ++glyph) {
    EXPECT_GE(glyph_strokes(glyph).size(), 2u);
    for (const GlyphStroke& stroke : glyph_strokes(glyph)) {
      for (const GlyphPoint& p : {stroke.from, stroke.bend, stroke.to}) {
        EXPECT_TRUE(p.x >= 0 && p.x <= kGlyphBoxWidth && p.y >= 0 && p.y <= kGlyphBoxHeight)
            << kGlyphNames[static_cast<size_t>(glyph)];
      }
    }
  }
}

TEST(Glyphs, RefuseOptionsThatMakeNoSense) {
  EXPECT_TRUE(contains(message_of([] { make_glyphs({1, 0, 5}); }), "0 glyphs"));
  EXPECT_TRUE(contains(message_of([] { make_glyphs({1, int64_t{1} << 60, 5}); }), "1 to 16777216"));
}

TEST(ImageSet, NormalisesBatches) {
  ImageSet set{3, 2, 1, 2, 4, {0, 255, 7, 7, 255, 0, 7, 7, 0, 255, 7, 7}, {3, 1, 0}};
  const Normalisation normalisation = normalisation_of(set);
  EXPECT_FLOAT_EQ(normalisation.mean[0], 0.5f);
  EXPECT_FLOAT_EQ(normalisation.sd[0], 0.5f);
  EXPECT_FLOAT_EQ(normalisation.mean[1], 7.0f / 255);
  EXPECT_EQ(normalisation.sd[1], 1.0f) << "a constant channel";
  std::vector<float> pixels(8);
  std::vector<int64_t> labels(2);
  fill_batch(set, normalisation, std::vector<int64_t>{2, 1}, pixels, labels);
  EXPECT_EQ(labels, (std::vector<int64_t>{0, 1}));
  const std::vector<float> expected = {-1, 1, 0, 0, 1, -1, 0, 0};
  for (size_t i = 0; i < 8; ++i) EXPECT_NEAR(pixels[i], expected[i], 1e-6) << i;

  const auto message = [&](const std::vector<int64_t>& indices) {
    return message_of([&] { fill_batch(set, normalisation, indices, pixels, labels); });
  };
  EXPECT_TRUE(contains(message({0, 3}), "image 3: the set has 3"));
  EXPECT_TRUE(contains(message({-1, 0}), "image -1"));
  EXPECT_TRUE(contains(message({0}), "room for 8 pixels"));
  set.labels.pop_back();
  EXPECT_TRUE(contains(message({0, 1}), "2 labels"));
}

TEST(SampleOrder, IsAPermutationThatRepeats) {
  for (const int64_t count : {1, 2, 3, 100, 1001}) {
    const std::vector<int64_t> order = epoch_order(test::test_seed(), 4, count);
    EXPECT_EQ(order, epoch_order(test::test_seed(), 4, count));
    std::vector<int64_t> sorted = order;
    std::sort(sorted.begin(), sorted.end());
    for (int64_t i = 0; i < count; ++i) ASSERT_EQ(sorted[static_cast<size_t>(i)], i) << count;
  }
  EXPECT_NE(epoch_order(1, 4, 100), epoch_order(1, 5, 100));
  EXPECT_NE(epoch_order(1, 4, 100), epoch_order(2, 4, 100));
  EXPECT_EQ(epoch_order(1, 0, 8), (std::vector<int64_t>{6, 0, 5, 1, 2, 3, 4, 7}));
}

TEST(SampleOrder, DrawsEveryPermutationAsOften) {
  std::map<std::vector<int64_t>, int> counts;
  for (int64_t epoch = 0; epoch < 6000; ++epoch) ++counts[epoch_order(test::test_seed(), epoch, 3)];
  ASSERT_EQ(counts.size(), 6u);
  for (const auto& [order, count] : counts) EXPECT_NEAR(count, 1000, 150);  // 5 sd
}

TEST(SampleOrder, ResumesAtAnyPosition) {
  SampleOrder through(test::test_seed(), 10);
  const std::vector<int64_t> all = through.batch(0, 47);
  for (int64_t position = 46; position >= 0; --position) {
    SampleOrder fresh(test::test_seed(), 10);
    const int64_t size = std::min<int64_t>(13, 47 - position);
    const std::vector<int64_t> expected(all.begin() + position, all.begin() + position + size);
    EXPECT_EQ(fresh.batch(position, size), expected) << position;
    EXPECT_EQ(through.batch(position, size), expected) << position;
  }
  EXPECT_EQ(std::set<int64_t>(all.begin() + 20, all.begin() + 30).size(), 10u);
  EXPECT_TRUE(contains(message_of([&] { through.batch(-1, 2); }), "position -1"));
  EXPECT_TRUE(contains(message_of([] { SampleOrder(1, 0); }), "at least one"));
}

TEST(DataSpec, IsParsedAndPrinted) {
  for (const char* text : {"glyphs", "idx:some/where", "cifar10:/a:b", "text:x y", "text"}) {
    EXPECT_EQ(DataSpec::parse(text).to_string(), text);
  }
  EXPECT_EQ(DataSpec::parse("idx:a").kind, DataKind::kIdx);
  EXPECT_EQ(DataSpec::parse("cifar10:/a:b").path, "/a:b");
  for (const char* text :
       {"", "mnist", "Glyphs", "glyphs:3", "idx", "idx:", "cifar10", "text:", ":a", "idx\n:a"}) {
    const std::string message = message_of([&] { DataSpec::parse(text); });
    EXPECT_TRUE(contains(message, "known are glyphs, idx:DIR, cifar10:DIR, text:PATH")) << message;
    EXPECT_FALSE(contains(message, "\n")) << message;
  }
}

TEST(LoadData, ReachesEveryKind) {
  const ScratchFolder scratch;
  put_idx(scratch.path());
  const std::string folder = scratch.path().string();
  EXPECT_EQ(std::get<ImageData>(load_data(DataSpec::parse("idx:" + folder))).train.count, 7);
  EXPECT_EQ(std::get<ImageData>(load_data({}, {1, 20, 10})).test.count, 10);
  EXPECT_FALSE(
      std::get<TextData>(load_data(DataSpec::parse("text:" + folder))).train.bytes.empty());
  const std::string message = message_of([&] { load_data(DataSpec::parse("cifar10:" + folder)); });
  EXPECT_TRUE(contains(message, "data_batch_1.bin")) << message;
}

}  // namespace
}  // namespace weft
