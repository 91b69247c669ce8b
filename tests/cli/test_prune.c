/* cli: axonn prune, compared with a plain sort of all elements. */
#include "axonn/ckpt.h"
#include "cli/cli_test.h"
#include "support/sanitized.h"

#include <math.h>

enum { LAYERS = 2, VOCAB = 31, MATRICES = 7 * LAYERS, ARRAYS = 32 };

static int set_up(void **state)
{
    (void)state;
    return chdir(AXONN_BUILD_DIR) || ax_remove_tree("cli-prune") != AX_OK ||
           ax_mkdirs("cli-prune") != AX_OK || chdir("cli-prune");
}

static int tear_down(void **state)
{
    (void)state;
    return chdir("..") || ax_remove_tree("cli-prune") != AX_OK;
}

#define OK(call) assert_int_equal(call, AX_OK)

/* ---- models -------------------------------------------------------------------------------------- */

typedef enum fill { NORMAL, TIES, EQUAL, ZEROS, TINY } fill;

/* A model, and what is done with it. A Llama has heads of 6, 2 for queries and 1 for keys. */
typedef struct test_case {
    bool gpt2;
    const char *prefix; /* of array names, which GPT-2's files may lack */
    int64_t hidden, ffn;
    ax_dtype dtype;
    fill fill;
    int64_t shard_bytes; /* 0: one file */
    double density;
    bool whole;          /* --scope model */
    const char *skip;    /* arguments of --skip, or NULL */
    const char *skipped; /* matrices that these mean: letters q k v p g u d, of both blocks; or a block's
                            number and letters */
} test_case;

static float value_of(fill kind, int64_t i)
{
    const float x = (float)ax_rng_normal(7, (uint64_t)i);
    switch (kind) {
    case TIES:
        return (float)(1 + i * 7 % 5) * (i % 3 ? 0.25F : -0.25F);
    case EQUAL:
        return i % 2 ? 0.5F : -0.5F;
    case ZEROS:
        return i % 4 ? x : i % 8 ? 0.0F : -0.0F;
    case TINY:
        return x * (i % 3 ? 0x1p-23F : 0x1p-20F); /* mostly subnormal in fp16 */
    default:
        return x;
    }
}

/* Adds an array to the plan of a model's files. `form` is its name with %s for the prefix and %d for the
 * block. */
static void add(ax_st_array *arrays, int *n, const test_case *t, const char *form, int block, int64_t rows,
                int64_t cols)
{
    char key[128], name[64];
    const char *hole = strstr(form, "%d");
    if (hole)
        snprintf(name, sizeof name, "%.*s%d%s", (int)(hole - form), form, block, hole + 2);
    else
        snprintf(name, sizeof name, "%s", form);
    snprintf(key, sizeof key, "%s%s", t->prefix, name);
    arrays[*n] = (ax_st_array){
        .key = strdup(key), .dtype = t->dtype, .ndim = cols ? 2 : 1, .dim = {rows, cols ? cols : 1}};
    ++*n;
}

static void plan_gpt2(ax_st_array *arrays, int *n, const test_case *t)
{
    const int64_t d = t->hidden, f = t->ffn;
    add(arrays, n, t, "wte.weight", 0, VOCAB, d);
    add(arrays, n, t, "wpe.weight", 0, 16, d);
    for (int i = 0; i < LAYERS; i++) {
        add(arrays, n, t, "h.%d.ln_1.weight", i, d, 0);
        add(arrays, n, t, "h.%d.ln_1.bias", i, d, 0);
        add(arrays, n, t, "h.%d.attn.c_attn.weight", i, d, 3 * d);
        add(arrays, n, t, "h.%d.attn.c_attn.bias", i, 3 * d, 0);
        add(arrays, n, t, "h.%d.attn.c_proj.weight", i, d, d);
        add(arrays, n, t, "h.%d.attn.c_proj.bias", i, d, 0);
        add(arrays, n, t, "h.%d.ln_2.weight", i, d, 0);
        add(arrays, n, t, "h.%d.ln_2.bias", i, d, 0);
        add(arrays, n, t, "h.%d.mlp.c_fc.weight", i, d, f);
        add(arrays, n, t, "h.%d.mlp.c_fc.bias", i, f, 0);
        add(arrays, n, t, "h.%d.mlp.c_proj.weight", i, f, d);
        add(arrays, n, t, "h.%d.mlp.c_proj.bias", i, d, 0);
    }
    add(arrays, n, t, "ln_f.weight", 0, d, 0);
    add(arrays, n, t, "ln_f.bias", 0, d, 0);
}

