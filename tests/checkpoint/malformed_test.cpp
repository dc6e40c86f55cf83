// Files that must be refused: each with a weft::Error of one line that names the file, the tensor
// where one is at fault, and the problem. No crash, no hang, no other exception, no memory that the
// file does not back.
// Here single files; indices are in malformed_index_test.cpp.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/checkpoint/malformed.h"
#include "tests/scratch_folder.h"
#include "weft/core/json.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;

std::string with_metadata(const std::string& metadata) {
  return safetensors("{\"__metadata__\":" + metadata + "," + entry("w", 0, 4) + "}", 4);
}

// A file with the tensor 'w' and this text as its weft.sparsity.
std::string with_sparsity(const std::string& plan) {
  return with_metadata(Json{{"weft.sparsity", plan}}.dump());
}

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

}  // namespace
}  // namespace weft::test
