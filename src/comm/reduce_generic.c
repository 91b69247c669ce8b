/* The reduction functions (reduce.h), compiled without special instruction sets, for any processor. */
#define AX_REDUCE_TABLE ax_reduce_generic
#include "comm/reduce_kernels.h"
