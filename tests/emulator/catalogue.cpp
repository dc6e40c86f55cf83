#include "tests/emulator/catalogue.h"

// clang-format 14 finds no end to formatting these macros.
// clang-format off

// Forms of operands; `tail` is a constant with its comma, or nothing. Addresses: rdi, r12, r13
// point into the middle of a buffer, r9 is small (emulator_test.cpp).
#define ONE(text) "one {evex} " text "\n"
#define PLAIN(text) "one " text "\n"
#define Z3(name, tail)                                    \
  ONE(name " zmm1, zmm2, zmm3" tail)                      \
  ONE(name " zmm1{k1}, zmm12, zmm3" tail)                 \
  ONE(name " zmm17{k2}{z}, zmm30, zmm9" tail)             \
  ONE(name " zmm9{k1}, zmm2, zmmword ptr [rdi+128]" tail) \
  ONE(name " zmm23, zmm2, zmmword ptr [r13]" tail)
#define Y3(name, tail)                         \
  ONE(name " ymm17{k7}{z}, ymm30, ymm25" tail) \
  ONE(name " ymm1{k4}, ymm1, ymm14" tail)      \
  ONE(name " ymm8, ymm2, ymmword ptr [rdi+r9*4-0x345]" tail)
#define X3(name, tail)                    \
  ONE(name " xmm5{k3}, xmm6, xmm23" tail) \
  ONE(name " xmm16, xmm2, xmmword ptr [r12-16]" tail)
#define D3(name, tail)                                     \
  ONE(name " zmm20, zmm2, dword ptr [rdi+12]{1to16}" tail) \
  ONE(name " ymm3{k5}, ymm20, dword ptr [r12+r9*8-8]{1to8}" tail)
#define Q3(name, tail)                                    \
  ONE(name " zmm20, zmm2, qword ptr [rdi-24]{1to8}" tail) \
  ONE(name " ymm3{k5}, ymm20, qword ptr [r12+r9*8-8]{1to4}" tail)
#define THREE(name, tail) Z3(name, tail) Y3(name, tail) X3(name, tail)
#define THREE_D(name, tail) THREE(name, tail) D3(name, tail)
#define THREE_Q(name, tail) THREE(name, tail) Q3(name, tail)
#define TWO(name, tail)                             \
  ONE(name " zmm1, zmm2" tail)                      \
  ONE(name " zmm17{k2}{z}, zmm30" tail)             \
  ONE(name " zmm9{k1}, zmmword ptr [rdi+128]" tail) \
  ONE(name " zmm9, zmmword ptr [rip+1]" tail)       \
  ONE(name " ymm1{k4}, ymm19" tail)                 \
  ONE(name " xmm25{k3}, xmm6" tail)                 \
  ONE(name " xmm6, xmmword ptr [r12+r9*2-32]" tail)
#define TWO_D(name, tail) TWO(name, tail) ONE(name " zmm20{k6}, dword ptr [rdi+12]{1to16}" tail)
#define TWO_Q(name, tail) TWO(name, tail) ONE(name " zmm20{k6}, qword ptr [rdi+16]{1to8}" tail)
// The source is half as long.
#define WIDEN(name)                        \
  ONE(name " zmm1{k1}, ymm2")              \
  ONE(name " zmm17, ymmword ptr [rdi+96]") \
  ONE(name " ymm1{k3}{z}, xmm30")          \
  ONE(name " xmm25, xmm6")                 \
  ONE(name " xmm25, qword ptr [rdi-8]")
#define SCALAR(name, part)              \
  ONE(name " xmm1, xmm2, xmm3")         \
  ONE(name " xmm17{k1}, xmm30, xmm9")   \
  ONE(name " xmm4{k2}{z}, xmm5, xmm29") \
  ONE(name " xmm23, xmm2, " part " ptr [rdi+8]")
