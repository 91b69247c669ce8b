/* Low-rank updates of a model's matrices (LoRA, arXiv 2106.09685): lists the matrices, adds the factors A and
 * B to the network as parameters, and finds the places of the factors in PEFT's files.
 *
 * In PEFT's files a factor belongs to a module, that is, to an array of weights. Where several matrices share
 * an array (GPT-2's c_attn has q, k and v), the array has one pair of factors, whose rank is the sum of the
 * matrices' ranks: A has the matrices' factors below one another, and B is block-diagonal. In an adapter that
 * is read, also to be trained on, the array's matrices share the A that the file has, as in PEFT. */
#include "model/family.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* For each matrix: its name in configurations, and the name of the parameter that holds it, with %d for the
 * number of the block. */
static const struct {
    const char *name, *param;
} matrices[AX_MATRIX_COUNT] = {
    [AX_MATRIX_Q] = {"q", "h.%d.attn.q.weight"},         [AX_MATRIX_K] = {"k", "h.%d.attn.k.weight"},
    [AX_MATRIX_V] = {"v", "h.%d.attn.v.weight"},         [AX_MATRIX_PROJ] = {"proj", "h.%d.attn.proj.weight"},
    [AX_MATRIX_GATE] = {"gate", "h.%d.mlp.gate.weight"}, [AX_MATRIX_UP] = {"up", "h.%d.mlp.up.weight"},
    [AX_MATRIX_DOWN] = {"down", "h.%d.mlp.down.weight"}, [AX_MATRIX_HEAD] = {"head", "head.weight"},
    [AX_MATRIX_EMBED] = {"embed", "embed.tokens"},
};

const char *ax_matrix_name(ax_matrix matrix) { return matrices[matrix].name; }

bool ax_model_config_matrix(const ax_model_config *c, ax_matrix matrix, int64_t *out, int64_t *in)
{
    int64_t d = c->hidden, e = ax_model_config_head_dim(c), q = e * c->heads, kv = e * c->kv_heads;
    const int64_t sizes[AX_MATRIX_COUNT][2] = {
        [AX_MATRIX_Q] = {q, d},         [AX_MATRIX_K] = {kv, d},          [AX_MATRIX_V] = {kv, d},
        [AX_MATRIX_PROJ] = {d, q},      [AX_MATRIX_GATE] = {c->ffn, d},   [AX_MATRIX_UP] = {c->ffn, d},
        [AX_MATRIX_DOWN] = {d, c->ffn}, [AX_MATRIX_HEAD] = {c->vocab, d}, [AX_MATRIX_EMBED] = {d, c->vocab},
    };
    *out = sizes[matrix][0];
    *in = sizes[matrix][1];
    const bool of_mlp = matrix >= AX_MATRIX_GATE && matrix < AX_MATRIX_OF_BLOCK;
    return of_mlp ? !c->experts.n && (matrix != AX_MATRIX_GATE || c->gated) : true;
}

/* ---- the updates --------------------------------------------------------------------------------- */

int64_t ax_model_config_matrix_count(const ax_model_config *c, ax_matrix matrix)
{
    return matrix < AX_MATRIX_OF_BLOCK ? c->layers : 1;
}

const ax_low_rank *ax_model_config_update(const ax_model_config *c, ax_matrix matrix, int64_t block)
{
    return c->low_rank_blocks && matrix < AX_MATRIX_OF_BLOCK
               ? &c->low_rank_blocks[block * AX_MATRIX_OF_BLOCK + matrix]
               : &c->low_rank[matrix];
}

/* Gives each block updates of its own, which are so far those of all blocks. */
static ax_status divide(ax_model_config *c)
{
    AX_TRY(
        ax_calloc((size_t)(c->layers * AX_MATRIX_OF_BLOCK), sizeof *c->low_rank_blocks, &c->low_rank_blocks));
    for (int64_t i = 0; i < c->layers * AX_MATRIX_OF_BLOCK; i++)
        c->low_rank_blocks[i] = c->low_rank[i % AX_MATRIX_OF_BLOCK];
    return AX_OK;
}

