/* Low-rank updates of the matrices of a model's blocks (LoRA, arXiv 2106.09685): lists the matrices, adds the
 * factors A and B to the network as parameters, and finds the places of the factors in PEFT's files.
 *
 * In PEFT's files a factor belongs to a module, that is, to an array of weights. Where several matrices share
 * an array (GPT-2's c_attn has q, k and v), the array has one pair of factors, whose rank is the sum of the
 * matrices' ranks: A has the matrices' factors below one another, and B is block-diagonal. In an adapter that
 * is read, also to be trained on, the array's matrices share the A that the file has, as in PEFT. */
#include "model/family.h"

#include <stdio.h>
#include <string.h>

/* For each matrix: its name in configurations, and the name, within a block, of the linear layer that has it
 * as its weight. */
static const struct {
    const char *name, *layer;
} matrices[AX_MATRIX_COUNT] = {
    [AX_MATRIX_Q] = {"q", "attn.q"},         [AX_MATRIX_K] = {"k", "attn.k"},
    [AX_MATRIX_V] = {"v", "attn.v"},         [AX_MATRIX_PROJ] = {"proj", "attn.proj"},
    [AX_MATRIX_GATE] = {"gate", "mlp.gate"}, [AX_MATRIX_UP] = {"up", "mlp.up"},
    [AX_MATRIX_DOWN] = {"down", "mlp.down"},
};

const char *ax_matrix_name(ax_matrix matrix) { return matrices[matrix].name; }

bool ax_model_config_matrix(const ax_model_config *c, ax_matrix matrix, int64_t *out, int64_t *in)
{
    int64_t d = c->hidden, e = ax_model_config_head_dim(c), q = e * c->heads, kv = e * c->kv_heads;
    const int64_t sizes[AX_MATRIX_COUNT][2] = {
        [AX_MATRIX_Q] = {q, d},         [AX_MATRIX_K] = {kv, d},        [AX_MATRIX_V] = {kv, d},
        [AX_MATRIX_PROJ] = {d, q},      [AX_MATRIX_GATE] = {c->ffn, d}, [AX_MATRIX_UP] = {c->ffn, d},
        [AX_MATRIX_DOWN] = {d, c->ffn},
    };
    *out = sizes[matrix][0];
    *in = sizes[matrix][1];
    return matrix != AX_MATRIX_GATE || c->gated;
}

bool ax_model_config_is_adapted(const ax_model_config *c)
{
    for (int m = 0; m < AX_MATRIX_COUNT; m++)
        if (c->low_rank[m].rank)
            return true;
    return false;
}

/* ---- modules ------------------------------------------------------------------------------------- */

/* Returns the row of the family's key map (parameter, array in weight files) for a matrix. */
static const ax_key_map *row_of(const ax_family *family, ax_matrix matrix)
{
    char name[64];
    snprintf(name, sizeof name, "h.%%d.%s.weight", matrices[matrix].layer);
    for (int i = 0; i < family->n_keys; i++)
        if (!strcmp(family->keys[i].name, name))
            return &family->keys[i];
    return NULL;
}

/* Returns the matrix whose factor A the update of `matrix` uses: the first one with an update in the same
 * array, if such matrices share one A (low_rank_shared), else `matrix` itself. */
static ax_matrix owner_of(const ax_model_config *c, ax_matrix matrix)
{
    const char *key = row_of(c->family, matrix)->key;
    int i = c->low_rank_shared ? 0 : (int)matrix;
    while (i < (int)matrix && !(c->low_rank[i].rank && !strcmp(row_of(c->family, (ax_matrix)i)->key, key)))
        i++;
    return (ax_matrix)i;
}

int64_t ax_model_config_low_rank_params(const ax_model_config *c)
{
    int64_t total = 0, out, in;
    for (int m = 0; m < AX_MATRIX_COUNT; m++)
        if (c->low_rank[m].rank && ax_model_config_matrix(c, (ax_matrix)m, &out, &in))
            total += c->low_rank[m].rank * (out + (owner_of(c, (ax_matrix)m) == (ax_matrix)m ? in : 0));
    return c->layers * total;
}