#define ARITHMETIC(name) \
  THREE_D(name "ps", "") \
  THREE_Q(name "pd", "") SCALAR(name "ss", "dword") SCALAR(name "sd", "qword")
#define MULTIPLY_ADD(name) ARITHMETIC(name "132") ARITHMETIC(name "213") ARITHMETIC(name "231")
#define BITS(name) THREE_D(name "ps", "") THREE_Q(name "pd", "")
#define INTEGER_BITS(name) THREE_D(name "d", "") THREE_Q(name "q", "")
#define MOVE(name)                             \
  TWO(name, "")                                \
  ONE(name " zmmword ptr [rdi+192]{k1}, zmm3") \
  ONE(name " ymmword ptr [r13-32], ymm21")     \
  ONE(name " xmmword ptr [rdi+r9*8+0x100]{k2}, xmm9")
#define ALIGNED_MOVE(name)                       \
  ONE(name " zmm17{k2}{z}, zmm30")               \
  ONE(name " zmm9{k1}, zmmword ptr [rdi+128]")   \
  ONE(name " ymm1{k4}, ymmword ptr [rdi-0x1a0]") \
  ONE(name " zmmword ptr [rdi+192]{k1}, zmm3")   \
  ONE(name " xmmword ptr [r13-48], xmm21")
#define COMPARE(name, part, count, tail)                             \
  ONE(name " k1, zmm2, zmm3" tail)                                   \
  ONE(name " k5{k6}, zmm22, zmm13" tail)                             \
  ONE(name " k2, zmm2, zmmword ptr [rdi-64]" tail)                   \
  ONE(name " k3{k1}, zmm2, " part " ptr [r12+8]{1to" count "}" tail) \
  ONE(name " k4{k3}, ymm22, ymm13" tail)                             \
  ONE(name " k7, xmm22, xmm13" tail)
#define COMPARE_D(name, tail) COMPARE(name, "dword", "16", tail)
#define COMPARE_Q(name, tail) COMPARE(name, "qword", "8", tail)
#define EVERY_COMPARE(with, name)                                                           \
  with(name, ", 0") with(name, ", 1") with(name, ", 2") with(name, ", 3") with(name, ", 4") \
      with(name, ", 5") with(name, ", 6") with(name, ", 7")
#define EVERY_FLOAT_COMPARE(with, name)                                                        \
  EVERY_COMPARE(with, name)                                                                    \
  with(name, ", 8") with(name, ", 9") with(name, ", 10") with(name, ", 11") with(name, ", 12") \
      with(name, ", 13") with(name, ", 14") with(name, ", 15")
#define CLASSIFY(name)                                                          \
  ONE(name " k1, zmm2, 0x81")                                                   \
  ONE(name " k2{k3}, zmm22, 0x9f")                                              \
  ONE(name " k3, ymm9, 0x18") ONE(name " k4, xmm9, 2") ONE(name " k4, xmm9, 4") \
      ONE(name " k5, zmm9, 0x8")
#define MASKS(name)          \
  PLAIN(name "b k1, k2, k3") \
  PLAIN(name "w k1, k2, k3") PLAIN(name "d k4, k5, k6") PLAIN(name "q k7, k1, k2")
#define MASK_MOVES(suffix, general, part)                                               \
  PLAIN("kmov" suffix " k1, k2")                                                        \
  PLAIN("kmov" suffix " k3, " part " ptr [rdi+r9*4+40]")                                \
  PLAIN("kmov" suffix " " part " ptr [rdi-8], k5")                                      \
  PLAIN("kmov" suffix " k6, " general) PLAIN("kmov" suffix " " general ", k7")          \
      PLAIN("knot" suffix " k4, k5") PLAIN("kortest" suffix " k1, k2")                  \
          PLAIN("kortest" suffix " k0, k0") PLAIN("kshiftl" suffix " k1, k2, 3")        \
              PLAIN("kshiftr" suffix " k3, k4, 5") PLAIN("kshiftl" suffix " k1, k2, 0") \
                  PLAIN("kshiftr" suffix " k1, k2, 70")