static void plan_llama(ax_st_array *arrays, int *n, const test_case *t)
{
    const int64_t d = t->hidden, f = t->ffn;
    add(arrays, n, t, "model.embed_tokens.weight", 0, VOCAB, d);
    for (int i = 0; i < LAYERS; i++) {
        add(arrays, n, t, "model.layers.%d.input_layernorm.weight", i, d, 0);
        add(arrays, n, t, "model.layers.%d.self_attn.q_proj.weight", i, 12, d);
        add(arrays, n, t, "model.layers.%d.self_attn.k_proj.weight", i, 6, d);
        add(arrays, n, t, "model.layers.%d.self_attn.v_proj.weight", i, 6, d);
        add(arrays, n, t, "model.layers.%d.self_attn.o_proj.weight", i, d, 12);
        add(arrays, n, t, "model.layers.%d.post_attention_layernorm.weight", i, d, 0);
        add(arrays, n, t, "model.layers.%d.mlp.gate_proj.weight", i, f, d);
        add(arrays, n, t, "model.layers.%d.mlp.up_proj.weight", i, f, d);
        add(arrays, n, t, "model.layers.%d.mlp.down_proj.weight", i, d, f);
    }
    add(arrays, n, t, "model.norm.weight", 0, d, 0);
    add(arrays, n, t, "lm_head.weight", 0, VOCAB, d);
    add(arrays, n, t, "left_alone", 0, 3, 0);
}

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fputs(text, file) < 0, 0);
    assert_int_equal(fclose(file), 0);
}

static void write_config(const test_case *t, const char *dir)
{
    char path[64], text[512];
    if (t->gpt2)
        snprintf(text, sizeof text,
                 "{\"model_type\": \"gpt2\", \"n_layer\": %d, \"n_embd\": %d, \"n_head\": 2,\"n_positions\": "
                 "16, \"n_inner\": %d, \"vocab_size\": %d, \"odd\": 1e-05}",
                 LAYERS, (int)t->hidden, (int)t->ffn, VOCAB);
    else
        snprintf(text, sizeof text,
                 "{\"model_type\": \"llama\", \"num_hidden_layers\": %d, \"hidden_size\": %d, "
                 "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 6, "
                 "\"intermediate_size\": %d, \"vocab_size\": %d, \"max_position_embeddings\": 16}",
                 LAYERS, (int)t->hidden, (int)t->ffn, VOCAB);
    snprintf(path, sizeof path, "%s/config.json", dir);
    write_text(path, text);
}

/* Replaces the data of a file by a hole. */
static void empty_file(const char *path)
{
    uint64_t header;
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fread(&header, sizeof header, 1, file), 1);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    const int64_t size = ftell(file);
    assert_int_equal(ftruncate(fileno(file), 8 + (int64_t)header), 0);
    assert_int_equal(ftruncate(fileno(file), size), 0);
    assert_int_equal(fclose(file), 0);
}

/* Writes the model to the new directory `dir`. Each array has values of its own, or, with `empty`, zeros that
 * take no place on the disk. */
static void make_model(const test_case *t, const char *dir, bool empty)
{
    ax_st_array arrays[ARRAYS];
    int n = 0;
    ax_st *st;
    OK(ax_remove_tree(dir));
    OK(ax_mkdirs(dir));
    write_config(t, dir);
    (t->gpt2 ? plan_gpt2 : plan_llama)(arrays, &n, t);
    OK(ax_st_plan(dir, "model", arrays, n, t->shard_bytes, &st));
    OK(ax_st_make(st));
    for (int i = 0; i < n && !empty; i++) {
        const ax_st_array *a = ax_st_find(st, arrays[i].key);
        const int64_t count = ax_st_elements(a);
        float *values = malloc((size_t)count * sizeof *values);
        for (int64_t k = 0; k < count; k++)
            values[k] = value_of(t->fill, k + 1000 * i);
        OK(ax_st_write(st, a, NULL, NULL, false, AX_F32, values));
        free(values);
    }
    for (int i = 0; i < n; i++)
        free((char *)arrays[i].key);
    ax_st_close(&st);
    if (empty) {
        char path[64];
        snprintf(path, sizeof path, "%s/model.safetensors", dir);
        empty_file(path);
    }
}