/* Returns the length of a key without its ending ".weight". */
static int stem_of(const char *key) { return (int)(strlen(key) - strlen(".weight")); }

void ax_family_module(const ax_family *family, ax_matrix matrix, char out[256])
{
    const char *name = strstr(row_of(family, matrix)->key, "%d.") + strlen("%d.");
    snprintf(out, 256, "%.*s", stem_of(name), name);
}

bool ax_module_matches(const char *module, const char *name)
{
    size_t n = strlen(module), m = strlen(name);
    return m <= n && !strcmp(module + n - m, name) && (m == n || module[n - m - 1] == '.');
}

void ax_family_low_rank_key(const ax_family *family, ax_matrix matrix, int64_t block, char factor,
                            char out[256])
{
    const char *key = row_of(family, matrix)->key, *hole = strstr(key, "%d");
    snprintf(out, 256, "base_model.model.%.*s%lld%.*s.lora_%c.weight", (int)(hole - key), key,
             (long long)block, stem_of(hole + 2), hole + 2, factor);
}

void ax_family_matrix_key(const ax_family *family, ax_matrix matrix, int64_t block, char out[256])
{
    const char *key = row_of(family, matrix)->key, *hole = strstr(key, "%d");
    snprintf(out, 256, "%.*s%lld%s", (int)(hole - key), key, (long long)block, hole + 2);
}

bool ax_family_is_transposed(const ax_family *family, ax_matrix matrix)
{
    return row_of(family, matrix)->transpose;
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
    int64_t before = 0, total = 0, rank = c->low_rank[matrix].rank;
    int out = row->transpose ? 1 : 0; /* index of the output dim in the array */
    for (int i = 0; i < AX_MATRIX_COUNT && !c->low_rank_shared; i++) {
        const ax_key_map *other = row_of(c->family, (ax_matrix)i);
        bool shares = c->low_rank[i].rank && !strcmp(other->key, row->key);
        total += shares ? c->low_rank[i].rank : 0;
        before += shares && other->part < row->part ? c->low_rank[i].rank : 0;
    }
    total = c->low_rank_shared ? rank : total;
    char key[2][256];
    ax_family_low_rank_key(c->family, matrix, block, 'A', key[0]);
    ax_family_low_rank_key(c->family, matrix, block, 'B', key[1]);
    if (!layer->borrows[AX_LINEAR_LORA_A]) {
        a->file = (ax_param_file){.ndim = 2, .dim = {total, a->master.dim[1]}, .lo = {before}};
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
    char name[64];
    snprintf(name, sizeof name, "h.%lld.%s", (long long)block, matrices[matrix].layer);
    return ax_layer_find(m->root, name);
}

ax_status ax_low_rank_build(ax_model *m)
{
    if (!ax_model_config_is_adapted(&m->config))
        return AX_OK;
    ax_layer_freeze(m->root);
    for (int64_t block = 0; block < m->config.layers; block++)
        for (int i = 0; i < AX_MATRIX_COUNT; i++) {
            if (!m->config.low_rank[i].rank)
                continue;
            const ax_matrix owner = owner_of(&m->config, (ax_matrix)i);
            ax_layer *layer = layer_of(m, (ax_matrix)i, block);
            AX_CHECK(layer, AX_ERR_USAGE,
                     "models of family %s have no matrix %s, so it can have no low-rank update",
                     m->config.family->name, matrices[i].name);
            AX_TRY((int)owner == i ? ax_linear_add_low_rank(layer, &m->config.low_rank[i])
                                   : ax_linear_share_low_rank(layer, layer_of(m, owner, block)));
            AX_TRY(place(m, (ax_matrix)i, block, layer));
        }
    return AX_OK;
}