#define INSERT(name)                                  \
  ONE(name "x4 zmm1{k1}, zmm2, xmm30, 3")             \
  ONE(name "x4 ymm17, ymm2, xmmword ptr [rdi+48], 1") \
  ONE(name "x8 zmm1{k1}{z}, zmm22, ymm3, 1") ONE(name "x8 zmm9, zmm2, ymmword ptr [rdi+96], 0")
#define INSERT_WIDE(name) \
  ONE(name "x2 zmm1{k1}, zmm2, xmm30, 2") ONE(name "x4 zmm1{k1}{z}, zmm22, ymm3, 1")
#define EXTRACT(name)                                                                    \
  ONE(name "x4 xmm1{k1}, zmm2, 3")                                                       \
  ONE(name "x4 xmmword ptr [rdi+48], ymm20, 1")                                          \
  ONE(name "x4 xmmword ptr [rdi+48]{k2}, zmm20, 2") ONE(name "x8 ymm30{k3}{z}, zmm2, 1") \
      ONE(name "x8 ymmword ptr [r12-32], zmm2, 1")
#define EXTRACT_WIDE(name) ONE(name "x2 xmm1{k1}, zmm2, 3") ONE(name "x4 ymm30{k3}{z}, zmm2, 1")
#define BROADCAST(name, part) \
  ONE(name " zmm1{k1}, xmm2") \
  ONE(name " zmm17, " part " ptr [rdi+32]") ONE(name " ymm1{k2}{z}, xmm22")
#define BROADCAST_PARTS(name, lane, pair)                   \
  ONE(name lane "x" pair " zmm1{k1}, xmmword ptr [rdi+32]") \
  ONE(name lane "x" pair " ymm17, [rdi-16]")
#define TILES(name, a, b, c) PLAIN(name " tmm" a ", tmm" b ", tmm" c)

// Of the CPU's own: VEX.
#define V3(name, tail) \
  PLAIN(name " ymm1, ymm2, ymm13" tail) PLAIN(name " xmm8, xmm9, xmmword ptr [rdi+16]" tail)
#define V2(name, tail) PLAIN(name " ymm1, ymm2" tail) PLAIN(name " xmm8, xmmword ptr [rdi+16]" tail)
#define V3_ALL(name) \
  V3(name "ps", "")  \
  V3(name "pd", "") PLAIN(name "ss xmm1, xmm2, xmm3") PLAIN(name "sd xmm1, xmm2, xmm3")