/* ---- the reference ------------------------------------------------------------------------------- */

/* A matrix of the model: the columns [first, first + cols) of an array. */
typedef struct matrix {
    char letter, key[96];
    int64_t rows, first, cols;
    bool skipped;
} matrix;

static bool is_skipped(const test_case *t, int block, char letter)
{
    const char *s = t->skipped ? t->skipped : "";
    return *s >= '0' && *s <= '9' ? *s - '0' == block && strchr(s, letter) : strchr(s, letter) != NULL;
}

static int list_matrices(const test_case *t, matrix *out)
{
    const int64_t d = t->hidden, f = t->ffn;
    const struct {
        char letter;
        const char *name;
        int64_t rows, first, cols;
    } gpt2[] = {{'q', "attn.c_attn", d, 0, d},     {'k', "attn.c_attn", d, d, d},
                {'v', "attn.c_attn", d, 2 * d, d}, {'p', "attn.c_proj", d, 0, d},
                {'u', "mlp.c_fc", d, 0, f},        {'d', "mlp.c_proj", f, 0, d}},
      llama[] = {{'q', "self_attn.q_proj", 12, 0, d}, {'k', "self_attn.k_proj", 6, 0, d},
                 {'v', "self_attn.v_proj", 6, 0, d},  {'p', "self_attn.o_proj", d, 0, 12},
                 {'g', "mlp.gate_proj", f, 0, d},     {'u', "mlp.up_proj", f, 0, d},
                 {'d', "mlp.down_proj", d, 0, f}};
    int n = 0;
    for (int block = 0; block < LAYERS; block++)
        for (size_t i = 0; i < (t->gpt2 ? AX_COUNT(gpt2) : AX_COUNT(llama)); i++, n++) {
            const char *name = t->gpt2 ? gpt2[i].name : llama[i].name;
            matrix *m = &out[n];
            *m = (matrix){.letter = t->gpt2 ? gpt2[i].letter : llama[i].letter,
                          .rows = t->gpt2 ? gpt2[i].rows : llama[i].rows,
                          .first = t->gpt2 ? gpt2[i].first : 0,
                          .cols = t->gpt2 ? gpt2[i].cols : llama[i].cols};
            snprintf(m->key, sizeof m->key, t->gpt2 ? "%sh.%d.%s.weight" : "%smodel.layers.%d.%s.weight",
                     t->prefix, block, name);
            m->skipped = is_skipped(t, block, m->letter);
        }
    return n;
}

typedef struct element {
    float size;    /* magnitude */
    int64_t order; /* number of the element among all that are sorted */
    int64_t place; /* index in the array */
    int array;     /* index of the array in the file */
} element;

static int by_size(const void *x, const void *y)
{
    const element *a = x, *b = y;
    return a->size != b->size ? (a->size < b->size ? 1 : -1) : a->order < b->order ? -1 : 1;
}

/* All arrays of a model's files: the bytes of each. */
typedef struct contents {
    ax_st *st;
    char *bytes[ARRAYS];
} contents;

static void read_all(const char *dir, contents *c)
{
    OK(ax_st_open(dir, &c->st));
    for (int i = 0; i < ax_st_count(c->st); i++) {
        const ax_st_array *a = ax_st_at(c->st, i);
        c->bytes[i] = malloc((size_t)a->bytes);
        OK(ax_st_read(c->st, a, NULL, NULL, false, a->dtype, c->bytes[i]));
    }
}

static void contents_fini(contents *c)
{
    for (int i = 0; i < ax_st_count(c->st); i++)
        free(c->bytes[i]);
    ax_st_close(&c->st);
}