ax_status ax_model_config_set_updates(ax_model_config *c, ax_matrix matrix, const ax_low_rank *updates)
{
    int64_t n = ax_model_config_matrix_count(c, matrix);
    bool alike = true;
    for (int64_t i = 1; i < n; i++)
        alike &= updates[i].rank == updates[0].rank && updates[i].scale == updates[0].scale &&
                 updates[i].dropout == updates[0].dropout;
    if (!alike && !c->low_rank_blocks)
        AX_TRY(divide(c));
    c->low_rank[matrix] = updates[0];
    for (int64_t i = 0; i < n && c->low_rank_blocks && matrix < AX_MATRIX_OF_BLOCK; i++)
        c->low_rank_blocks[i * AX_MATRIX_OF_BLOCK + matrix] = updates[i];
    return AX_OK;
}

ax_status ax_low_rank_copy(const ax_model_config *from, ax_model_config *to)
{
    if (!from->low_rank_blocks)
        return AX_OK;
    AX_TRY(divide(to));
    memcpy(to->low_rank_blocks, from->low_rank_blocks,
           (size_t)(from->layers * AX_MATRIX_OF_BLOCK) * sizeof *to->low_rank_blocks);
    return AX_OK;
}

int64_t ax_model_config_update_count(const ax_model_config *c, ax_matrix matrix)
{
    int64_t count = 0;
    for (int64_t i = 0; i < ax_model_config_matrix_count(c, matrix); i++)
        count += ax_model_config_update(c, matrix, i)->rank > 0;
    return count;
}

bool ax_model_config_is_adapted(const ax_model_config *c)
{
    for (int m = 0; m < AX_MATRIX_COUNT; m++)
        if (ax_model_config_update_count(c, (ax_matrix)m))
            return true;
    return false;
}

bool ax_model_config_block_is_adapted(const ax_model_config *c, int64_t block)
{
    for (int i = 0; i < AX_MATRIX_OF_BLOCK; i++)
        if (ax_model_config_update(c, (ax_matrix)i, block)->rank)
            return true;
    return false;
}

ax_status ax_model_config_print_blocks(const ax_model_config *c, ax_buf *out)
{
    const char *separator = "";
    if (!c->low_rank_blocks)
        return ax_buf_printf(out, "all");
    for (int64_t first = 0, end; first < c->layers; first = end) {
        end = first + 1;
        if (!ax_model_config_block_is_adapted(c, first))
            continue;
        while (end < c->layers && ax_model_config_block_is_adapted(c, end))
            end++;
        AX_TRY(ax_buf_printf(out, "%s%lld", separator, (long long)first));
        if (end > first + 1)
            AX_TRY(ax_buf_printf(out, "-%lld", (long long)end - 1));
        separator = ",";
    }
    return AX_OK;
}

bool ax_model_config_is_untied_by_adapter(const ax_model_config *c)
{
    return c->tie && (c->low_rank[AX_MATRIX_HEAD].rank || c->low_rank[AX_MATRIX_EMBED].rank);
}

/* ---- modules ------------------------------------------------------------------------------------- */

/* Returns the row of the family's key map (parameter, array in weight files) for a matrix. */
static const ax_key_map *row_of(const ax_family *family, ax_matrix matrix)
{
    for (int i = 0; i < family->n_keys; i++)
        if (!strcmp(family->keys[i].name, matrices[matrix].param))
            return &family->keys[i];
    return NULL;
}

/* Returns the matrix whose factor A the update of `matrix` in block `block` uses: the first one with an
 * update in the same array, if such matrices share one A (low_rank_shared), else `matrix` itself. */
static ax_matrix owner_of(const ax_model_config *c, ax_matrix matrix, int64_t block)
{
    int i = 0;
    if (!c->low_rank_shared)
        return matrix;
    const char *key = row_of(c->family, matrix)->key;
    while (i < (int)matrix && !(ax_model_config_update(c, (ax_matrix)i, block)->rank &&
                                !strcmp(row_of(c->family, (ax_matrix)i)->key, key)))
        i++;
    return (ax_matrix)i;
}

int64_t ax_model_config_low_rank_params(const ax_model_config *c)
{
    int64_t total = 0, out, in;
    for (int m = 0; m < AX_MATRIX_COUNT; m++)
        for (int64_t i = 0; i < ax_model_config_matrix_count(c, (ax_matrix)m); i++) {
            int64_t rank = ax_model_config_update(c, (ax_matrix)m, i)->rank;
            if (rank && ax_model_config_matrix(c, (ax_matrix)m, &out, &in))
                total += rank * (out + (owner_of(c, (ax_matrix)m, i) == (ax_matrix)m ? in : 0));
        }
    return total;
}

