/* The cpu backend's kernels for AVX2 with FMA; bf16 is widened to fp32. */
#include "dev/cpu/cpu.h"

#ifdef __x86_64__
#define AX_SIMD 256
#define AX_ISA_NAME "avx2"
#define AX_ISA_TABLE ax_cpu_isa_avx2
#define AX_ISA_VECTORS ax_cpu_vectors_avx2
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif
#include "isa_table.h"
#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
