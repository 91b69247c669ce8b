/* The cpu backend's kernels for any processor, on the compiler's four-lane vectors (SSE2, NEON, or plain
 * code). */
#include "dev/cpu/cpu.h"

#define AX_SIMD 0
#define AX_ISA_NAME "generic"
#define AX_ISA_TABLE ax_cpu_isa_generic
#define AX_ISA_VECTORS ax_cpu_vectors_generic
#include "isa_table.h"
