/* Chooses the instruction set of the cpu backend's kernels. */
#include "dev/cpu/cpu.h"

#include "axonn/runtime.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#ifdef __x86_64__
#include <cpuid.h>
#endif
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

#ifdef __x86_64__
/* Returns true if the processor has AMX with bf16, and the system lets this process use it. Linux (5.16
 * onwards) grants AMX on request. After it has granted AMX, Linux refuses alternate signal stacks that are
 * too small for the tiles; and it refuses the request if the process already has such a stack. can_use_amx
 * keeps the first answer for the whole process. */
static bool request_amx(void)
{
    enum { LEAF = 7, BF16 = 1 << 22, TILE = 1 << 24, REQUEST = 0x1023, TILE_DATA = 18 };
    unsigned a, b, c, d = 0;
    if (!__get_cpuid_count(LEAF, 0, &a, &b, &c, &d) || (d & (BF16 | TILE)) != (BF16 | TILE))
        return false;
#ifdef __linux__
    if (syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0)
        return true;
    ax_log(AX_LOG_DEBUG, "the processor has AMX, but the system does not let this process use it: %s",
           strerror(errno));
#endif
    return false;
}

static bool can_use_amx(void)
{
    enum { UNKNOWN, NO, YES };
    static _Atomic int known;
    if (known == UNKNOWN) {
        int unknown = UNKNOWN;
        atomic_compare_exchange_strong(&known, &unknown, request_amx() ? YES : NO);
    }
    return known == YES;
}

/* Returns true if the processor has F16C. Does not use __builtin_cpu_supports("f16c"), which some compilers
 * reject. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

const ax_cpu_isa *ax_cpu_isa_at(int index)
{
    const ax_cpu_isa *usable[5];
    int n = 0;
#ifdef __x86_64__
    __builtin_cpu_init();
    bool f16c = has_f16c();
    bool avx512 = f16c && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    bool bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
    if (bf16 && can_use_amx())
        usable[n++] = &ax_cpu_isa_avx512_amx;
    /* Compared with the two fp32 multiply-adds that it replaces, vdpbf16ps takes twice the time on Intel's
     * processors and half the time on AMD's. So on Intel's processors avx512 comes before avx512_bf16. */
    bool intel = __builtin_cpu_is("intel");
    if (bf16 && !intel)
        usable[n++] = &ax_cpu_isa_avx512_bf16;
    if (avx512)
        usable[n++] = &ax_cpu_isa_avx512;
    if (bf16 && intel)
        usable[n++] = &ax_cpu_isa_avx512_bf16;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && f16c)
        usable[n++] = &ax_cpu_isa_avx2;
#endif
    usable[n++] = &ax_cpu_isa_generic;
    return index < n ? usable[index] : NULL;
}

const char *ax_isa_name(int index)
{
    const ax_cpu_isa *isa = ax_cpu_isa_at(index);
    return isa ? isa->name : NULL;
}

ax_status ax_cpu_isa_choose(const ax_cpu_isa **out)
{
    const char *name;
    char why[160] = "which this processor cannot run; it can run ";
    AX_TRY(ax_runtime_get(AX_RUNTIME_ISA, &name));
    *out = ax_cpu_isa_at(0);
    if (!strcmp(name, "auto"))
        return AX_OK;
    for (int i = 0; (*out = ax_cpu_isa_at(i)); i++) {
        if (!strcmp((*out)->name, name))
            return AX_OK;
        ax_text_add(why, sizeof why, "%s%s", i ? ", " : "", (*out)->name);
    }
    *out = ax_cpu_isa_at(0);
    return ax_runtime_unavailable(AX_RUNTIME_ISA, name, (*out)->name, why);
}

ax_status ax_isa_chosen(const char **name)
{
    const ax_cpu_isa *isa;
    AX_TRY(ax_cpu_isa_choose(&isa));
    *name = isa->name;
    return AX_OK;
}
