/* runtime: settings of a process that belong to no model and no run, such as the level of the log or the
 * instruction set of the kernels.
 *
 * Each setting has a key (runtime.isa), for configurations and command lines, and an environment variable
 * (AXONN_ISA). A value that the program sets has priority over the environment variable, which has
 * priority over the default. The values are global state of the process; all functions are thread-safe. No
 * function here is collective (ax_comm_share_runtime, in comm.h, is). */
#ifndef AXONN_RUNTIME_H
#define AXONN_RUNTIME_H

#include "axonn/option.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The table of settings: X(ID, name, type, C type, default, range, choices, placeholder, keep, help). The key
 * is runtime.NAME, the environment variable AXONN_ID. `keep` is true if the setting can change the results of
 * a run (a different order of summing the ranks' values does not count as a change). If `keep` is true, a run
 * stores the setting in its config.yaml. */
/* clang-format off */
#define AX_RUNTIME(X)                                                                                        \
    X(LOG, log, ENUM, int, "info", NULL, "error|warn|info|debug|trace", NULL, false,                         \
      "which messages are printed on standard error: those of this level and of the more important "         \
      "ones before it")                                                                                      \
    X(ISA, isa, ENUM, int, "auto", NULL, "auto|avx512_amx|avx512_bf16|avx512|avx2|generic", NULL, true,      \
      "instruction set of the CPU kernels; auto: the best of those that axonn info lists")                   \
    X(PIN, pin, ENUM, int, "auto", NULL, "auto|off", NULL, false,                                            \
      "auto: bind threads to cores if the ranks of a machine have one thread for each core that they may "   \
      "use; off: never")                                                                                     \
    X(SHARED_MEMORY, shared_memory, PATH, char *, "auto", NULL, "auto|off", "DIR", false,                    \
      "how the ranks of a machine communicate. auto: through shared memory; off: by MPI messages; DIR: "     \
      "through files in this directory, a tmpfs")                                                            \
    X(RANKS_PER_NODE, ranks_per_node, INT, int64_t, "0", "[0, 65536]", NULL, "N", false,                     \
      "communicate as if each machine were several machines of N ranks each, for tests; 0: off")             \
    X(DEVICE_MEMORY, device_memory, INT, int64_t, "0", "[0, 1152921504606846976]", NULL,         \
      "BYTES", false,                                                                                        \
      "most bytes that each rank's device may hold, on device cpu in host memory; 0: no limit")              \
    X(MACHINE, machine, PATH, char *, "here", NULL,                                                          \
      "here|alps|frontier|h100x8|h200x8|perlmutter|summit", "FILE", false,                                   \
      "description of the machine for which axonn plan plans and grid: auto chooses. here: none; the other words: those that come " \
      "with axonn; FILE: of another machine, such as axonn bench gemm --save writes")                        \
    X(PLUGINS, plugins, PATH, char *, "auto", NULL, "auto", "DIR", false,                                    \
      "directory of libaxonn_cuda.so, the plugin for device cuda; auto: the directory of the axonn "         \
      "library or program")                                                                                  \
    X(ATTENTION, attention, ENUM, int, "auto", NULL, "auto|plain|flash|cudnn", NULL, true,                   \
      "attention kernels of device cuda. auto: the best that support the call; plain: simple ones of "       \
      "axonn; flash: those of axonn on tensor cores; cudnn: those of cuDNN")                                 \
    X(PLANS, plans, PATH, char *, "on", NULL, "off|on", "DIR", true,                                         \
      "how device cuda chooses algorithms of GEMM. on: by timing them; the choices are kept in the user's "  \
      "cache directory and in run.dir; DIR: as on, but kept in DIR in place of the cache; off: the first "   \
      "that the library cuBLASLt proposes")                                                                  \
    X(PLAN_SECONDS, plan_seconds, INT, int64_t, "20", "[0, 86400]", NULL, "SECONDS", true,                   \
      "seconds that each rank may spend on timing GEMM algorithms (runtime.plans)")                          \
    X(GRAPHS, graphs, ENUM, int, "on", NULL, "on|off", NULL, false,                                          \
      "device cuda: whether kernel launches that repeat are launched as CUDA graphs")                        \
    X(NCCL, nccl, PATH, char *, "auto", NULL, "auto|off", "FILE", true,                                      \
      "collectives between GPUs. auto: by NCCL, if it is found; off: through host memory; FILE: by this "    \
      "NCCL library")
/* clang-format on */

typedef enum ax_runtime_id {
#define AX_RUNTIME_ID_(ID, ...) AX_RUNTIME_##ID,
    AX_RUNTIME(AX_RUNTIME_ID_)
#undef AX_RUNTIME_ID_
        AX_RUNTIME_COUNT
} ax_runtime_id;

/* The values of all settings. If a table of options has the keys runtime.*, this struct is a member of the
 * caller's struct. Such a table gets the rows of these keys by AX_RUNTIME(ROW), where ROW adds the offset of
 * this member: #define ROW(...) AX_RUNTIME_OPTION(offsetof(my_struct, runtime), __VA_ARGS__), */
typedef struct ax_runtime_values {
#define AX_RUNTIME_FIELD_(ID, name, type, ctype, ...) ctype name;
    AX_RUNTIME(AX_RUNTIME_FIELD_)
#undef AX_RUNTIME_FIELD_
} ax_runtime_values;
#define AX_RUNTIME_OPTION(base, ID, name, kind, ctype, preset_, range_, choices_, meta_, keep, help_)        \
    {                                                                                                        \
        .key = "runtime." #name, .type = AX_OPT_##kind,                                                      \
        .offset = (base) + offsetof(ax_runtime_values, name), .preset = preset_, .range = range_,            \
        .choices = choices_, .meta = meta_, .help = help_, .variable = "AXONN_" #ID, .not_dumped = !(keep)   \
    }

/* One row for each setting, indexed by ax_runtime_id. The offset of a row is that of its field in
 * ax_runtime_values. */
extern const ax_option ax_runtime_options[AX_RUNTIME_COUNT];

/* Gets a setting's value as text. *value is valid until the process ends or changes its environment.
 * AX_ERR_USAGE if the environment variable has a value that is not allowed. */
AX_MUST_CHECK ax_status ax_runtime_get(ax_runtime_id id, const char **value);
/* Gets a setting's value as text (ax_runtime_get), and fixes it, for code that cannot adopt another value
 * later. For the rest of the process, ax_runtime_set fails for any other value. */
AX_MUST_CHECK ax_status ax_runtime_fix(ax_runtime_id id, const char **value);
/* Returns what gave the setting its value, for messages: the environment variable ("AXONN_ISA"), or the key
 * ("runtime.isa") if the program set the value or the default applies. */
const char *ax_runtime_source(ax_runtime_id id);
/* Checks the environment variables of all settings whose value comes from the environment. AX_ERR_USAGE if
 * such an environment variable has a value that is not allowed; the message names it. */
AX_MUST_CHECK ax_status ax_runtime_check(void);

/* Sets a setting's value. With NULL, the environment variable or the default applies again. A new value of
 * shared_memory or ranks_per_node affects only worlds (ax_comm_world_create) that are created later. A new
 * value of device_memory affects only contexts (ax_ctx) that are created and plans that are checked later.
 * Only axonn plan and grid: auto read machine. A new value of isa or attention affects only devices that are
 * opened later; a new value of plans or plan_seconds, only such devices and later calls of
 * ax_device_keep_plans. A new value of graphs affects only replays that are created later (ax_replay_create).
 * AX_ERR_USAGE if the value is not allowed, or comes too late (ax_runtime_fix). */
AX_MUST_CHECK ax_status ax_runtime_set(ax_runtime_id id, const char *value);
/* Applies each key runtime.* that a file or the command line gave in `set` to the setting of that name. The
 * table of `set` must have the keys runtime.* (AX_RUNTIME_OPTION). */
AX_MUST_CHECK ax_status ax_runtime_set_given(const ax_option_set *set);

/* Sets a preferred value, which need not be available on this machine. A resumed run prefers the value with
 * which it began, maybe on another machine. If this machine cannot use the value, a warning says so, and the
 * best available value is used. */
AX_MUST_CHECK ax_status ax_runtime_prefer(ax_runtime_id id, const char *value);
/* Reacts to a value that this machine cannot use: `value`, which ax_runtime_get gave for the setting. `why`
 * is a clause for the message: "which …". If the value is only preferred (ax_runtime_prefer), logs a warning,
 * sets the setting to `best` and returns AX_OK. Also returns AX_OK if another thread has replaced the value
 * meanwhile. Else AX_ERR_USAGE. */
AX_MUST_CHECK ax_status ax_runtime_unavailable(ax_runtime_id id, const char *value, const char *best,
                                               const char *why);

#ifdef __cplusplus
}
#endif
#endif