/* Sorts the elements of matrices [from, to) and sets those that do not stay to zero in c->bytes. */
static void prune(contents *c, const matrix *m, int from, int to, double density)
{
    int64_t n = 0, room = 0;
    for (int i = from; i < to; i++)
        room += m[i].skipped ? 0 : m[i].rows * m[i].cols;
    element *all = malloc((size_t)room * sizeof *all);
    for (int i = from; i < to; i++) {
        if (m[i].skipped)
            continue;
        const ax_st_array *a = ax_st_find(c->st, m[i].key);
        assert_non_null(a);
        float *values = malloc((size_t)ax_st_elements(a) * sizeof *values);
        OK(ax_st_read(c->st, a, NULL, NULL, false, AX_F32, values));
        for (int64_t k = 0; k < m[i].rows * m[i].cols; k++, n++) {
            int64_t place = k / m[i].cols * a->dim[1] + m[i].first + k % m[i].cols;
            all[n] = (element){fabsf(values[place]), n, place, (int)(a - ax_st_at(c->st, 0))};
        }
        free(values);
    }
    qsort(all, (size_t)n, sizeof *all, by_size);
    for (int64_t k = 0; k < n; k++) {
        const size_t size = ax_dtype_size(ax_st_at(c->st, all[k].array)->dtype);
        if ((double)k + 0.5 > density * (double)n || all[k].size == 0)
            memset(c->bytes[all[k].array] + (size_t)all[k].place * size, 0, size);
    }
    free(all);
}

/* ---- comparisons --------------------------------------------------------------------------------- */

static int64_t count_nonzero(const contents *c, const matrix *m)
{
    static const char zeros[8];
    const ax_st_array *a = ax_st_find(c->st, m->key);
    const size_t size = ax_dtype_size(a->dtype);
    const char *bytes = c->bytes[a - ax_st_at(c->st, 0)];
    int64_t count = 0;
    for (int64_t k = 0; k < m->rows * m->cols; k++)
        count += memcmp(bytes + (size_t)(k / m->cols * a->dim[1] + m->first + k % m->cols) * size, zeros,
                        size) != 0;
    return count;
}

static void compare_report(json_t *report, const test_case *t, const contents *c, const matrix *m, int n)
{
    json_int_t elements = 0, kept = 0, chosen = 0;
    assert_int_equal(json_array_size(json_object_get(report, "matrices")), n);
    for (int i = 0; i < n; i++) {
        const json_t *row = json_array_get(json_object_get(report, "matrices"), (size_t)i);
        const json_int_t all = m[i].rows * m[i].cols, mine = count_nonzero(c, &m[i]);
        assert_string_equal(json_string_value(json_object_get(row, "array")), m[i].key);
        assert_int_equal(json_string_value(json_object_get(row, "matrix"))[0], m[i].letter);
        assert_int_equal(json_integer_value(json_object_get(row, "block")), i / (n / LAYERS));
        assert_int_equal(json_integer_value(json_object_get(row, "elements")), all);
        assert_int_equal(json_is_true(json_object_get(row, "skipped")), m[i].skipped);
        assert_int_equal(json_is_null(json_object_get(row, "density")), m[i].skipped);
        if (m[i].skipped)
            continue;
        assert_int_equal(json_integer_value(json_object_get(row, "kept")), mine);
        elements += all;
        kept += mine;
        chosen += llround(t->density * (double)all);
    }
    if (t->whole)
        chosen = llround(t->density * (double)elements);
    assert_int_equal(json_integer_value(json_object_get(report, "elements")), elements);
    assert_int_equal(json_integer_value(json_object_get(report, "kept")), kept);
    assert_int_equal(json_integer_value(json_object_get(report, "chosen")), chosen);
    assert_true(kept == chosen || (t->fill == ZEROS && kept < chosen));
}

static void compare_files(const contents *expected, const char *dir)
{
    contents found;
    read_all(dir, &found);
    assert_int_equal(ax_st_count(found.st), ax_st_count(expected->st));
    assert_int_equal(ax_st_files(found.st), ax_st_files(expected->st));
    for (int i = 0; i < ax_st_count(found.st); i++) {
        const ax_st_array *a = ax_st_at(found.st, i), *b = ax_st_at(expected->st, i);
        assert_string_equal(a->key, b->key);
        assert_int_equal(a->dtype, b->dtype);
        assert_int_equal(a->ndim, b->ndim);
        assert_memory_equal(a->dim, b->dim, (size_t)a->ndim * sizeof *a->dim);
        assert_memory_equal(found.bytes[i], expected->bytes[i], (size_t)a->bytes);
    }
    contents_fini(&found);
}

