// Files that must be refused: each with a weft::Error of one line that names the file, the tensor
// where one is at fault, and the problem. No crash, no hang, no other exception, no memory that the
// file does not back.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/scratch_folder.h"
#include "tests/support.h"
#include "weft/checkpoint/checkpoint.h"
#include "weft/checkpoint/safetensors.h"
#include "weft/core/error.h"
#include "weft/core/json.h"

namespace weft {
namespace {

using test::contents;
using test::names_in;
using test::put;
using test::ScratchFolder;

namespace fs = std::filesystem;
using Strings = std::vector<std::string>;

std::string repeated(const std::string& text, int times) {
  std::string result;
  for (int i = 0; i < times; ++i) result += text;
  return result;
}

std::string length_prefix(uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(length >> (8 * i));
  return bytes;
}

std::string safetensors(const std::string& json, size_t data_bytes) {
  return length_prefix(json.size()) + json + std::string(data_bytes, 'd');
}

// One tensor 'w' with these fields and `data_bytes` of data.
std::string with_fields(const std::string& fields, size_t data_bytes) {
  return safetensors("{\"w\":{" + fields + "}}", data_bytes);
}

std::string entry(const std::string& name, uint64_t begin, uint64_t end) {
  return fmt::format(R"("{}":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}})", name,
                     end - begin, begin, end);
}

std::string with_metadata(const std::string& metadata) {
  return safetensors("{\"__metadata__\":" + metadata + "," + entry("w", 0, 4) + "}", 4);
}

// A file with the tensor 'w' and this text as its weft.sparsity.
std::string with_sparsity(const std::string& plan) {
  return with_metadata(Json{{"weft.sparsity", plan}}.dump());
}

void read_tensors(const fs::path& path) {
  const Checkpoint checkpoint = Checkpoint::open(path);
  for (const ShardedTensor& tensor : checkpoint.tensors()) {
    std::vector<std::byte> bytes(tensor.info.bytes());
    checkpoint.read(tensor, 0, bytes);
  }
}

void read_all(const fs::path& path) {
  read_tensors(path);
  Checkpoint::open(path).sparsity();
}

void expect_one_line(const std::string& message) {
  EXPECT_TRUE(std::none_of(message.begin(), message.end(), [](unsigned char c) {
    return c < 0x20 || c == 0x7f;
  })) << message;
  EXPECT_LT(message.size(), 1000u) << message.substr(0, 2000);
}

void expect_refused(const fs::path& path, const Strings& words) {
  try {
    read_all(path);
    ADD_FAILURE() << "was accepted";
  } catch (const Error& error) {
    const std::string message = error.what();
    expect_one_line(message);
    for (const std::string& word : words) {
      EXPECT_NE(message.find(word), std::string::npos) << "no '" << word << "' in: " << message;
    }
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another exception than weft::Error: " << error.what();
  }
}

// ---- Single files

struct Malformed {
  std::string name;
  std::string bytes;
  Strings words;
};

std::string name_of(const ::testing::TestParamInfo<Malformed>& row) { return row.param.name; }
void PrintTo(const Malformed& row, std::ostream* out) { *out << row.name; }

class MalformedFile : public ::testing::TestWithParam<Malformed> {};

TEST_P(MalformedFile, IsRefusedInOneLineThatNamesFileAndProblem) {
  const ScratchFolder folder;
  put(folder / "bad.safetensors", GetParam().bytes);
  Strings words = GetParam().words;
  words.push_back((folder / "bad.safetensors").string() + ": ");
  expect_refused(folder / "bad.safetensors", words);
}

class MalformedPlan : public ::testing::TestWithParam<Malformed> {};

TEST_P(MalformedPlan, IsRefusedOnlyWhereItIsAskedFor) {
  const ScratchFolder folder;
  const fs::path path = folder / "bad.safetensors";
  put(path, GetParam().bytes);
  EXPECT_NO_THROW(read_tensors(path));
  Strings words = GetParam().words;
  words.push_back(path.string() + ": weft.sparsity");
  expect_refused(path, words);
}

const std::string kGood = R"("dtype":"F32","shape":[2,3],"data_offsets":[0,24])";
const std::string kDtypeShape = R"("dtype":"F32","shape":[2,3],)";

const std::vector<Malformed> kLengths = {
    {"EmptyFile", "", {"too short", "truncated"}},
    {"SevenBytes", std::string(7, '\0'), {"too short", "truncated"}},
    {"NoHeader", length_prefix(0), {"header does not begin with"}},
    {"HeaderPastTheEnd", length_prefix(3) + "{}", {"header length 3", "past the end"}},
    {"HeaderOfTwoToThe63", length_prefix(uint64_t{1} << 63) + "{}", {"9223372036854775808"}},
    {"HeaderOfAllOnes", std::string(8, '\xff') + "{}", {"header length 18446744073709551615"}},
    {"HeaderLongerThanAllowed", length_prefix(100'000'001) + "{}", {"header length 100000001"}},
    {"HeaderOf99999999",
     length_prefix(99'999'999) + "{}",
     {"header length 99999999", "past the end"}},
    {"DataTruncated", with_fields(kGood, 23), {"'w'", "truncated", "24", "23"}},
    {"DataMissing", with_fields(kGood, 0), {"'w'", "truncated"}},
    {"TrailingByte", with_fields(kGood, 25), {"1 trailing byte"}},
    {"TrailingBytesWithoutTensors", safetensors("{}", 5), {"5 trailing bytes"}},
};

const std::vector<Malformed> kPlaces = {
    {"BeginAfterEnd",
     with_fields(kDtypeShape + R"("data_offsets":[24,0])", 24),
     {"'w'", "after its end"}},
    {"Hole",
     safetensors("{" + entry("a", 0, 4) + "," + entry("w", 5, 8) + "}", 8),
     {"'w'", "hole"}},
    {"HoleAtTheFront", safetensors("{" + entry("w", 1, 4) + "}", 4), {"'w'", "hole"}},
    {"Overlap",
     safetensors("{" + entry("a", 0, 4) + "," + entry("w", 3, 8) + "}", 8),
     {"'w'", "overlap"}},
    {"SamePlaceTwice",
     safetensors("{" + entry("a", 0, 4) + "," + entry("w", 0, 4) + "}", 4),
     {"'w'", "overlap"}},
    {"OneInsideTheOther",
     safetensors("{" + entry("a", 0, 8) + "," + entry("w", 2, 4) + "}", 8),
     {"'w'", "overlap"}},
    {"EmptyInsideAnother",
     safetensors("{" + entry("a", 0, 8) + "," + entry("w", 4, 4) + "}", 8),
     {"'w'", "overlap"}},
    {"EmptyPastTheEnd",
     safetensors("{" + entry("a", 0, 8) + "," + entry("w", 9, 9) + "}", 8),
     {"'w'", "truncated"}},
    {"SizeIsNotTheShape",
     with_fields(R"("dtype":"F32","shape":[2,3],"data_offsets":[0,20])", 20),
     {"'w'", "[2, 3]", "24 bytes", "20"}},
    {"SizeIsNotTheDtype",
     with_fields(R"("dtype":"F16","shape":[2,3],"data_offsets":[0,24])", 24),
     {"'w'", "F16", "12 bytes"}},
    {"ScalarWithoutBytes",
     with_fields(R"("dtype":"F32","shape":[],"data_offsets":[0,0])", 0),
     {"'w'", "4 bytes"}},
    {"EmptyWithBytes",
     with_fields(R"("dtype":"F32","shape":[0],"data_offsets":[0,4])", 4),
     {"'w'", "0 bytes"}},
    {"HalfAByte",
     with_fields(R"("dtype":"F4","shape":[3],"data_offsets":[0,1])", 1),
     {"'w'", "whole byte"}},
    {"EndPastTwoToThe63",
     with_fields(
         R"("dtype":"U8","shape":[4],"data_offsets":[9223372036854775808,9223372036854775812])", 4),
     {"'w'", "truncated"}},
};

const std::vector<Malformed> kShapes = {
    {"ShapeProductOverflows",
     with_fields(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0])", 0),
     {"'w'", "overflows", "[4294967296, 4294967296]"}},
    {"ShapeInBytesOverflows",
     with_fields(R"("dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0])", 0),
     {"'w'", "overflows"}},
    {"ShapeInBitsOverflows",
     with_fields(
         R"("dtype":"U8","shape":[9223372036854775807],"data_offsets":[0,9223372036854775807])", 0),
     {"'w'", "overflows"}},
    {"ShapeOverflowsBeforeAZero",
     with_fields(R"("dtype":"U8","shape":[9223372036854775807,4,0],"data_offsets":[0,0])", 0),
     {"'w'", "overflows"}},
    {"DimensionOfTwoToThe63",
     with_fields(R"("dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,0])", 0),
     {"'w'", "too large"}},
    {"DimensionOfTwoToThe64",
     with_fields(R"("dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,0])", 0),
     {"'w'", "whole number"}},
    {"NegativeDimension",
     with_fields(R"("dtype":"F32","shape":[-2,-3],"data_offsets":[0,24])", 24),
     {"'w'", "negative number -2"}},
    {"FractionalDimension",
     with_fields(R"("dtype":"F32","shape":[2.5,3],"data_offsets":[0,24])", 24),
     {"'w'", "2.5 is not a whole number"}},
    {"FloatDimension",
     with_fields(R"("dtype":"F32","shape":[2.0,3],"data_offsets":[0,24])", 24),
     {"'w'", "2.0 is not a whole number"}},
    {"ExponentDimension",
     with_fields(R"("dtype":"F32","shape":[2e0,3],"data_offsets":[0,24])", 24),
     {"'w'", "whole number"}},
    {"TextDimension",
     with_fields(R"("dtype":"F32","shape":["2",3],"data_offsets":[0,24])", 24),
     {"'w'", "text"}},
    {"NullDimension",
     with_fields(R"("dtype":"F32","shape":[null,3],"data_offsets":[0,24])", 24),
     {"'w'", "null"}},
    {"BooleanDimension",
     with_fields(R"("dtype":"F32","shape":[true,3],"data_offsets":[0,24])", 24),
     {"'w'", "true or false"}},
    {"NestedDimensions",
     with_fields(R"("dtype":"F32","shape":[[2,3]],"data_offsets":[0,24])", 24),
     {"'w'", "list"}},
    {"ShapeIsANumber",
     with_fields(R"("dtype":"F32","shape":6,"data_offsets":[0,24])", 24),
     {"'w'", "number"}},
    {"ShapeIsAText",
     with_fields(R"("dtype":"F32","shape":"[6]","data_offsets":[0,24])", 24),
     {"'w'", "text"}},
    {"ShapeIsAnObject",
     with_fields(R"("dtype":"F32","shape":{},"data_offsets":[0,24])", 24),
     {"'w'", "object"}},
    {"TooManyDimensions",
     with_fields(
         fmt::format(R"("dtype":"U8","shape":[1{}],"data_offsets":[0,1])", repeated(",1", 64)), 1),
     {"'w'", "more than 64"}},
    {"OneOffset",
     with_fields(kDtypeShape + R"("data_offsets":[24])", 24),
     {"'w'", "1 numbers, not 2"}},
    {"NoOffsets",
     with_fields(kDtypeShape + R"("data_offsets":[])", 24),
     {"'w'", "0 numbers, not 2"}},
    {"ThreeOffsets",
     with_fields(kDtypeShape + R"("data_offsets":[0,24,24])", 24),
     {"'w'", "3 numbers, not 2"}},
    {"NegativeOffset",
     with_fields(kDtypeShape + R"("data_offsets":[-1,23])", 24),
     {"'w'", "negative number -1"}},
    {"OffsetOfTwoToThe64",
     with_fields(kDtypeShape + R"("data_offsets":[0,18446744073709551616])", 24),
     {"'w'", "whole number"}},
};

