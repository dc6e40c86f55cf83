#include "tests/emulator/machine_code.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

namespace weft::test {

static_assert(offsetof(MachineState, general) == 0 && offsetof(MachineState, masks) == 128 &&
              offsetof(MachineState, vectors) == 192 && offsetof(MachineState, flags) == 2240 &&
              offsetof(MachineState, tiles) == 2256);

}  // namespace weft::test

// void stub(MachineState* rdi), without (tiles = 0) and with tiles: what comes before the
// instruction, from NAME to NAME_hole, and behind it, up to NAME_end. With tiles it begins with 64
// bytes that configure them.
asm(R"(
  .intel_syntax noprefix
  .macro weft_stub name, tiles
    .pushsection .rodata
\name:
    .if \tiles
    .byte 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
    .rept 8
    .word 64
    .endr
    .rept 16
    .byte 0
    .endr
    .rept 8
    .byte 16
    .endr
    .rept 8
    .byte 0
    .endr
    .endif
    push rbx
    push rbp
    push r12
    push r13
    push r14
    push r15
    push rdi
    .if \tiles
    ldtilecfg [rip+\name]
    lea rax, [rdi+2256]
    mov ecx, 64
    .irp i, 0, 1, 2, 3, 4, 5, 6, 7
    tileloadd tmm\i, [rax+rcx*1]
    add rax, 1024
    .endr
    .endif
    .irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    vmovdqu64 zmm\i, [rdi+192+64*\i]
    .endr
    .irp i, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
    vmovdqu64 zmm\i, [rdi+192+64*\i]
    .endr
    .irp i, 0, 1, 2, 3, 4, 5, 6, 7
    kmovq k\i, [rdi+128+8*\i]
    .endr
    xor eax, eax
    mov ah, [rdi+2240]
    sahf
    mov rax, [rdi]
    mov rcx, [rdi+8]
    mov rdx, [rdi+16]
    mov rbx, [rdi+24]
    mov rbp, [rdi+40]
    mov rsi, [rdi+48]
    .irp i, 8, 9, 10, 11, 12, 13, 14, 15
    mov r\i, [rdi+8*\i]
    .endr
    mov rdi, [rdi+56]
\name\()_hole:
    pushfq
    push rax
    mov rax, [rsp+16]
    mov [rax+8], rcx
    mov [rax+16], rdx
    mov [rax+24], rbx
    mov [rax+40], rbp
    mov [rax+48], rsi
    mov [rax+56], rdi
    .irp i, 8, 9, 10, 11, 12, 13, 14, 15
    mov [rax+8*\i], r\i
    .endr
    pop rcx
    mov [rax], rcx
    pop rcx
    mov [rax+2240], rcx
    .irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    vmovdqu64 [rax+192+64*\i], zmm\i
    .endr
    .irp i, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
    vmovdqu64 [rax+192+64*\i], zmm\i
    .endr
    .irp i, 0, 1, 2, 3, 4, 5, 6, 7
    kmovq [rax+128+8*\i], k\i
    .endr
    .if \tiles
    add rax, 2256
    mov ecx, 64
    .irp i, 0, 1, 2, 3, 4, 5, 6, 7
    tilestored [rax+rcx*1], tmm\i
    add rax, 1024
    .endr
    tilerelease
    .endif
    vzeroupper
    pop rdi
    pop r15
    pop r14
    pop r13
    pop r12
    pop rbp
    pop rbx
    ret
\name\()_end:
    .popsection
  .endm
  weft_stub weft_vector_stub, 0
  weft_stub weft_tile_stub, 1
  .att_syntax prefix
)");

extern "C" {
extern const uint8_t weft_vector_stub[], weft_vector_stub_hole[], weft_vector_stub_end[];
extern const uint8_t weft_tile_stub[], weft_tile_stub_hole[], weft_tile_stub_end[];
}

namespace weft::test {
namespace {

constexpr size_t kPage = 4096;

uint8_t* append(uint8_t* to, const uint8_t* begin, const uint8_t* end) {
  std::memcpy(to, begin, static_cast<size_t>(end - begin));
  return to + (end - begin);
}

}  // namespace

MachineCode::MachineCode(const CatalogueEntry& entry) {
  const bool tiles = entry.needs == Needs::kAmx;
  void* page = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) std::abort();
  page_ = static_cast<uint8_t*>(page);
  entry_ = tiles ? 64 : 0;
  uint8_t* at = tiles ? append(page_, weft_tile_stub, weft_tile_stub_hole)
                      : append(page_, weft_vector_stub, weft_vector_stub_hole);
  instruction_ = at;
  at = append(at, entry.begin, entry.end);
  if (tiles) {
    append(at, weft_tile_stub_hole, weft_tile_stub_end);
  } else {
    append(at, weft_vector_stub_hole, weft_vector_stub_end);
  }
  if (mprotect(page_, kPage, PROT_READ | PROT_EXEC) != 0) std::abort();
}

MachineCode::~MachineCode() { munmap(page_, kPage); }

void MachineCode::run(MachineState& state) const {
  reinterpret_cast<void (*)(MachineState*)>(page_ + entry_)(&state);
}

}  // namespace weft::test
