/* The cpu backend's kernels for AVX-512 without bf16 instructions (Skylake-X onwards); bf16 is widened to
 * fp32. */
#include "dev/cpu/cpu.h"

#ifdef __x86_64__
#define AX_SIMD 512
#define AX_ISA_NAME "avx512"
#define AX_ISA_TABLE ax_cpu_isa_avx512
#define AX_ISA_VECTORS ax_cpu_vectors_avx512
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c"))),    \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")
#endif
#include "isa_table.h"
#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