const std::vector<Malformed> kFields = {
    {"UnknownDtype",
     with_fields(R"("dtype":"F33","shape":[2,3],"data_offsets":[0,24])", 24),
     {"'w'", "unknown dtype 'F33'"}},
    {"LowerCaseDtype",
     with_fields(R"("dtype":"f32","shape":[2,3],"data_offsets":[0,24])", 24),
     {"'w'", "unknown dtype 'f32'"}},
    {"DtypeThatPaintsTheTerminal",
     with_fields(R"("dtype":"\u001b[31m\n","shape":[2,3],"data_offsets":[0,24])", 24),
     {"'w'", "'\\x1b[31m\\n'"}},
    {"DtypeIsANumber",
     with_fields(R"("dtype":32,"shape":[2,3],"data_offsets":[0,24])", 24),
     {"'w'", "number"}},
    {"DtypeIsAList",
     with_fields(R"("dtype":["F32"],"shape":[2,3],"data_offsets":[0,24])", 24),
     {"'w'", "list"}},
    {"UnknownField",
     with_fields(kGood + R"(,"stride":[3,1])", 24),
     {"'w'", "unknown field 'stride'"}},
    {"NoDtype", with_fields(R"("shape":[2,3],"data_offsets":[0,24])", 24), {"'w'", "no dtype"}},
    {"NoShape", with_fields(R"("dtype":"F32","data_offsets":[0,24])", 24), {"'w'", "no shape"}},
    {"NoDataOffsets",
     with_fields(R"("dtype":"F32","shape":[2,3])", 24),
     {"'w'", "no data_offsets"}},
    {"NoFields", with_fields("", 24), {"'w'", "no dtype"}},
    {"DtypeTwice", with_fields(kGood + R"(,"dtype":"F32")", 24), {"'w'", "dtype appears twice"}},
    {"ShapeTwice", with_fields(kGood + R"(,"shape":[6])", 24), {"'w'", "shape appears twice"}},
    {"DataOffsetsTwice",
     with_fields(kGood + R"(,"data_offsets":[0,24])", 24),
     {"'w'", "data_offsets appears twice"}},
    {"NameTwice",
     safetensors("{" + entry("w", 0, 4) + "," + entry("w", 4, 8) + "}", 8),
     {"'w'", "appears twice"}},
    {"EmptyTensorNamedTwice",
     safetensors("{" + entry("w", 0, 0) + "," + entry("w", 0, 0) + "}", 0),
     {"'w'", "appears twice"}},
    {"SameNameSpeltTwoWays",
     safetensors("{" + entry("w", 0, 4) + "," + entry("\\u0077", 4, 8) + "}", 8),
     {"'w'", "appears twice"}},
    {"TensorIsANumber", safetensors(R"({"w":5})", 0), {"'w'", "number"}},
    {"TensorIsNull", safetensors(R"({"w":null})", 0), {"'w'", "null"}},
    {"TensorIsAList", safetensors(R"({"w":[]})", 0), {"'w'", "list"}},
    {"TensorIsAText", safetensors(R"({"w":"F32"})", 0), {"'w'", "text"}},
    {"LongName", safetensors("{\"" + std::string(50'000, 'n') + "\":5}", 0), {"nnn...", "number"}},
};

const std::vector<Malformed> kJson = {
    {"JsonIsAList", safetensors("[]", 0), {"header does not begin with '{'"}},
    {"SpaceBeforeTheBrace", safetensors(" {}", 0), {"header does not begin with '{'"}},
    {"ByteOrderMark", safetensors("\xef\xbb\xbf{}", 0), {"header does not begin with '{'"}},
    {"JsonEndsEarly", safetensors("{", 0), {"not valid JSON"}},
    {"JsonEndsInAName", safetensors("{\"w", 0), {"not valid JSON"}},
    {"JsonEndsInATensor", safetensors("{\"w\":{\"dtype\":\"F32\"", 0), {"not valid JSON"}},
    {"TrailingComma", safetensors("{" + entry("w", 0, 4) + ",}", 4), {"not valid JSON"}},
    {"TextAfterTheJson", safetensors("{} {}", 0), {"not valid JSON"}},
    {"NulAfterTheJson", safetensors(std::string("{}\0\0{\"", 6), 0), {"header", "JSON"}},
    {"NulPadding", safetensors(std::string("{}\0\0\0\0\0\0", 8), 0), {"header", "JSON"}},
    {"Comment", safetensors("{/**/}", 0), {"not valid JSON"}},
    {"SingleQuotes", safetensors("{'w':5}", 0), {"not valid JSON"}},
    {"NumberNotANumber", safetensors(R"({"w":NaN})", 0), {"not valid JSON"}},
    {"HugeNumber",
     with_fields(R"("dtype":"U8","shape":[1e999],"data_offsets":[0,0])", 0),
     {"not valid JSON"}},
    {"Utf8InANameIsCut", safetensors("{\"w\xc3\":5}", 0), {"not valid JSON", "UTF-8"}},
    {"Utf8InANameIsOverlong", safetensors("{\"w\xc0\x80\":5}", 0), {"not valid JSON", "UTF-8"}},
    {"Utf8InANameIsASurrogate",
     safetensors("{\"w\xed\xa0\x80\":5}", 0),
     {"not valid JSON", "UTF-8"}},
    {"LoneSurrogateEscape", safetensors(R"({"w\ud800":5})", 0), {"not valid JSON"}},
    {"ControlCharacterInAName", safetensors("{\"w\n\x1b[31m\":5}", 0), {"not valid JSON"}},
    {"NameThatPaintsTheTerminal", safetensors(R"({"w\n\u001b[31m":5})", 0), {"'w\\n\\x1b[31m'"}},
    {"DeepLists", safetensors("{\"w\":" + std::string(100'000, '['), 0), {"'w'", "list"}},
    {"DeepListsInTheShape",
     with_fields("\"shape\":" + std::string(100'000, '['), 0),
     {"'w'", "list"}},
    {"DeepObjects", safetensors(repeated("{\"w\":", 100'000), 0), {"'w'"}},
    {"DeepObjectsInTheMetadata",
     safetensors("{\"__metadata__\":" + repeated("{\"w\":", 100'000), 0),
     {"__metadata__", "object"}},
};

const std::vector<Malformed> kMetadata = {
    {"MetadataIsAText", with_metadata("\"pt\""), {"__metadata__", "text"}},
    {"MetadataIsAList", with_metadata("[]"), {"__metadata__", "list"}},
    {"NullTwice", with_metadata(R"(null,"__metadata__":null)"), {"__metadata__", "appears twice"}},
    {"MetadataHoldsANumber", with_metadata(R"({"version":1})"), {"__metadata__", "number"}},
    {"MetadataHoldsAFraction", with_metadata(R"({"version":1.5})"), {"__metadata__", "1.5"}},
    {"MetadataHoldsNull", with_metadata(R"({"version":null})"), {"__metadata__", "null"}},
    {"MetadataHoldsABoolean",
     with_metadata(R"({"version":true})"),
     {"__metadata__", "true or false"}},
    {"MetadataHoldsAnObject", with_metadata(R"({"a":{"b":"c"}})"), {"__metadata__", "object"}},
    {"MetadataHoldsAList", with_metadata(R"({"a":["b"]})"), {"__metadata__", "list"}},
    {"MetadataKeyTwice",
     with_metadata(R"({"a":"b","a":"c"})"),
     {"__metadata__", "'a' appears twice"}},
    {"MetadataTwice", with_metadata(R"({},"__metadata__":{})"), {"__metadata__", "appears twice"}},
};

const std::string kPromise = R"({"pattern":"2:4","axis":"in"})";

const std::vector<Malformed> kPlans = {
    {"PlanIsNotJson", with_sparsity("2:4"), {"weft.sparsity", "not valid JSON"}},
    {"PlanIsEmpty", with_sparsity(""), {"weft.sparsity", "not valid JSON"}},
    {"PlanHasLinesAndColours", with_sparsity("{\n\x1b[31m"), {"weft.sparsity", "not valid JSON"}},
    {"PlanEndsInNul",
     with_sparsity(std::string("{\"version\":1,\"tensors\":{}}\0!", 28)),
     {"weft.sparsity", "not valid JSON"}},
    {"PlanIsAList", with_sparsity("[]"), {"weft.sparsity", "no 'version'"}},
    {"PlanIsNull", with_sparsity("null"), {"weft.sparsity", "no 'version'"}},
    {"PlanHasNoVersion", with_sparsity(R"({"tensors":{}})"), {"weft.sparsity", "no 'version'"}},
    {"PlanOfTheFuture",
     with_sparsity(R"({"version":2,"tensors":{}})"),
     {"weft.sparsity", "version 2 is not known"}},
    {"PlanVersionIsAText",
     with_sparsity(R"({"version":"1","tensors":{}})"),
     {"weft.sparsity", "version \"1\" is not known"}},
    {"PlanVersionIsTrue",
     with_sparsity(R"({"version":true,"tensors":{}})"),
     {"weft.sparsity", "version true is not known"}},
    {"PlanHasNoTensors", with_sparsity(R"({"version":1})"), {"weft.sparsity", "no 'tensors'"}},
    {"PlanTensorsAreAList",
     with_sparsity(R"({"version":1,"tensors":["w"]})"),
     {"weft.sparsity", "'tensors' is not an object"}},
    {"PlanNamesATensorTwice",
     with_sparsity(R"({"version":1,"tensors":{"w":)" + kPromise + R"(,"w":)" + kPromise + "}}"),
     {"weft.sparsity", "'w' appears twice"}},
    {"PlanPromiseIsAText",
     with_sparsity(R"({"version":1,"tensors":{"w":"2:4"}})"),
     {"weft.sparsity", "'w'", "no 'pattern'"}},
    {"PlanHasNoPattern",
     with_sparsity(R"({"version":1,"tensors":{"w":{"axis":"in"}}})"),
     {"weft.sparsity", "'w'", "no 'pattern'"}},
    {"PlanHasNoAxis",
     with_sparsity(R"({"version":1,"tensors":{"w":{"pattern":"2:4"}}})"),
     {"weft.sparsity", "'w'", "no 'axis'"}},
    {"PlanPatternIsANumber",
     with_sparsity(R"({"version":1,"tensors":{"w":{"pattern":2,"axis":"in"}}})"),
     {"weft.sparsity", "'w'", "'pattern' is not a text"}},
    {"PlanPatternIsWrong",
     with_sparsity(R"({"version":1,"tensors":{"w":{"pattern":"4:2","axis":"in"}}})"),
     {"weft.sparsity", "'w'", "pattern '4:2'", "accepted"}},
    {"PlanPatternPaintsTheTerminal",
     with_sparsity(R"({"version":1,"tensors":{"w":{"pattern":"\u001b[31m\n","axis":"in"}}})"),
     {"weft.sparsity", "'w'", "pattern '\\x1b[31m\\n'"}},
    {"PlanPatternIsLong",
     with_sparsity(R"({"version":1,"tensors":{"w":{"pattern":")" + std::string(10'000, '2') +
                   R"(","axis":"in"}}})"),
     {"weft.sparsity", "'w'", "pattern '222"}},
    {"PlanAxisIsWrong",
     with_sparsity(R"({"version":1,"tensors":{"w":{"pattern":"2:4","axis":"up\n"}}})"),
     {"weft.sparsity", "'w'", "axis 'up\\n'", "accepted"}},
    {"PlanAxisIsNull",
     with_sparsity(R"({"version":1,"tensors":{"w":{"pattern":"2:4","axis":null}}})"),
     {"weft.sparsity", "'w'", "'axis' is not a text"}},
    {"PlanIsDeep", with_sparsity(std::string(100'000, '[')), {"weft.sparsity", "nested more than"}},
    {"PlanIsDeepInObjects",
     with_sparsity(repeated("{\"a\":", 100'000)),
     {"weft.sparsity", "nested more than"}},
};

INSTANTIATE_TEST_SUITE_P(Lengths, MalformedFile, ::testing::ValuesIn(kLengths), name_of);
INSTANTIATE_TEST_SUITE_P(Places, MalformedFile, ::testing::ValuesIn(kPlaces), name_of);
INSTANTIATE_TEST_SUITE_P(Shapes, MalformedFile, ::testing::ValuesIn(kShapes), name_of);
INSTANTIATE_TEST_SUITE_P(Fields, MalformedFile, ::testing::ValuesIn(kFields), name_of);
INSTANTIATE_TEST_SUITE_P(Json, MalformedFile, ::testing::ValuesIn(kJson), name_of);
INSTANTIATE_TEST_SUITE_P(Metadata, MalformedFile, ::testing::ValuesIn(kMetadata), name_of);
INSTANTIATE_TEST_SUITE_P(Plans, MalformedPlan, ::testing::ValuesIn(kPlans), name_of);

// ---- Unusual but legal

class LegalFile : public ::testing::TestWithParam<Malformed> {};

TEST_P(LegalFile, IsRead) {
  const ScratchFolder folder;
  put(folder / "good.safetensors", GetParam().bytes);
  EXPECT_NO_THROW(read_all(folder / "good.safetensors"));
}

INSTANTIATE_TEST_SUITE_P(
    Unusual, LegalFile,
    ::testing::ValuesIn(std::vector<Malformed>{
        {"NoTensors", safetensors("{}", 0), {}},
        {"NoTensorsButMetadata", safetensors(R"({"__metadata__":{"a":""}})", 0), {}},
        {"EmptyMetadata", with_metadata("{}"), {}},
        {"NullMetadata", with_metadata("null"), {}},
        {"PlanOfAMissingTensor",
         with_sparsity(R"({"version":1,"tensors":{"v\n":)" + kPromise + "}}"),
         {}},
        {"Scalar", with_fields(R"("dtype":"F64","shape":[],"data_offsets":[0,8])", 8), {}},
        {"EmptyTensor", with_fields(R"("dtype":"F32","shape":[0],"data_offsets":[0,0])", 0), {}},
        {"EmptyTensorOfVastShape",
         with_fields(
             R"("dtype":"F32","shape":[9223372036854775807,2,0,9223372036854775807],"data_offsets":[0,0])",
             0),
         {}},
        {"SeveralEmptyTensors",
         safetensors("{" + entry("a", 4, 4) + "," + entry("b", 0, 4) + "," + entry("c", 0, 0) +
                         "," + entry("d", 4, 4) + "}",
                     4),
         {}},
        {"JsonInAnotherOrder",
         safetensors("{" + entry("a", 4, 8) + "," + entry("b", 0, 4) + "}", 8),
         {}},
        {"SixtyFourDimensions",
         with_fields(fmt::format(R"("dtype":"U8","shape":[1{}],"data_offsets":[0,1])",
                                 repeated(",1", 63)),
                     1),
         {}},
        {"PaddedWithSpaces", safetensors("{" + entry("w", 0, 4) + "}   \n", 4), {}},
        {"SpacesBetween", safetensors("{ \"w\" :\t{" + kGood + "\r\n} }", 24), {}},
        {"EscapedFieldNames",
         with_fields(R"("\u0064type":"F32","shape":[2,3],"data_offsets":[0,24])", 24),
         {}},
        {"SubByteTypes",
         with_fields(R"("dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3])", 3),
         {}},
        {"NamesOfFieldsAsTensors",
         safetensors("{" + entry("dtype", 0, 4) + "," + entry("shape", 4, 8) + "}", 8),
         {}},
        {"MetadataKeyLikeATensor", with_metadata(R"({"w":"text"})"), {}},
        {"Plan", with_sparsity(R"({"version":1,"tensors":{"w":)" + kPromise + "}}"), {}},
        {"EmptyPlan", with_sparsity(R"({"version":1,"tensors":{}})"), {}},
    }),
    name_of);

// ---- Things that are not files

TEST(NotAFile, IsRefused) {
  const ScratchFolder folder;
  ::alarm(20);  // a pipe without a writer must not hang the test either
  fs::create_directory(folder / "folder.safetensors");
  fs::create_directory(folder / "folder.index.json");
  for (const char* name : {"pipe.safetensors", "pipe.index.json"}) {
    ASSERT_EQ(::mkfifo((folder / name).c_str(), 0600), 0);
  }
  fs::create_symlink("nowhere", folder / "link.safetensors");
  fs::create_symlink("circle.safetensors", folder / "circle.safetensors");
  for (const char* name : {"pipe.safetensors", "pipe.index.json"}) {
    expect_refused(folder / name, {(folder / name).string(), "not a regular file"});
  }
  for (const char* name : {"missing.safetensors", "missing.index.json", "no folder/m.safetensors",
                           "link.safetensors"}) {
    expect_refused(folder / name, {(folder / name).string(), "No such file or directory"});
  }
  for (const char* name : {"folder.safetensors", "folder.index.json"}) {
    expect_refused(folder / name, {(folder / name).string(), "no .safetensors file"});
  }
  expect_refused(folder / "circle.safetensors", {(folder / "circle.safetensors").string()});
  expect_refused("/dev/null", {"/dev/null", "not a regular file"});
  expect_refused("/dev/zero", {"/dev/zero", "not a regular file"});
  expect_refused("", {"No such file or directory"});
  EXPECT_THROW(SafetensorsReader(folder / "folder.safetensors"), Error);
  ::alarm(0);
}

// Root may read everything, so the test steps down for a moment.
TEST(NotAFile, WhatMayNotBeReadIsRefused) {
  const ScratchFolder folder;
  fs::create_directory(folder / "closed");
  put(folder / "closed.safetensors", safetensors("{}", 0));
  put(folder / "closed.index.json", "{\"weight_map\":{}}");
  for (const char* name : {"closed", "closed.safetensors", "closed.index.json"}) {
    fs::permissions(folder / name, fs::perms::none);
  }
  fs::permissions(folder.path(), fs::perms::all);
  const uid_t user = ::geteuid();
  ASSERT_EQ(user == 0 ? ::seteuid(65534) : 0, 0);
  for (const char* name : {"closed", "closed.safetensors", "closed.index.json"}) {
    expect_refused(folder / name, {(folder / name).string(), "Permission denied"});
  }
  ASSERT_EQ(::seteuid(user), 0);
}

// ---- Damage to a valid file

// Two tensors, an empty one, metadata and a plan: every kind of thing a file can hold.
std::string small_valid_file() {
  return safetensors(R"({"__metadata__":{"weft.sparsity":"{\"version\":1,\"tensors\":{\"w\":)"
                     R"({\"pattern\":\"2:4\",\"axis\":\"in\"}}}"},)" +
                         entry("w", 0, 6) + "," + entry("\\u00e9", 6, 6) + "," + entry("b", 6, 9) +
                         "}",
                     9);
}

TEST(Damage, EveryPrefixOfAValidFileIsRefused) {
  const ScratchFolder folder;
  const std::string whole = small_valid_file();
  put(folder / "m.safetensors", whole);
  ASSERT_NO_THROW(read_all(folder / "m.safetensors"));
  for (size_t length = whole.size(); length-- > 0;) {
    SCOPED_TRACE(fmt::format("the first {} of {} bytes", length, whole.size()));
    fs::resize_file(folder / "m.safetensors", length);
    expect_refused(folder / "m.safetensors", {(folder / "m.safetensors").string()});
  }
}

TEST(Damage, EveryChangedByteIsReadOrRefused) {
  const ScratchFolder folder;
  const fs::path path = folder / "m.safetensors";
  const std::string whole = small_valid_file();
  put(path, whole);
  // Changed in place: thousands of new files would wait for the disk.
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  const auto change = [&](size_t place, char value) {
    file.seekp(static_cast<std::streamoff>(place)).put(value).flush();
    ASSERT_TRUE(file);
  };
  int refused = 0, tried = 0;
  for (size_t place = 0; place < whole.size(); ++place) {
    const char old = whole[place];
    for (const char value :
         {static_cast<char>(old ^ 1), static_cast<char>(old ^ 0x80), static_cast<char>(old + 1),
          '\0', '\xff', '"', '{', '}', '[', ',', ' ', '0', '9', '-', '\\', '\n'}) {
      change(place, value);
      ++tried;
      try {
        read_all(path);
      } catch (const Error& error) {
        ++refused;
        expect_one_line(error.what());
        EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos) << error.what();
      } catch (const std::exception& error) {
        ADD_FAILURE() << fmt::format("byte {} as {:#04x}: ", place, static_cast<uint8_t>(value))
                      << error.what();
      }
    }
    change(place, old);
  }
  EXPECT_EQ(contents(path), whole);
  // Most of the file is structure; only names and data can change and stay legal.
  EXPECT_GT(refused, tried / 2);
  EXPECT_LT(refused, tried);
}

// A file of a few bytes may announce a header of 100 MB: none of it may be allocated. A child
// process with hardly more address space than it has already is the judge.
TEST(Damage, ALyingHeaderCostsNoMemory) {
  if (test::sanitized())
    GTEST_SKIP() << "AddressSanitizer needs the address space that this test takes away";
  const ScratchFolder folder;
  put(folder / "length.safetensors", length_prefix(99'999'999) + "{}");
  put(folder / "data.safetensors",
      with_fields(R"("dtype":"U8","shape":[1000000000000],"data_offsets":[0,1000000000000])", 4));
  put(folder / "vast.safetensors",
      with_fields(R"("dtype":"U8","shape":[0,9223372036854775807],"data_offsets":[0,0])", 0));
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    long pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t room = static_cast<rlim_t>(pages * ::sysconf(_SC_PAGESIZE)) + (rlim_t{32} << 20);
    const struct rlimit limit = {room, room};
    if (pages == 0 || ::setrlimit(RLIMIT_AS, &limit) != 0) ::_exit(3);
    int errors = 0;
    for (const char* name : {"length.safetensors", "data.safetensors", "vast.safetensors"}) {
      try {
        read_all(folder / name);
      } catch (const Error&) {
        ++errors;
      } catch (...) {
        ::_exit(4);  // std::bad_alloc
      }
    }
    ::_exit(errors == 2 ? 0 : 5);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// ---- Indexes

class MalformedIndex : public ::testing::TestWithParam<Malformed> {};

// Beside the index lie a.safetensors with the tensors x and y, b.safetensors with z,
// again.safetensors with x, and broken.safetensors.
void put_shards(const ScratchFolder& folder) {
  put(folder / "a.safetensors",
      safetensors("{" + entry("x", 0, 4) + "," + entry("y", 4, 8) + "}", 8));
  put(folder / "b.safetensors", safetensors("{" + entry("z", 0, 4) + "}", 4));
  put(folder / "again.safetensors", safetensors("{" + entry("x", 0, 4) + "}", 4));
  put(folder / "broken.safetensors", "{}");
}

TEST_P(MalformedIndex, IsRefusedInOneLineThatNamesFileAndProblem) {
  const ScratchFolder folder;
  fs::create_directory(folder / "sub");
  put(folder / "sub/c.safetensors", safetensors("{" + entry("v", 0, 4) + "}", 4));
  put_shards(folder);
  put(folder / "m.index.json", GetParam().bytes);
  Strings words = GetParam().words;
  words.push_back(folder.path());
  expect_refused(folder / "m.index.json", words);
}

std::string weight_map(const std::string& entries) { return "{\"weight_map\":{" + entries + "}}"; }

const std::string kShardA = R"("x":"a.safetensors","y":"a.safetensors")";

INSTANTIATE_TEST_SUITE_P(
    Index, MalformedIndex,
    ::testing::ValuesIn(std::vector<Malformed>{
        {"Empty", "", {"m.index.json", "not valid JSON"}},
        {"NotJson", "weights", {"m.index.json", "not valid JSON"}},
        {"EndsEarly", "{\"weight_map\":{", {"m.index.json", "not valid JSON"}},
        {"TextBehind", weight_map(kShardA) + "x", {"m.index.json", "not valid JSON"}},
        {"NulBehind",
         weight_map(kShardA) + std::string("\0x", 2),
         {"m.index.json", "not valid JSON"}},
        {"IllFormedUtf8",
         weight_map("\"\xff\":\"a.safetensors\""),
         {"m.index.json", "not valid JSON", "UTF-8"}},
        {"AList", "[]", {"m.index.json", "weight_map"}},
        {"ANumber", "5", {"m.index.json", "weight_map"}},
        {"NoWeightMap", R"({"metadata":{}})", {"m.index.json", "weight_map"}},
        {"WeightMapIsAList", R"({"weight_map":["x"]})", {"m.index.json", "weight_map"}},
        {"WeightMapIsNull", R"({"weight_map":null})", {"m.index.json", "weight_map"}},
        {"WeightMapTwice",
         R"({"weight_map":{},"weight_map":{}})",
         {"m.index.json", "'weight_map' appears twice"}},
        {"TensorTwice",
         weight_map(kShardA + R"(,"x":"b.safetensors")"),
         {"m.index.json", "'x' appears twice"}},
        {"ShardIsANumber",
         weight_map(R"("x":1)"),
         {"m.index.json", "'x'", "1 is not the name of a file"}},
        {"ShardIsNull",
         weight_map(R"("x":null)"),
         {"m.index.json", "'x'", "null is not the name of a file"}},
        {"ShardIsAList",
         weight_map(R"("x":["a.safetensors"])"),
         {"m.index.json", "'x'", "is not the name of a file"}},
        {"ShardNameIsEmpty",
         weight_map(R"("x":"")"),
         {"m.index.json", "'x'", "is not the name of a file"}},
        {"ShardInAFolderBelow",
         weight_map(R"("v":"sub/c.safetensors")"),
         {"m.index.json", "'v'", "sub/c.safetensors", "beside the index"}},
        {"ShardAbove",
         weight_map(R"("x":"../a.safetensors")"),
         {"m.index.json", "'x'", "beside the index"}},
        {"ShardIsAnAbsolutePath",
         weight_map(R"("x":"/etc/passwd")"),
         {"m.index.json", "'x'", "beside the index"}},
        {"ShardIsTheFolderAbove",
         weight_map(R"("x":"..")"),
         {"m.index.json", "'x'", "beside the index"}},
        {"ShardIsTheFolder", weight_map(R"("x":".")"), {"m.index.json", "'x'", "beside the index"}},
        {"ShardNameWithNul",
         weight_map(R"("x":"a.safetensors\u0000b")"),
         {"m.index.json", "'x'", "is not the name of a file"}},
        {"ShardNameThatPaintsTheTerminal",
         weight_map(R"("x":"\u001b[31m\n.safetensors")"),
         {"m.index.json", "'x'", "is not the name of a file"}},
        {"ShardIsAFolder", weight_map(R"("x":"sub")"), {"sub", "not a regular file"}},
        {"ShardIsTheIndex", weight_map(R"("x":"m.index.json")"), {"m.index.json"}},
        {"ShardIsMissing",
         weight_map(kShardA + R"(,"z":"c.safetensors")"),
         {"c.safetensors", "No such file"}},
        {"ShardIsBroken",
         weight_map(kShardA + R"(,"z":"broken.safetensors")"),
         {"broken.safetensors", "truncated"}},
        {"TensorIsNotInItsShard",
         weight_map(kShardA + R"(,"w\n":"a.safetensors")"),
         {"m.index.json", "'w\\n'", "not in a.safetensors"}},
        {"TensorIsInAnotherShard",
         weight_map(R"("x":"a.safetensors","y":"b.safetensors","z":"b.safetensors")"),
         {"'y'", "b.safetensors"}},
        {"TensorInTwoShards",
         weight_map(kShardA + R"(,"q":"again.safetensors")"),
         {"again.safetensors", "'x'", "the index says a.safetensors"}},
        {"ShardHasATensorThatTheIndexHasNot",
         weight_map(R"("x":"a.safetensors")"),
         {"a.safetensors", "'y'", "not in the index"}},
        {"Deep", std::string(100'000, '['), {"m.index.json", "nested more than"}},
        {"DeepInTheMetadata",
         "{\"metadata\":" + repeated("{\"a\":", 100'000),
         {"m.index.json", "nested more than"}},
        {"LongShardName",
         weight_map("\"x\":\"" + std::string(10'000, 's') + "\""),
         {"m.index.json"}},
    }),
    name_of);

TEST(Index, UnusualButLegalOnesAreRead) {
  const ScratchFolder folder;
  put_shards(folder);
  for (const std::string& index :
       {weight_map(""), weight_map(kShardA), weight_map(kShardA + R"(,"z":"b.safetensors")"),
        R"({"metadata":null,"weight_map":{"z":"b.safetensors"},"more":[1,{"a":2.5}]})" +
            std::string("\n")}) {
    put(folder / "m.index.json", index);
    EXPECT_NO_THROW(read_all(folder / "m.index.json")) << index;
  }
}

TEST(Index, EveryPrefixIsRefused) {
  const ScratchFolder folder;
  put_shards(folder);
  const std::string whole =
      R"({"metadata":{"total_size":12},"weight_map":{)" + kShardA + R"(,"z":"b.safetensors"}})";
  put(folder / "m.index.json", whole);
  ASSERT_NO_THROW(read_all(folder / "m.index.json"));
  for (size_t length = whole.size(); length-- > 0;) {
    SCOPED_TRACE(fmt::format("the first {} of {} bytes", length, whole.size()));
    fs::resize_file(folder / "m.index.json", length);
    expect_refused(folder / "m.index.json", {(folder / "m.index.json").string()});
  }
}

TEST(Index, AnIndexLongerThanAnyRealOneIsRefusedUnread) {
  const ScratchFolder folder;
  put(folder / "m.index.json", "{");
  fs::resize_file(folder / "m.index.json", uint64_t{1} << 40);  // sparse: takes no space
  expect_refused(folder / "m.index.json", {(folder / "m.index.json").string(), "at most 32000000"});
}

}  // namespace
}  // namespace weft
