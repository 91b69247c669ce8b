/* Building blocks and running of kernel cases; the lists themselves are in kernel_list.c. */
#include "support/kernel_cases.h"

#include "support/kernel_list.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { GUARD = 128 };

/* Returns byte `at` of the guard memory around operands. In every floating-point type the guard memory holds
 * NaN, so that a read beyond an operand shows in the result. */
static unsigned char sentinel(size_t at) { return at % 2 ? 0xFF : 0xA5; }

void *kc_add(kernel_case *c, const char *name, kc_role role, size_t field, ax_dtype dtype, int64_t count,
             double terms)
{
    assert_true(c->operands < KC_OPERANDS);
    kc_operand *o = &c->operand[c->operands++];
    *o = (kc_operand){name, role, field, field, -1, dtype, count, NULL, 0, 2, 0, 0};
    o->data = malloc((size_t)count * ax_dtype_size(dtype) + 1);
    assert_non_null(o->data);
    memset(o->data, 0xFF, (size_t)count * ax_dtype_size(dtype));
    /* The errors of `terms` roundings in sequence add up like a random walk; 4 standard deviations bound
     * it. */
    double unit = ax_dtype_accum(c->dtype) == AX_F64 ? 0x1p-53 : 0x1p-24, root = 1;
    while (root * root < terms)
        root++;
    o->bound = terms > 0 ? 4 * root * unit : 0;
    memcpy(c->args.bytes + field, &o->data, sizeof o->data);
    return o->data;
}

void *kc_add_to_table(kernel_case *c, int table, const char *name, kc_role role, size_t field, ax_dtype dtype,
                      int64_t count, double terms)
{
    unsigned char args[KC_ARGS_BYTES];
    memcpy(args, c->args.bytes, sizeof args);
    void *data = kc_add(c, name, role, 0, dtype, count, terms);
    memcpy(c->args.bytes, args, sizeof args);
    kc_operand *o = &c->operand[c->operands - 1];
    o->table = table;
    o->field = o->alias = field;
    memcpy((char *)c->operand[table].data + field, &data, sizeof data);
    return data;
}

/* Writes the dtype of operand `o` of case c into its table. */
static void put_type(kernel_case *c, const kc_operand *o)
{
    if (o->typed)
        memcpy((char *)c->operand[o->table].data + o->typed, &o->dtype, sizeof o->dtype);
}

void kc_typed(kernel_case *c, size_t field)
{
    kc_operand *o = &c->operand[c->operands - 1];
    o->typed = field;
    put_type(c, o);
}

void kc_alias(kernel_case *c, size_t field)
{
    kc_operand *o = &c->operand[c->operands - 1];
    o->alias = field;
    memcpy(c->args.bytes + field, &o->data, sizeof o->data);
}

/* Returns the next normal number. The numbers come from a table, because generating them takes longer than
 * the tests. The length of the table is a prime, so that no two rows of a matrix are equal. */
double kc_normal(kernel_case *c)
{
    enum { N = 65519 };
    static float table[N];
    static bool made;
    for (uint64_t i = 0; !made && i < N; i++)
        table[i] = ax_rng_normal(20240607, i);
    made = true;
    return (double)table[c->seed++ % N];
}

int64_t kc_integer(kernel_case *c, int64_t lo, int64_t hi)
{
    return lo + (int64_t)(ax_rng_uniform(77, c->seed++) * (float)(hi - lo));
}

void kc_fill(kernel_case *c, double mean, double std)
{
    const kc_operand *o = &c->operand[c->operands - 1];
    /* the first element is fixed, so that a sum of one element is not close to zero */
    for (int64_t i = 0; i < o->count; i++)
        ax_store(o->dtype, o->data, i, mean + std * (i ? kc_normal(c) : 0.5));
}

void *kc_add_normal(kernel_case *c, const char *name, kc_role role, size_t field, ax_dtype dtype,
                    int64_t count, double terms)
{
    void *data = kc_add(c, name, role, field, dtype, count, terms);
    kc_fill(c, 0.25, 1);
    return data;
}

void kernel_case_point(kernel_case *c)
{
    for (int i = 0; i < c->operands; i++) {
        const kc_operand *o = &c->operand[i];
        unsigned char *holder = o->table < 0 ? c->args.bytes : c->operand[o->table].data;
        memcpy(holder + o->field, &o->data, sizeof o->data);
        memcpy(holder + o->alias, &o->data, sizeof o->data);
        if (o->host)
            memcpy(c->args.bytes + o->host, &o->data, sizeof o->data);
    }
}

void kernel_case_free(kernel_case *c)
{
    for (int i = 0; i < c->operands; i++)
        free(c->operand[i].data);
    c->operands = 0;
}

bool kernel_case_has_16bit(const kernel_case *c)
{
    for (int i = 0; i < c->operands; i++)
        if (c->operand[i].dtype == AX_BF16 || c->operand[i].dtype == AX_F16)
            return true;
    return false;
}

static bool is_16bit(ax_dtype dtype) { return dtype == AX_BF16 || dtype == AX_F16; }