/* Prints a name with the number of the block in place of %d, if the name has one. Returns its length. */
static int print_name(const char *name, int64_t block, char out[256])
{
    const char *hole = strstr(name, "%d");
    return hole ? snprintf(out, 256, "%.*s%lld%s", (int)(hole - name), name, (long long)block, hole + 2)
                : snprintf(out, 256, "%s", name);
}

void ax_family_module(const ax_family *family, ax_matrix matrix, char out[256])
{
    const char *key = row_of(family, matrix)->key, *hole = strstr(key, "%d."), *name = hole ? hole + 3 : key;
    snprintf(out, 256, "%.*s", (int)(strlen(name) - strlen(".weight")), name);
}

void ax_family_low_rank_key(const ax_family *family, ax_matrix matrix, int64_t block, char factor,
                            char out[256])
{
    char key[256];
    int stem = print_name(row_of(family, matrix)->key, block, key) - (int)strlen(".weight");
    snprintf(out, 256,
             matrix == AX_MATRIX_EMBED ? "base_model.model.%.*s.lora_embedding_%c"
                                       : "base_model.model.%.*s.lora_%c.weight",
             stem, key, factor);
}

void ax_family_matrix_key(const ax_family *family, ax_matrix matrix, int64_t block, char out[256])
{
    print_name(row_of(family, matrix)->key, block, out);
}

bool ax_family_is_transposed(const ax_family *family, ax_matrix matrix)
{
    return row_of(family, matrix)->transpose || matrix == AX_MATRIX_EMBED;
}

bool ax_module_matches(const char *module, const char *name)
{
    size_t n = strlen(module), m = strlen(name);
    return m <= n && !strcmp(module + n - m, name) && (m == n || module[n - m - 1] == '.');
}

void ax_model_config_matrix_box(const ax_model_config *c, ax_matrix matrix, int64_t lo[2], int64_t n[2])
{
    const ax_key_map *row = row_of(c->family, matrix);
    int64_t out, in;
    ax_model_config_matrix(c, matrix, &out, &in);
    const int of_out = row->transpose ? 1 : 0; /* index of the output dim in the array */
    n[of_out] = out;
    n[1 - of_out] = in;
    lo[of_out] = row->part * out;
    lo[1 - of_out] = 0;
}

bool ax_model_config_matrix_is(const ax_model_config *c, ax_matrix matrix, const char *word)
{
    int64_t out, in;
    char module[256];
    if (!ax_model_config_matrix(c, matrix, &out, &in))
        return false;
    ax_family_module(c->family, matrix, module);
    return !strcmp(word, ax_matrix_name(matrix)) || ax_module_matches(module, word);
}

/* Appends ", word" to a list, or "word" to an empty one, unless the list has the word. */
static void list_word(char list[128], const char *word)
{
    char spaced[130], wanted[130];
    snprintf(spaced, sizeof spaced, " %s,", list);
    snprintf(wanted, sizeof wanted, " %s,", word);
    if (!strstr(spaced, wanted))
        ax_text_add(list, 128, "%s%s", list[0] ? ", " : "", word);
}

const char *ax_model_config_list_matrices(const ax_model_config *c, int count, char list[AX_MATRIX_LIST])
{
    int64_t out, in;
    char own[128] = "", files[128] = "", module[256];
    for (int i = 0; i < count; i++) {
        if (!ax_model_config_matrix(c, (ax_matrix)i, &out, &in))
            continue;
        ax_family_module(c->family, (ax_matrix)i, module);
        list_word(own, ax_matrix_name((ax_matrix)i));
        const char *dot = strrchr(module, '.');
        list_word(files, dot ? dot + 1 : module);
    }
    snprintf(list, AX_MATRIX_LIST, "%s, or as in its files %s", own, files);
    return list;
}

/* ---- the network --------------------------------------------------------------------------------- */

/* Sets ax_param.file of the two factors of a matrix of block `block`: the array of an adapter's file that
 * holds the factor, and the factor's place in the array. If several matrices share an array, the rank of the
 * array's factors is the sum of the matrices' ranks, and matrices of earlier parts of the array come first.
 * Exception: with low_rank_shared these matrices share one A (owner_of), so the rank of the array's factors
 * is that of each matrix. */