static void run_case(const test_case *t)
{
    matrix m[MATRICES];
    contents expected;
    char command[512];
    ax_buf out = {0};
    const int n = list_matrices(t, m);
    make_model(t, "in", false);
    write_text("in/tokenizer.json", "not read");
    read_all("in", &expected);
    for (int i = 0; i < n; i++)
        if (!t->whole && !m[i].skipped)
            prune(&expected, m, i, i + 1, t->density);
    if (t->whole)
        prune(&expected, m, 0, n, t->density);
    snprintf(command, sizeof command, AXONN " prune in --out out --json --density %g %s %s%s 2>log",
             t->density, t->whole ? "--scope model" : "", t->skip ? "--skip " : "", t->skip ? t->skip : "");
    json_t *report = json_of(command);
    compare_report(report, t, &expected, m, n);
    json_decref(report);
    compare_files(&expected, "out");
    contents_fini(&expected);
    /* what is pruned stays as it is when it is pruned again */
    snprintf(command, sizeof command,
             "cmp in/config.json out/config.json && cmp in/tokenizer.json out/tokenizer.json && " AXONN
             " prune out --out again --density %g %s %s%s >/dev/null && diff -r out again && rm -r out again",
             t->density, t->whole ? "--scope model" : "", t->skip ? "--skip " : "", t->skip ? t->skip : "");
    assert_int_equal(shell(command, &out), 0);
    ax_buf_fini(&out);
}

static void as_a_sort_says(void **state)
{
    (void)state;
    static const test_case cases[] = {
        {false, "", 10, 23, AX_F32, NORMAL, 0, 0.3, false, NULL, NULL},
        {false, "", 10, 23, AX_BF16, TIES, 700, 0.5, true, NULL, NULL},
        {false, "", 10, 23, AX_F16, TINY, 1500, 0.1, true, "down 'model.layers.?.self_attn.k_proj.weight'",
         "dk"},
        {false, "", 11, 40000, AX_F32, TIES, 0, 0.37, false, "gate", "g"}, /* matrices of several strips */
        {true, "transformer.", 10, 23, AX_F32, EQUAL, 0, 0.37, false, NULL, NULL},
        {true, "transformer.", 10, 23, AX_F32, EQUAL, 0, 0.37, true, NULL, NULL},
        {true, "", 10, 29, AX_BF16, ZEROS, 0, 0.9, false, "q mlp.c_proj", "qd"},
        {true, "", 10, 29, AX_F64, NORMAL, 900, 0.2, true, "'h.1.*'", "1qkvpud"},
        {true, "", 10, 29, AX_F16, ZEROS, 0, 1, true, "c_fc", "u"},
    };
    for (size_t i = 0; i < AX_COUNT(cases); i++)
        run_case(&cases[i]);
}

static const test_case plain = {.prefix = "", .hidden = 10, .ffn = 23, .dtype = AX_F32, .density = 0.5};

/* A density that keeps no element of a matrix is said; so are zeros that take places. */
static void empty_matrices_are_said(void **state)
{
    (void)state;
    ax_buf out = {0};
    make_model(&plain, "in", false);
    assert_int_equal(shell(AXONN " prune in --density 0.004 --out few 2>&1", &out), 0);
    assert_contains(out.data, "few: 8 matrices hold nothing but zeros now, the first is q of block 0");
    assert_contains(out.data, "model.layers.1.mlp.gate_proj.weight     gate  0.004348  1 of 230\n");
    assert_contains(out.data, "few: density 0.002857, 6 of 2100 elements; 1 file of");
    assert_int_equal(shell(AXONN " prune few --density 0.5 --out more 2>&1", &out), 0);
    assert_contains(out.data, "more: 1044 of the 1050 elements that are kept were zero before");
    assert_contains(out.data, "gate  0.004348  1 of 230\n");
    ax_buf_fini(&out);
}

/* Matrices of 20 million elements with 64 MiB of memory for all of the process. */
static void memory_is_bounded(void **state)
{
    (void)state;
    ax_buf out = {0};
    test_case large = plain;
    if (SANITIZED)
        skip();
    large.hidden = 64;
    large.ffn = 50000;
    make_model(&large, "large", true);
    assert_int_equal(shell("ulimit -v 65536; " AXONN
                           " prune large --density 0.5 --out pruned --scope model && "
                           "rm -r large pruned",
                           &out),
                     0);
    ax_buf_fini(&out);
}

/* ---- failures ------------------------------------------------------------------------------------ */