asm(R"(
  .intel_syntax noprefix
  .macro one text:vararg
    .pushsection .rodata.weft_texts
7:  .asciz "\text"
    .popsection
    .pushsection .rodata.weft_codes
8:  \text
9:
    .popsection
    .pushsection .data.rel.ro.weft_catalogue, "aw"
    .quad 7b, 8b, 9b, needs
    .popsection
  .endm
  .macro label name
    .pushsection .data.rel.ro.weft_catalogue, "aw"
    .balign 8
\name:
    .popsection
  .endm
  label weft_catalogue_begin
  .set needs, 0
)"  // AVX-512: arithmetic
    ARITHMETIC("vadd") ARITHMETIC("vmul") ARITHMETIC("vsub") ARITHMETIC("vmin") ARITHMETIC("vdiv")
    ARITHMETIC("vmax") TWO_D("vsqrtps", "") TWO_Q("vsqrtpd", "") SCALAR("vsqrtss", "dword")
    MULTIPLY_ADD("vfmadd") MULTIPLY_ADD("vfmsub") MULTIPLY_ADD("vfnmadd") MULTIPLY_ADD("vfnmsub")
    BITS("vand") BITS("vandn") BITS("vor") BITS("vxor")
    INTEGER_BITS("vpand") INTEGER_BITS("vpandn") INTEGER_BITS("vpor") INTEGER_BITS("vpxor")
    THREE_D("vpternlogd", ", 0xca") THREE_Q("vpternlogq", ", 0x96") THREE_D("vpternlogd", ", 0x17")
    THREE_D("vpaddd", "") THREE_D("vpsubd", "") THREE_Q("vpaddq", "") THREE("vpaddw", "")
    THREE("vpmullw", "") THREE_Q("vpmuludq", "") THREE_D("vpmulld", "") THREE_Q("vpmullq", "")
    TWO_D("vpabsd", "") THREE_D("vpminsd", "") THREE_D("vpmaxsd", "")
    THREE_D("vpsrlvd", "") THREE_D("vpsllvd", "")
    TWO_D("vpsrld", ", 7") TWO_D("vpslld", ", 31") TWO_D("vpsrad", ", 3") TWO_D("vpsrad", ", 40")
    TWO_Q("vpsrlq", ", 33") TWO_Q("vpsllq", ", 1") TWO_D("vpslld", ", 32")
    ONE("vpsrld zmm1{k1}, zmm2, xmm30") ONE("vpslld zmm1, zmm22, xmmword ptr [rdi+16]")
    ONE("vpsrlq zmm1{k1}, zmm2, xmm30") ONE("vpsllq ymm1, ymm22, xmmword ptr [rdi+16]")
    // permutations
    BROADCAST("vbroadcastss", "dword") BROADCAST("vbroadcastsd", "qword")
    BROADCAST("vpbroadcastw", "word") BROADCAST("vpbroadcastd", "dword")
    BROADCAST("vpbroadcastq", "qword")
    ONE("vbroadcastf32x2 zmm1{k1}, xmm2") ONE("vbroadcasti32x2 zmm1{k1}, qword ptr [rdi+8]")
    BROADCAST_PARTS("vbroadcastf", "32", "4") BROADCAST_PARTS("vbroadcasti", "32", "4")
    BROADCAST_PARTS("vbroadcastf", "64", "2") BROADCAST_PARTS("vbroadcasti", "64", "2")
    ONE("vbroadcastf32x8 zmm1{k1}, [rdi+32]") ONE("vbroadcasti64x4 zmm1{k1}, [rdi+32]")
    ONE("vpbroadcastb zmm1{k1}, edx") ONE("vpbroadcastw ymm17, r8d")
    ONE("vpbroadcastd zmm1{k1}{z}, edx") ONE("vpbroadcastq xmm17, r10")
    TWO("vmovsldup", "") TWO("vmovshdup", "") TWO_D("vpshufd", ", 0x1b") TWO("vpshufhw", ", 0x72")
    TWO("vpshuflw", ", 0x8d") TWO_D("vpermilps", ", 0x39") TWO_Q("vpermilpd", ", 0xa5")
    THREE_D("vpermilps", "") THREE_D("vshufps", ", 0x4e")
    ONE("vpermq zmm1{k1}, zmm2, 0x1b") ONE("vpermq ymm17, [rdi+32], 0x72")
    THREE_D("vunpcklps", "") THREE_D("vunpckhps", "") THREE_Q("vunpcklpd", "")
    THREE_Q("vunpckhpd", "") THREE("vpunpcklwd", "") THREE("vpunpckhwd", "")
    THREE_D("vpunpckldq", "") THREE_D("vpunpckhdq", "") THREE_Q("vpunpcklqdq", "")
    THREE_Q("vpunpckhqdq", "")
    THREE("vpermi2w", "") THREE("vpermt2w", "") THREE_D("vpermi2ps", "") THREE_D("vpermt2ps", "")
    Z3("vpermps", "") Y3("vpermps", "") Z3("vpermd", "") D3("vpermd", "") Z3("vpermpd", "")
    Y3("vpermq", "") Q3("vpermq", "")
    THREE_D("vpblendmd", "") THREE_Q("vpblendmq", "") THREE_D("vblendmps", "")
    THREE_Q("vblendmpd", "") THREE_D("valignd", ", 3") THREE_Q("valignq", ", 1")
    Z3("vshuff32x4", ", 0x1b") Y3("vshufi32x4", ", 2") Z3("vshufi64x2", ", 0xe4")
    Y3("vshuff64x2", ", 1")
    INSERT("vinsertf32") INSERT("vinserti32") INSERT_WIDE("vinsertf64") INSERT_WIDE("vinserti64")
    // moves
    MOVE("vmovups") MOVE("vmovupd") ALIGNED_MOVE("vmovaps") MOVE("vmovdqu8") MOVE("vmovdqu16")
    ONE("vmovntps zmmword ptr [rdi+128], zmm20") ONE("vmovntps ymmword ptr [rdi+96], ymm3")
    ONE("vmovntdq zmmword ptr [r13+64], zmm9")
    MOVE("vmovdqu32") MOVE("vmovdqu64") ALIGNED_MOVE("vmovdqa32") ALIGNED_MOVE("vmovdqa64")
    ONE("vmovups zmm1, zmmword ptr [rdi*1+64]") ONE("vmovss xmm1{k1}, dword ptr [rdi+4]")
    ONE("vmovss dword ptr [rdi-4]{k1}, xmm20")
    ONE("vmovsd xmm21{k2}{z}, qword ptr [rdi+8]") ONE("vmovsd qword ptr [rdi+8], xmm20")
    EXTRACT("vextractf32") EXTRACT("vextracti32") EXTRACT_WIDE("vextractf64")
    EXTRACT_WIDE("vextracti64") ONE("vextractps dword ptr [rdi+4], xmm20, 2")
    ONE("vmovd xmm20, edx") ONE("vmovd xmm20, dword ptr [rdi+4]") ONE("vmovd r8d, xmm20")
    ONE("vmovd dword ptr [rdi+4], xmm20") ONE("vmovq xmm20, r10") ONE("vmovq rdx, xmm20")
    ONE("vmovq xmm20, qword ptr [rdi+8]") ONE("vmovq qword ptr [rdi+8], xmm20")
    ONE("vmovq xmm20, xmm5")
    // conversions
    WIDEN("vcvtps2pd") WIDEN("vcvtdq2pd") WIDEN("vpmovzxwd") WIDEN("vpmovzxdq")
    ONE("vcvtps2pd zmm1, dword ptr [rdi+4]{1to8}")
    TWO_Q("vcvtqq2pd", "") TWO_D("vcvtdq2ps", "") TWO_D("vcvtps2dq", "") TWO_D("vcvttps2dq", "")
    ONE("vcvtpd2ps ymm1, zmm2") ONE("vcvtpd2ps xmm17, ymm2") ONE("vcvtpd2ps xmm17, xmm2")
    ONE("vcvttpd2dq ymm1, zmm2") ONE("vcvttpd2dq ymm17, zmmword ptr [rdi+64]")
    ONE("vcvttpd2dq xmm17, xmm2") THREE_D("vpackusdw", "")
    ONE("vpmovm2d zmm1, k3") ONE("vpmovm2d xmm17, k3") ONE("vpmovm2q zmm30, k7")
    ONE("vcvttsd2usi edx, xmm20") ONE("vcvttsd2usi r10, xmm2")
    ONE("vcvtusi2sd xmm1, xmm22, edx") ONE("vcvtusi2sd xmm21, xmm2, r10")
    // masks
    EVERY_FLOAT_COMPARE(COMPARE_D, "vcmpps") EVERY_FLOAT_COMPARE(COMPARE_Q, "vcmppd")
    EVERY_COMPARE(COMPARE_D, "vpcmpud") EVERY_COMPARE(COMPARE_Q, "vpcmpuq")
    EVERY_COMPARE(COMPARE_D, "vpcmpd") EVERY_COMPARE(COMPARE_Q, "vpcmpq")
    COMPARE_D("vpcmpeqd", "") COMPARE_D("vpcmpgtd", "") COMPARE_D("vptestmd", "")
    COMPARE_D("vptestnmd", "") CLASSIFY("vfpclassps") CLASSIFY("vfpclasspd")
    MASKS("kand") MASKS("kandn") MASKS("kor") MASKS("kxnor") MASKS("kxor")
    PLAIN("kunpckbw k1, k2, k3") PLAIN("kunpckwd k4, k5, k6") PLAIN("kunpckdq k7, k1, k2")
    MASK_MOVES("b", "edx", "byte") MASK_MOVES("w", "r8d", "word") MASK_MOVES("d", "edx", "dword")
    MASK_MOVES("q", "r10", "qword")
    ".set needs, 1\n"  // bf16: floats are in odd registers, pairs of bf16 in even ones
    ONE("vdpbf16ps zmm1, zmm2, zmm4") ONE("vdpbf16ps zmm17{k1}, zmm20, zmm8")
    ONE("vdpbf16ps ymm1{k2}{z}, ymm2, ymm14") ONE("vdpbf16ps xmm9, xmm2, [rdi+16]")
    ONE("vdpbf16ps zmm1, zmm2, dword ptr [rdi-4]{1to16}")
    ".set needs, 2\n"  // tiles likewise; r10 is a stride
    TILES("tdpbf16ps", "1", "2", "4") TILES("tdpbf16ps", "7", "6", "0")
    TILES("tdpbf16ps", "3", "0", "2")
    PLAIN("tileloadd tmm1, [rdi+r10*1]") PLAIN("tileloadd tmm6, [r13+r10*2+64]")
    PLAIN("tilestored [rdi+r10*1], tmm2") PLAIN("tilestored [r12+r10*2-128], tmm7")
    PLAIN("tilezero tmm0") PLAIN("tilezero tmm5")
    ".set needs, 3\n"  // AVX2 and FMA
    V3_ALL("vadd") V3_ALL("vmul") V3_ALL("vsub") V3_ALL("vmin") V3_ALL("vdiv") V3_ALL("vmax")
    V2("vsqrtps", "") V2("vsqrtpd", "") V3_ALL("vfmadd132") V3_ALL("vfmadd213") V3_ALL("vfmadd231")
    V3_ALL("vfmsub213") V3_ALL("vfnmadd231") V3_ALL("vfnmsub132")
    V3("vandps", "") V3("vandnpd", "") V3("vorps", "") V3("vxorpd", "") V3("vpand", "")
    V3("vpandn", "") V3("vpor", "") V3("vpxor", "") V3("vpaddd", "") V3("vpsubd", "")
    V3("vpaddq", "") V3("vpaddw", "") V3("vpmullw", "") V3("vpmuludq", "") V3("vpmulld", "")
    V2("vpabsd", "") V3("vpminsd", "") V3("vpmaxsd", "") V3("vpsrlvd", "") V3("vpsllvd", "")
    PLAIN("vpsrld ymm1, ymm12, 7") PLAIN("vpslld xmm1, xmm2, 31") PLAIN("vpsrad ymm1, ymm2, 40")
    PLAIN("vpsrlq ymm1, ymm2, 33") PLAIN("vpsllq ymm1, ymm2, 64") PLAIN("vpsrld ymm1, ymm2, xmm3")
    PLAIN("vpsllq ymm1, ymm2, [rdi+16]")
    PLAIN("vbroadcastss ymm1, xmm2") PLAIN("vbroadcastsd ymm1, [rdi+8]")
    PLAIN("vpbroadcastw ymm1, xmm2")
    PLAIN("vpbroadcastd xmm1, xmm2") PLAIN("vpbroadcastq ymm1, xmm2") V2("vmovsldup", "")
    V2("vmovshdup", "") V2("vpshufd", ", 0x1b") V2("vpshufhw", ", 0x72") V2("vpshuflw", ", 0x8d")
    V2("vpermilps", ", 0x39") V2("vpermilpd", ", 0xa5") V3("vpermilps", "") V3("vshufps", ", 0x4e")
    PLAIN("vpermq ymm1, ymm2, 0x1b") PLAIN("vpermps ymm1, ymm2, ymm3")
    PLAIN("vpermd ymm1, ymm2, ymm3")
    V3("vunpcklps", "") V3("vunpckhps", "") V3("vunpcklpd", "") V3("vunpckhpd", "")
    V3("vpunpcklwd", "") V3("vpunpckhwd", "") V3("vpunpckldq", "") V3("vpunpckhdq", "")
    V3("vpunpcklqdq", "") V3("vpunpckhqdq", "")
    PLAIN("vinsertf128 ymm1, ymm2, xmm3, 1") PLAIN("vextractf128 xmm1, ymm2, 1")
    PLAIN("vextracti128 [rdi+32], ymm2, 1") V2("vmovups", "") V2("vmovdqu", "")
    PLAIN("vmovups [rdi+32], ymm2") PLAIN("vmovd xmm1, edx") PLAIN("vmovq rdx, xmm1")
    PLAIN("vmovq xmm1, xmm2") PLAIN("vmovss xmm1, [rdi+4]") PLAIN("vcvtps2pd ymm1, xmm2")
    PLAIN("vcvtdq2pd ymm1, xmm2") PLAIN("vpmovzxwd ymm1, xmm2") PLAIN("vpmovzxdq ymm1, xmm2")
    V2("vcvtdq2ps", "") V2("vcvtps2dq", "") V2("vcvttps2dq", "") PLAIN("vcvtpd2ps xmm1, ymm2")
    PLAIN("vcvttpd2dq xmm1, ymm2") V3("vpackusdw", "")
    PLAIN("vmovntps [rdi+64], ymm2") PLAIN("vmovntdq [rdi+64], ymm2")
    PLAIN("vmovlps qword ptr [rdi+8], xmm2") PLAIN("vmovmskps edx, ymm2")
    "label weft_catalogue_end\n"
    "label weft_unknown_begin\n"
    ".set needs, 0\n"
    ONE("vaddps zmm1, zmm2, zmm3, {rz-sae}") ONE("vcmpps k1, zmm2, zmm3, {sae}, 1")
    ONE("vpcompressd zmm1{k1}, zmm2") ONE("vcvtpd2ps ymm1{k1}, zmm2")
    ONE("vpcmpb k1, zmm2, zmm3, 1")
    ONE("vmovss xmm1{k1}, xmm2, xmm3") ONE("vfpclassps k1, zmm2, 0x20")
    ONE("vpsubb zmm1, zmm2, zmm3")
    ONE("vfpclassps k1, zmm2, 1") PLAIN("kaddw k1, k2, k3") PLAIN("kaddb k1, k2, k3")
    ONE("vpdpbusd zmm1, zmm2, zmm3") PLAIN("tdpbssd tmm1, tmm2, tmm3")
    PLAIN("vaddps ymm1, ymm2, ymm3")
    ONE("vscalefps zmm1, zmm2, zmm3") PLAIN("addps xmm1, xmm2") PLAIN("nop")
    "label weft_unknown_end\n"
    ".att_syntax prefix\n");

// clang-format on

extern "C" {
extern const weft::test::CatalogueEntry weft_catalogue_begin[], weft_catalogue_end[];
extern const weft::test::CatalogueEntry weft_unknown_begin[], weft_unknown_end[];
}

namespace weft::test {

std::span<const CatalogueEntry> catalogue() { return {weft_catalogue_begin, weft_catalogue_end}; }

std::span<const CatalogueEntry> unknown_instructions() {
  return {weft_unknown_begin, weft_unknown_end};
}

}  // namespace weft::test