static ax_status place(ax_model *m, ax_matrix matrix, int64_t block, ax_layer *layer)
{
    const ax_model_config *c = &m->config;
    const ax_key_map *row = row_of(c->family, matrix);
    ax_param *a = layer->param[AX_LINEAR_LORA_A], *b = layer->param[AX_LINEAR_LORA_B];
    const ax_param_file *whole = &layer->param[AX_LINEAR_WEIGHT]->file;
    int64_t before = 0, total = 0, rank = ax_model_config_update(c, matrix, block)->rank;
    bool table = matrix == AX_MATRIX_EMBED;
    int out = ax_family_is_transposed(c->family, matrix) ? 1 : 0; /* index of the output dim in the array */
    for (int i = 0; i < AX_MATRIX_COUNT && !c->low_rank_shared; i++) {
        const ax_key_map *other = row_of(c->family, (ax_matrix)i);
        int64_t beside = ax_model_config_update(c, (ax_matrix)i, block)->rank;
        bool shares = beside && !strcmp(other->key, row->key);
        total += shares ? beside : 0;
        before += shares && other->part < row->part ? beside : 0;
    }
    total = c->low_rank_shared ? rank : total;
    char key[2][256];
    ax_family_low_rank_key(c->family, matrix, block, 'A', key[0]);
    ax_family_low_rank_key(c->family, matrix, block, 'B', key[1]);
    if (!layer->borrows[AX_LINEAR_LORA_A]) {
        /* The embedding looks up rows of A, so its A is stored transposed. */
        a->file = (ax_param_file){
            .ndim = 2, .dim = {total, a->rest.dim[table ? 0 : 1]}, .lo = {before}, .transpose = table};
        AX_TRY(ax_strdup(key[0], &a->file.key));
    }
    b->file = (ax_param_file){.ndim = 2,
                              .dim = {whole->dim[out], total},
                              .lo = {whole->lo[out], before},
                              .sparse = row->parts > 1 && !c->low_rank_shared};
    return ax_strdup(key[1], &b->file.key);
}

/* Returns the layer of block `block` that has the matrix; NULL: there is none. */
static ax_layer *layer_of(const ax_model *m, ax_matrix matrix, int64_t block)
{
    char name[256];
    print_name(matrices[matrix].param, block, name);
    *strrchr(name, '.') = 0;
    return ax_layer_find(m->root, name);
}

ax_status ax_model_matrices(const ax_model *m, ax_param ***out, int *n)
{
    const int64_t most = m->config.layers * AX_MATRIX_OF_BLOCK;
    AX_TRY(ax_calloc((size_t)ax_max(most, 1), sizeof **out, out));
    *n = 0;
    for (int64_t block = 0; block < m->config.layers; block++)
        for (int i = 0; i < AX_MATRIX_OF_BLOCK; i++) {
            const ax_layer *layer = layer_of(m, (ax_matrix)i, block);
            if (layer)
                (*out)[(*n)++] = layer->param[AX_LINEAR_WEIGHT];
        }
    return AX_OK;
}

static ax_status add_update(ax_model *m, ax_matrix matrix, int64_t block)
{
    const ax_low_rank *update = ax_model_config_update(&m->config, matrix, block);
    if (!update->rank)
        return AX_OK;
    const ax_matrix owner = owner_of(&m->config, matrix, block);
    ax_layer *layer = layer_of(m, matrix, block);
    AX_CHECK(layer, AX_ERR_USAGE, "models of family %s have no matrix %s, so it can have no low-rank update",
             m->config.family->name, matrices[matrix].name);
    if (matrix == AX_MATRIX_EMBED)
        AX_TRY(ax_embedding_add_low_rank(layer, update));
    else
        AX_TRY(owner == matrix ? ax_linear_add_low_rank(layer, update)
                               : ax_linear_share_low_rank(layer, layer_of(m, owner, block)));
    return place(m, matrix, block, layer);
}

ax_status ax_low_rank_build(ax_model *m)
{
    if (!ax_model_config_is_adapted(&m->config))
        return AX_OK;
    ax_layer_freeze(m->root);
    for (int i = 0; i < AX_MATRIX_COUNT; i++)
        for (int64_t block = 0; block < ax_model_config_matrix_count(&m->config, (ax_matrix)i); block++)
            AX_TRY(add_update(m, (ax_matrix)i, block));
    return AX_OK;
}
