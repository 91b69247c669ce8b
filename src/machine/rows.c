/* Parses the rows of the lists of a description: words between spaces. */
#include "private.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS = 16, ROW = 160 };

/* One row of a list. */
typedef struct row {
    ax_option_set *set;
    const char *key, *text; /* of the list; of the whole row */
    size_t number;          /* from 1 */
    const ax_machine *machine;
    char copy[ROW];
    char *word[WORDS];
    int words;
} row;

/* Records an error of the row. Returns false. */
AX_PRINTF(2, 3) static bool wrong(const row *r, const char *fmt, ...)
{
    char what[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    ax_option_error(r->set, r->key, "row %zu, \"%.80s\": %s", r->number, r->text, what);
    return false;
}

/* Splits the row into words; false if it has fewer than `least` or too many. */
static bool split(row *r, int least, const char *form)
{
    snprintf(r->copy, sizeof r->copy, "%s", r->text);
    r->words = 0;
    for (char *rest = r->copy, *word; (word = strtok_r(rest, " ", &rest)) && r->words < WORDS;)
        r->word[r->words++] = word;
    return (strlen(r->text) < ROW && r->words >= least && r->words < WORDS) ||
           wrong(r, "must have the form %s", form);
}

static bool read_number(const row *r, const char *word, const char *what, double *out)
{
    char *end;
    *out = strtod(word, &end);
    return (end != word && !*end && *out >= 1e-30 && *out <= 1e30) ||
           wrong(r, "%s must be a number above 0 (1e-30 to 1e30), not \"%.20s\"", what, word);
}

static bool read_count(const row *r, const char *word, const char *what, int64_t least, int64_t *out)
{
    char *end;
    *out = strtoll(word, &end, 10);
    return (end != word && !*end && *out >= least && *out <= INT32_MAX) ||
           wrong(r, "%s must be an integer of at least %lld, not \"%.20s\"", what, (long long)least, word);
}

/* Finds a word in a list of names; if it is not there, names the nearest. */
static bool read_name(const row *r, const char *word, const char *what, const char *(*name)(int), int *out)
{
    const char *nearest = NULL;
    int least = 1000;
    for (*out = 0; name(*out); ++*out) {
        int distance = ax_edit_distance(name(*out), word);
        if (!distance)
            return true;
        nearest = distance < least ? name(*out) : nearest;
        least = (int)ax_min(distance, least);
    }
    return wrong(r, "no %s is named \"%.30s\"; the nearest is %s", what, word, nearest);
}

/* ---- GEMMs ----------------------------------------------------------------------------------------- */

/* Stands for an operand that a launch has. */
static char present;

static bool has_accumulate(const ax_gemm_args *g) { return g->accumulate; }
static bool has_bias(const ax_gemm_args *g) { return g->bias != NULL; }
static bool has_sums(const ax_gemm_args *g) { return g->col_sums != NULL; }
static bool has_activation(const ax_gemm_args *g) { return g->epilogue == AX_EPILOGUE_ACTIVATION; }
static bool has_gradient(const ax_gemm_args *g) { return g->epilogue == AX_EPILOGUE_ACTIVATION_GRAD; }
static void set_accumulate(ax_gemm_args *g) { g->accumulate = true; }
static void set_bias(ax_gemm_args *g) { g->bias = &present; }
static void set_sums(ax_gemm_args *g) { g->col_sums = &present; }
static void set_activation(ax_gemm_args *g) { g->epilogue = AX_EPILOGUE_ACTIVATION; }
static void set_gradient(ax_gemm_args *g) { g->epilogue = AX_EPILOGUE_ACTIVATION_GRAD; }

const machine_addition machine_additions[MACHINE_ADDITIONS] = {{"+=", has_accumulate, set_accumulate},
                                                               {"+bias", has_bias, set_bias},
                                                               {"+sums", has_sums, set_sums},
                                                               {"gelu", has_activation, set_activation},
                                                               {"gelu'", has_gradient, set_gradient}};

char *ax_machine_gemm_name(const ax_gemm_args *g, int64_t groups, char out[AX_MACHINE_GEMM_NAME])
{
    snprintf(out, AX_MACHINE_GEMM_NAME, "%c%c %lldx%lldx%lld %s", g->trans_a ? 'T' : 'N',
             g->trans_b ? 'T' : 'N', (long long)g->m, (long long)g->n, (long long)g->k,
             ax_dtype_name(g->dtype));
    if (g->c_dtype != g->dtype)
        ax_text_add(out, AX_MACHINE_GEMM_NAME, " %s", ax_dtype_name(g->c_dtype));
    for (int i = 0; i < MACHINE_ADDITIONS; i++)
        if (machine_additions[i].has(g))
            ax_text_add(out, AX_MACHINE_GEMM_NAME, " %s", machine_additions[i].word);
    if (groups)
        ax_text_add(out, AX_MACHINE_GEMM_NAME, " %lld groups", (long long)groups);
    return out;
}

static const char *float_name(int index)
{
    static const ax_dtype floats[] = {AX_F64, AX_F32, AX_BF16, AX_F16};
    return (unsigned)index < AX_COUNT(floats) ? ax_dtype_name(floats[index]) : NULL;
}

static bool is_dtype(const char *word, ax_dtype *out)
{
    for (int i = 0; i < AX_DTYPE_COUNT; i++)
        if (!strcmp(ax_dtype_name((ax_dtype)i), word)) {
            *out = (ax_dtype)i;
            return true;
        }
    return false;
}

/* Reads a word after the dtype of the operands. Returns how many words it took, 0 if it is wrong. */
static int read_addition(const row *r, int at, machine_point *p)
{
    if (is_dtype(r->word[at], &p->args.c_dtype))
        return 1;
    for (int i = 0; i < MACHINE_ADDITIONS; i++)
        if (!strcmp(machine_additions[i].word, r->word[at])) {
            machine_additions[i].set(&p->args);
            return 1;
        }
    if (at + 2 < r->words && !strcmp(r->word[at + 1], "groups"))
        return read_count(r, r->word[at], "the number of groups", 1, &p->groups) ? 2 : 0;
    wrong(r, "\"%.20s\" is no dtype, +=, +bias, +sums, gelu, gelu' or N groups", r->word[at]);
    return 0;
}

static bool read_shape(const row *r, const char *word, ax_gemm_args *g)
{
    int64_t *const out[] = {&g->m, &g->n, &g->k};
    const char *rest = word;
    for (size_t i = 0; i < AX_COUNT(out); i++) {
        char *end;
        *out[i] = *rest >= '1' && *rest <= '9' ? strtoll(rest, &end, 10) : 0;
        if (*out[i] < 1 || *out[i] > INT32_MAX || *end != (i + 1 < AX_COUNT(out) ? 'x' : 0))
            return wrong(r, "\"%.30s\" is no shape MxNxK", word);
        rest = end + 1;
    }
    return true;
}

static bool read_point(row *r, void *out)
{
    machine_point *p = out;
    const char *layout;
    double rate;
    int name;
    if (!split(r, 4, "\"NT 1024x768x3072 bf16 1.5e+14\": layout, shape, dtype, additions, FLOP/s"))
        return false;
    layout = r->word[0];
    if (strlen(layout) != 2 || strspn(layout, "NT") != 2)
        return wrong(r, "the layout must be NN, NT, TN or TT, not \"%.20s\"", layout);
    p->args.trans_a = layout[0] == 'T';
    p->args.trans_b = layout[1] == 'T';
    if (!read_shape(r, r->word[1], &p->args) ||
        !read_name(r, r->word[2], "dtype of operands", float_name, &name) ||
        !is_dtype(r->word[2], &p->args.dtype))
        return false;
    p->args.c_dtype = p->args.dtype;
    for (int at = 3, taken; at < r->words - 1; at += taken)
        if (!(taken = read_addition(r, at, p)))
            return false;
    if (!read_number(r, r->word[r->words - 1], "FLOP/s", &rate))
        return false;
    p->seconds = 2 * (double)p->args.m * (double)p->args.n * (double)p->args.k / rate;
    return true;
}

int64_t ax_machine_gemms(const ax_machine *m) { return m->tables ? (int64_t)m->tables->points : 0; }

void ax_machine_gemm_at(const ax_machine *m, int64_t index, ax_gemm_args *gemm, int64_t *groups,
                        double *seconds)
{
    const machine_point *p = &m->tables->point[index];
    *gemm = p->args;
    *groups = p->groups;
    *seconds = p->seconds;
}

/* ---- kernels --------------------------------------------------------------------------------------- */

static const char *kernel_name(int index)
{
    return index < AX_KERNEL_COUNT ? ax_kernel_name((ax_kernel)index) : NULL;
}

static bool read_kernel(row *r, void *out)
{
    int kernel;
    machine_rate *rate, mine;
    if (!split(r, 3, "\"adamw 1.2e+12 B/s\": kernel, rate, B/s or FLOP/s") ||
        !read_name(r, r->word[0], "kernel", kernel_name, &kernel) ||
        !read_number(r, r->word[1], "the rate", &mine.rate))
        return false;
    mine.flops = !strcmp(r->word[2], "FLOP/s");
    if (r->words != 3 || (!mine.flops && strcmp(r->word[2], "B/s") != 0))
        return wrong(r, "the unit must be B/s or FLOP/s, not \"%.20s\"", r->word[2]);
    rate = &((machine_rate *)out)[kernel];
    if (rate->rate > 0)
        return wrong(r, "the kernel has a row already");
    *rate = mine;
    return true;
}

/* ---- communication --------------------------------------------------------------------------------- */

static const char *coll_name(int index)
{
    return index == AX_MACHINE_MESSAGE  ? "message"
           : index < AX_MACHINE_MESSAGE ? ax_coll_name((ax_coll)index)
                                        : NULL;
}

/* Reads distance and size of a group, and checks that the machine has such groups, which fill its nodes. */
static bool read_group(const row *r, int at, bool fills, int64_t *inner, int64_t *size)
{
    const ax_machine *m = r->machine;
    if (!read_count(r, r->word[at], "the distance of neighbours", 1, inner) ||
        !read_count(r, r->word[at + 1], "the number of ranks", 2, size))
        return false;
    if (!ax_option_given(r->set, "ranks_per_node") || !ax_option_ok(r->set, "nodes"))
        return true;
    if (*inner * (fills ? *size : 1) > ax_machine_ranks(m))
        return wrong(r, "%lld ranks at distance %lld are more than the %lld of the machine", (long long)*size,
                     (long long)*inner, (long long)ax_machine_ranks(m));
    return !fills || *inner * *size > m->ranks_per_node || m->ranks_per_node % (*inner * *size) == 0 ||
           wrong(r, "groups of %lld ranks at distance %lld do not fill a node of %lld ranks",
                 (long long)*size, (long long)*inner, (long long)m->ranks_per_node);
}

static bool read_bandwidth(row *r, void *out)
{
    machine_bandwidth *b = out;
    return split(r, 3, "\"1 4 2.25e+11\": distance of neighbours, ranks, B/s") &&
           (r->words == 3 || wrong(r, "has %d words, not 3", r->words)) &&
           read_group(r, 0, true, &b->inner, &b->size) && read_number(r, r->word[2], "the rate", &b->rate);
}

static bool read_time(row *r, void *out)
{
    machine_time *t = out;
    int64_t bytes;
    if (!split(r, 5,
               "\"all_reduce 1 4 65536 0.00012\": name, distance of neighbours, ranks, bytes, seconds") ||
        (r->words != 5 && !wrong(r, "has %d words, not 5", r->words)) ||
        !read_name(r, r->word[0], "collective", coll_name, &t->coll) ||
        !read_group(r, 1, t->coll != AX_MACHINE_MESSAGE, &t->inner, &t->size) ||
        !read_count(r, r->word[3], "the number of bytes", 0, &bytes))
        return false;
    t->bytes = (double)bytes;
    return read_number(r, r->word[4], "the time", &t->seconds);
}

ax_status ax_machine_put_gemm(ax_machine *m, const ax_gemm_args *gemm, int64_t groups, double seconds)
{
    char name[AX_MACHINE_GEMM_NAME];
    double flops = 2 * (double)gemm->m * (double)gemm->n * (double)gemm->k;
    return machine_put_row(&m->device.gemm.points, ax_machine_gemm_name(gemm, groups, name), "%.6g",
                           flops / seconds);
}

ax_status ax_machine_put_kernel(ax_machine *m, ax_kernel kernel, const ax_kernel_total *total)
{
    const bool flops = kernel == AX_K_attention || kernel == AX_K_attention_grad;
    const double launches = (double)total->calls * m->device.launch,
                 seconds = fmax(total->seconds - launches, total->seconds / 2),
                 work = flops ? total->flops : total->bytes;
    return work > 0 && seconds > 0 ? machine_put_row(&m->device.kernels, ax_kernel_name(kernel),
                                                     flops ? "%.6g FLOP/s" : "%.6g B/s", work / seconds)
                                   : AX_OK;
}

ax_status ax_machine_put_time(ax_machine *m, int coll, int inner, int size, int64_t bytes, double seconds)
{
    char name[96];
    snprintf(name, sizeof name, "%s %d %d %lld", coll_name(coll), inner, size, (long long)bytes);
    return machine_put_row(&m->collectives, name, "%.6g", seconds);
}

/* ---- all lists ------------------------------------------------------------------------------------- */

/* Reads the rows of one list into an array of elements of `size` bytes, or, if `size` is 0, all into *out. */
static ax_status read_list(const ax_machine *m, ax_option_set *set, const char *key, const ax_strings *list,
                           bool (*read)(row *, void *), size_t size, void *out, size_t *n)
{
    if (!ax_option_ok(set, key))
        return AX_OK;
    if (size)
        AX_TRY(ax_calloc(list->count, size, out));
    for (size_t i = 0; i < list->count; i++) {
        row r = {.set = set, .key = key, .text = list->items[i], .number = i + 1, .machine = m};
        char *to = size ? *(char **)out + *n * size : out;
        if (read(&r, to) && size)
            ++*n;
        else if (size)
            memset(to, 0, size);
    }
    return AX_OK;
}

static int compare_groups(int64_t inner, int64_t size, int64_t other_inner, int64_t other_size)
{
    return inner != other_inner ? (inner > other_inner) - (inner < other_inner)
                                : (size > other_size) - (size < other_size);
}

static int compare_times(const void *a, const void *b)
{
    const machine_time *t = a, *u = b;
    int groups = compare_groups(t->inner, t->size, u->inner, u->size);
    return t->coll != u->coll ? t->coll - u->coll
           : groups           ? groups
                              : (t->bytes > u->bytes) - (t->bytes < u->bytes);
}

static bool same_point(const machine_point *p, const machine_point *q)
{
    char name[AX_MACHINE_GEMM_NAME], other[AX_MACHINE_GEMM_NAME];
    return !strcmp(ax_machine_gemm_name(&p->args, p->groups, name),
                   ax_machine_gemm_name(&q->args, q->groups, other));
}

/* Rows that contradict one another are errors: two for one GEMM, one group, or one number of bytes. */
static void check_doubles(const ax_machine_tables *t, ax_option_set *set)
{
    for (size_t i = 0; i < t->points; i++)
        for (size_t j = 0; j < i; j++)
            if (t->point[i].args.m == t->point[j].args.m && same_point(&t->point[i], &t->point[j])) {
                char name[AX_MACHINE_GEMM_NAME];
                ax_option_error(set, "device.gemm.points", "there are two rows for %s",
                                ax_machine_gemm_name(&t->point[i].args, t->point[i].groups, name));
            }
    for (size_t i = 0; i < t->bandwidths; i++)
        for (size_t j = 0; j < i; j++)
            if (!compare_groups(t->bandwidth[i].inner, t->bandwidth[i].size, t->bandwidth[j].inner,
                                t->bandwidth[j].size))
                ax_option_error(set, "bandwidths", "there are two rows for %lld ranks at distance %lld",
                                (long long)t->bandwidth[i].size, (long long)t->bandwidth[i].inner);
    for (size_t i = 1; i < t->times; i++)
        if (!compare_times(&t->time[i - 1], &t->time[i]))
            ax_option_error(set, "collectives",
                            "there are two rows for %s of %lld ranks at distance %lld, %.0f bytes",
                            coll_name(t->time[i].coll), (long long)t->time[i].size,
                            (long long)t->time[i].inner, t->time[i].bytes);
}

/* Takes the time of a larger number of bytes where it was measured to be less, so that times rise with bytes:
 * what delayed the smaller one was something else. */
static void make_rise(ax_machine_tables *t)
{
    for (size_t i = t->times; i-- > 1;) {
        const machine_time *larger = &t->time[i];
        machine_time *smaller = &t->time[i - 1];
        if (smaller->coll == larger->coll &&
            !compare_groups(smaller->inner, smaller->size, larger->inner, larger->size))
            smaller->seconds = fmin(smaller->seconds, larger->seconds);
    }
}

ax_status machine_read_rows(ax_machine *m, ax_option_set *set)
{
    AX_TRY(ax_calloc(1, sizeof *m->tables, &m->tables));
    ax_machine_tables *t = m->tables;
    AX_TRY(read_list(m, set, "device.gemm.points", &m->device.gemm.points, read_point, sizeof *t->point,
                     &t->point, &t->points));
    AX_TRY(read_list(m, set, "device.kernels", &m->device.kernels, read_kernel, 0, t->kernel, NULL));
    AX_TRY(read_list(m, set, "bandwidths", &m->bandwidths, read_bandwidth, sizeof *t->bandwidth,
                     &t->bandwidth, &t->bandwidths));
    AX_TRY(
        read_list(m, set, "collectives", &m->collectives, read_time, sizeof *t->time, &t->time, &t->times));
    if (t->times)
        qsort(t->time, t->times, sizeof *t->time, compare_times);
    check_doubles(t, set);
    make_rise(t);
    return AX_OK;
}

void machine_tables_free(ax_machine_tables **tables)
{
    if (!*tables)
        return;
    free((*tables)->point);
    free((*tables)->bandwidth);
    free((*tables)->time);
    free(*tables);
    *tables = NULL;
}
