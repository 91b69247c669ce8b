/* Shared by the files of the room machine: the rows of a description's lists, parsed. */
#ifndef AX_MACHINE_PRIVATE_H
#define AX_MACHINE_PRIVATE_H

#include "axonn/machine.h"

/* A measured GEMM. */
typedef struct machine_point {
    ax_gemm_args args; /* its pointers say whether there is such an operand */
    int64_t groups;    /* 0: not grouped */
    double seconds;
} machine_point;

/* Seconds of a GEMM as a sum: c[0]·operations + c[1] + c[2]·elements of a and b + c[3]·elements of c. */
enum { MACHINE_TERMS = 4 };
typedef struct machine_fit {
    double c[MACHINE_TERMS];
} machine_fit;

typedef struct machine_rate {
    double rate; /* 0: the kernel has no row */
    bool flops;  /* of floating-point operations, not of bytes */
} machine_rate;

typedef struct machine_bandwidth {
    int64_t inner, size;
    double rate;
} machine_bandwidth;

typedef struct machine_time {
    int coll; /* ax_coll, or AX_MACHINE_MESSAGE */
    int64_t inner, size;
    double bytes, seconds;
} machine_time;

struct ax_machine_tables {
    machine_point *point;
    size_t points;
    machine_fit fit[AX_DTYPE_COUNT];
    machine_rate kernel[AX_KERNEL_COUNT];
    machine_bandwidth *bandwidth;
    size_t bandwidths;
    machine_time *time; /* ordered by coll, inner, size, bytes */
    size_t times;
};

/* What machine_shipped returns: made from machines/NAME.yaml when the library is built. */
typedef struct machine_text {
    const char *name;
    const unsigned char *text;
    size_t size;
} machine_text;
extern const machine_text machine_texts[];
extern const size_t machine_text_count;

/* Parses the rows of all lists. What is wrong with them becomes errors of `set` (ax_option_error). */
ax_status machine_read_rows(ax_machine *machine, ax_option_set *set);
void machine_tables_free(ax_machine_tables **tables);

/* Adds the row "KEY VALUE" to a list, or replaces the row that begins with KEY. */
ax_status machine_put_row(ax_strings *list, const char *key, const char *format, double value);

/* Computes tables->fit from the points. */
void machine_fit_points(ax_machine_tables *tables);
/* Finds the time of a GEMM from points of its dtype. Returns false if there are none. */
bool machine_gemm_seconds(const ax_machine_tables *tables, const ax_gemm_args *gemm, int64_t groups,
                          double *seconds);
/* Words that are added to the name of a GEMM. `has` returns whether a GEMM is of this kind. */
typedef struct machine_addition {
    const char *word;
    bool (*has)(const ax_gemm_args *gemm);
    void (*set)(ax_gemm_args *gemm);
} machine_addition;
enum { MACHINE_ADDITIONS = 5 };
extern const machine_addition machine_additions[MACHINE_ADDITIONS];

#endif