void kernel_case_widen(const kernel_case *from, kernel_case *out)
{
    *out = *from;
    if (is_16bit(out->dtype))
        out->dtype = AX_F32;
    for (int i = 0; i < out->dtype_fields; i++) {
        ax_dtype dtype;
        unsigned char *field = out->args.bytes + out->dtype_field[i];
        memcpy(&dtype, field, sizeof dtype);
        dtype = is_16bit(dtype) ? AX_F32 : dtype;
        memcpy(field, &dtype, sizeof dtype);
    }
    for (int i = 0; i < out->operands; i++) {
        kc_operand *o = &out->operand[i];
        const kc_operand *old = &from->operand[i];
        o->dtype = is_16bit(o->dtype) ? AX_F32 : o->dtype;
        size_t bytes = (size_t)o->count * ax_dtype_size(o->dtype);
        o->data = malloc(bytes + 1);
        assert_non_null(o->data);
        if (o->role == KC_OUT)
            memset(o->data, 0xFF, bytes);
        else if (o->dtype == old->dtype)
            memcpy(o->data, old->data, bytes);
        else
            for (int64_t j = 0; j < o->count; j++)
                ax_store(o->dtype, o->data, j, ax_load(old->dtype, old->data, j));
        put_type(out, o);
    }
}

/* Computes the offset of each operand in the memory block of a run, and returns the size of the block. */
static size_t compute_offsets(const kernel_case *c, int skew, size_t at[KC_OPERANDS])
{
    size_t total = GUARD;
    for (int i = 0; i < c->operands; i++) {
        size_t size = ax_dtype_size(c->operand[i].dtype);
        at[i] = total + (size_t)skew * size;
        total = (size_t)ax_round_up((int64_t)(at[i] + (size_t)c->operand[i].count * size), 64) + GUARD;
    }
    return total;
}

/* Fails if a kernel wrote between operands. */
static void check_guards(const kernel_case *c, const size_t at[KC_OPERANDS], const unsigned char *image,
                         size_t total)
{
    size_t from = 0;
    for (int i = 0; i <= c->operands; i++) {
        size_t to = i < c->operands ? at[i] : total;
        for (size_t byte = from; byte < to; byte++)
            if (image[byte] != sentinel(byte))
                fail_msg("%s: wrote %zd bytes from the end of %s", c->name, (ssize_t)(byte - from),
                         i ? c->operand[i - 1].name : "nothing");
        if (i < c->operands)
            from = at[i] + (size_t)c->operand[i].count * ax_dtype_size(c->operand[i].dtype);
    }
}

void kernel_case_run(ax_device *dev, const kernel_case *c, int skew, void *result[KC_OPERANDS])
{
    size_t at[KC_OPERANDS], total = compute_offsets(c, skew, at);
    unsigned char *image = malloc(total), *given = malloc(total);
    void *memory;
    ax_stream stream = {dev, NULL};
    kernel_case call = *c;
    assert_true(image && given);
    assert_int_equal(ax_device_alloc(dev, total, &memory), AX_OK);
    for (size_t byte = 0; byte < total; byte++)
        image[byte] = sentinel(byte);
    for (int i = 0; i < c->operands; i++) {
        const kc_operand *o = &c->operand[i];
        char *address = (char *)memory + at[i];
        memcpy(image + at[i], o->data, (size_t)o->count * ax_dtype_size(o->dtype));
        unsigned char *holder = o->table < 0 ? call.args.bytes : image + at[o->table];
        memcpy(holder + o->field, &address, sizeof address);
        memcpy(holder + o->alias, &address, sizeof address);
        char *copy = (char *)image + at[i];
        if (o->host)
            memcpy(call.args.bytes + o->host, &copy, sizeof copy);
    }
    memcpy(given, image, total);
    assert_int_equal(ax_copy_in(&stream, memory, image, total), AX_OK);
    if (ax_launch(&stream, c->kernel, call.args.bytes) != AX_OK)
        fail_msg("%s: %s", c->name, ax_error_message());
    assert_int_equal(ax_copy_out(&stream, image, memory, total), AX_OK);
    ax_device_free(dev, memory, total);
    check_guards(c, at, image, total);
    for (int i = 0; i < c->operands; i++) {
        size_t bytes = (size_t)c->operand[i].count * ax_dtype_size(c->operand[i].dtype);
        result[i] = malloc(bytes + 1);
        assert_non_null(result[i]);
        bool in = c->operand[i].role == KC_IN; /* an input is returned as the case has it: in `image`, a table
                                                  of pointers has addresses that are no longer valid */
        if (in && memcmp(image + at[i], given + at[i], bytes))
            fail_msg("%s: changed its input %s", c->name, c->operand[i].name);
        memcpy(result[i], in ? (unsigned char *)c->operand[i].data : image + at[i], bytes);
    }
    for (int i = c->operands; i < KC_OPERANDS; i++)
        result[i] = NULL;
    free(image);
    free(given);
}

void kc_results_free(void *result[KC_OPERANDS])
{
    for (int i = 0; i < KC_OPERANDS; i++)
        free(result[i]);
}
