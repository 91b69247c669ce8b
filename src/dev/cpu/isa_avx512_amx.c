/* The cpu backend's kernels for AVX-512 with AMX tiles that multiply bf16 (Sapphire Rapids onwards). */
#include "dev/cpu/cpu.h"

#ifdef __x86_64__
#define AX_SIMD 512
#define AX_SIMD_BF16
#define AX_SIMD_AMX
#define AX_ISA_NAME "avx512_amx"
#define AX_ISA_TABLE ax_cpu_isa_avx512_amx
#define AX_SHARES_VECTORS
#define AX_ISA_VECTORS ax_cpu_vectors_avx512_bf16
#ifdef __clang__
#pragma clang attribute push(                                                                                \
    __attribute__((                                                                                          \
        target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma,f16c,amx-tile,amx-bf16"))),           \
    apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma,f16c,amx-tile,amx-bf16")
#endif
#include "isa_table.h"
#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