/* Writes a model with one element that is not finite. */
static void make_spoilt(const char *dir, const char *key, float value)
{
    ax_st *st;
    char path[64];
    make_model(&plain, dir, false);
    OK(ax_st_open(dir, &st));
    const ax_st_array *a = ax_st_find(st, key);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, a->offset + 8, SEEK_SET), 0);
    assert_int_equal(fwrite(&value, sizeof value, 1, file), 1);
    assert_int_equal(fclose(file), 0);
    ax_st_close(&st);
}

static void failures_leave_nothing(void **state)
{
    (void)state;
    static const struct {
        const char *command;
        int code;
        const char *message;
    } cases[] = {
        {"mkdir there; " AXONN " prune ../in --density 0.5 --out there", 2, "there exists; give the name"},
        {AXONN " prune ../in --density 0.5 --out no/parent", 4, "cannot create no/parent: No such file"},
        {AXONN " prune nowhere --density 0.5 --out o", 4, "no such file or directory: nowhere"},
        {AXONN " prune ../in --density 0 --out o", 2, "--density"},
        {AXONN " prune ../in --density 1.5 --out o --scope layer", 2, "--scope"},
        {AXONN " prune ../in --density nan --out o", 2, "--density"},
        {AXONN " prune ../in --out o", 2, "--density"},
        {AXONN " prune ../in --density 0.5 --out o --skip c_attn q head '*.9.*'", 2,
         "--skip: no matrix of this model's blocks is named \"c_attn\" or \"head\" or \"*.9.*\"; their names "
         "are q, k, v, proj, gate, up, down, or as in its files q_proj, k_proj, v_proj, o_proj, gate_proj, "
         "up_proj, down_proj, and patterns are compared with the names of arrays, such as "
         "model.layers.0.self_attn.q_proj.weight"},
        {AXONN " prune ../in --density 0.5 --out o --skip '*'", 2, "names all matrices"},
        {"cp -r ../in a; echo '{}' >a/adapter_config.json; touch a/adapter_model.safetensors; " AXONN
         " prune a --density 0.5 --out o",
         2,
         "a is an adapter, whose matrices are its base's: merge the two first (axonn ckpt convert a --out "
         "DIR)"},
        {"cp -r ../in a; rm a/model.safetensors; " AXONN " prune a --density 0.5 --out o", 4, "a"},
        {"cp -r ../in a; sed -i s/llama/unknown/ a/config.json; " AXONN " prune a --density 0.5 --out o", 4,
         "unknown"},
        {"cp -r ../in a; sed -i s/23/24/ a/config.json; " AXONN " prune a --density 0.5 --out o", 4,
         "does not hold the arrays of this model"},
        {AXONN " prune ../nan --density 0.5 --out o", 4,
         "../nan: array model.layers.1.mlp.up_proj.weight has values that are not finite"},
        {AXONN " prune ../inf --density 0.5 --out o --scope model", 4,
         "../inf: array model.layers.0.self_attn.o_proj.weight has values that are not finite"},
        {"ulimit -f 4; " AXONN " prune ../in --density 0.5 --out o", 4, "File too large"},
        {"timeout 0.2 " AXONN " prune ../endless --density 0.5 --out o", 124, ""},
    };
    ax_buf out = {0};
    test_case endless = plain; /* several seconds of work */
    endless.hidden = 1000;
    endless.ffn = 100000;
    make_model(&endless, "endless", true);
    make_model(&plain, "in", false);
    make_spoilt("nan", "model.layers.1.mlp.up_proj.weight", NAN);
    make_spoilt("inf", "model.layers.0.self_attn.o_proj.weight", -INFINITY);
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        char command[1024];
        snprintf(command, sizeof command, "mkdir f; cd f; exec 2>&1; %s", cases[i].command);
        const int code = shell(command, &out);
        if (code != cases[i].code)
            fail_msg("%s: exit code %d, printed:\n%s", cases[i].command, code, out.data);
        assert_contains(out.data, cases[i].message);
        assert_int_equal(shell("cd f; rm -rf a there; ls -A; cd ..; rm -r f", &out), 0);
        assert_string_equal(out.data, "");
    }
    ax_buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_a_sort_says),
        cmocka_unit_test(empty_matrices_are_said),
        cmocka_unit_test(memory_is_bounded),
        cmocka_unit_test(failures_leave_nothing),
    };
    return cmocka_run_group_tests_name("cli.prune", tests, set_up, tear_down);
}
