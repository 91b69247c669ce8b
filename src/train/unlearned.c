/* Warns of tokens that the base model has never learned. A chat template may write tokens whose rows in the
 * token embedding, or in the output layer, are zeros, or equal to those of unused tokens: so it is in base
 * models that were trained without conversations. If only low-rank updates of other matrices are trained,
 * these rows stay as they are. */
#include "axonn/chat.h"
#include "train/train.h"

#include <stdlib.h>
#include <string.h>

/* An array of the base's weights with a row for each token. */
typedef struct table {
    ax_st *st;
    const ax_st_array *array;
    float *row, *other; /* room for two rows */
} table;

static ax_status read_row(const table *t, int64_t id, float *out)
{
    const int64_t lo[] = {id, 0}, n[] = {1, t->array->dim[1]};
    return ax_st_read(t->st, t->array, lo, n, false, AX_F32, out);
}

/* Sets *out to whether the row of token `id` holds zeros only, or is equal to the row before it, to that
 * after it, or to the last one. Rows that were learned are never equal, and tokens for later use are next to
 * one another or at the end. */
static ax_status is_unlearned(const table *t, int64_t id, bool *out)
{
    const int64_t rows = t->array->dim[0], cols = t->array->dim[1], others[] = {id - 1, id + 1, rows - 1};
    *out = false;
    if (id >= rows)
        return AX_OK;
    AX_TRY(read_row(t, id, t->row));
    int64_t i = 0;
    while (i < cols && t->row[i] == 0)
        i++;
    *out = i == cols;
    for (size_t k = 0; k < AX_COUNT(others) && !*out; k++) {
        if (others[k] < 0 || others[k] >= rows || others[k] == id)
            continue;
        AX_TRY(read_row(t, others[k], t->other));
        *out = !memcmp(t->row, t->other, (size_t)cols * sizeof *t->row);
    }
    return AX_OK;
}

/* Appends to `out` the names and ids of those tokens of `ids` that the table's rows have not learned. */
static ax_status list_unlearned(const ax_train_run *run, const table *t, const ax_ids *ids, ax_buf *out)
{
    for (size_t i = 0; i < ids->size; i++) {
        bool unlearned, seen = false;
        size_t size;
        for (size_t k = 0; k < i; k++)
            seen |= ids->data[k] == ids->data[i];
        if (seen)
            continue;
        AX_TRY(is_unlearned(t, ids->data[i], &unlearned));
        const char *name = ax_tokenizer_piece(run->inputs.tokenizer, ids->data[i], &size);
        if (unlearned && name)
            AX_TRY(ax_buf_printf(out, "%s%.*s (id %d)", out->size ? ", " : "", (int)ax_min(size, 64), name,
                                 (int)ids->data[i]));
    }
    return AX_OK;
}

static ax_status warn(const ax_train_run *run, const ax_chat *chat, const ax_ids *ids, const char *key)
{
    table t = {.st = run->inputs.model_weights,
               .array = ax_ckpt_find_array(run->inputs.model_weights, key,
                                           ax_family_prefix(run->inputs.model.family))};
    ax_buf list = {0};
    if (!t.array || t.array->ndim != 2)
        return AX_OK;
    ax_status status = ax_calloc((size_t)t.array->dim[1], sizeof *t.row, &t.row);
    if (status == AX_OK)
        status = ax_calloc((size_t)t.array->dim[1], sizeof *t.other, &t.other);
    if (status == AX_OK)
        status = list_unlearned(run, &t, ids, &list);
    if (status == AX_OK && list.size)
        ax_log(
            AX_LOG_WARN,
            "template %s writes tokens that the base, %s, has never learned: %s: their rows of %s are "
            "zeros or equal to those of unused tokens, and tune.targets does not name all that uses them. "
            "Take the variant of the model that was made for chats as model.from, write the data by a "
            "template without such tokens (data.template: alpaca), or set tune.targets: [all, embed, head]",
            ax_chat_name(chat), run->inputs.model_dir, list.data, t.array->key);
    free(t.row);
    free(t.other);
    ax_buf_fini(&list);
    return status;
}

/* Appends the ids of a short conversation. */
static ax_status encode_example(const ax_train_run *run, const ax_chat *chat, ax_ids *ids)
{
    ax_chat_turn turn[] = {{.role = AX_CHAT_USER, .text = "a", .size = 1},
                           {.role = AX_CHAT_ASSISTANT, .text = "a", .size = 1, .unlearned = true}};
    const ax_chat_turns turns = {.turn = turn, .n = AX_COUNT(turn)};
    ax_chat_text text = {0};
    ax_encoder *encoder;
    ax_buf targets = {0};
    AX_TRY(ax_encoder_create(run->inputs.tokenizer, &encoder));
    ax_status status = ax_chat_render(chat, &turns, false, &text);
    if (status == AX_OK)
        status = ax_chat_encode(encoder, &text, ids, &targets);
    ax_chat_text_fini(&text);
    ax_buf_fini(&targets);
    ax_encoder_destroy(&encoder);
    return status;
}

ax_status ax_train_warn_unlearned(const ax_train_run *run, const ax_chat *chat)
{
    const ax_model_config *model = &run->inputs.model;
    const char *head, *rows;
    ax_ids ids = {0};
    if (!ax_model_config_is_adapted(model) || !run->inputs.model_weights)
        return AX_OK;
    ax_family_tied(model->family, &head, &rows);
    ax_status status = encode_example(run, chat, &ids);
    if (status == AX_ERR_DATA) { /* the model's own template refuses such a conversation */
        ax_ids_fini(&ids);
        return AX_OK;
    }
    const bool read = model->low_rank[AX_MATRIX_EMBED].rank, written = model->low_rank[AX_MATRIX_HEAD].rank;
    if (status == AX_OK && (!read || (model->tie && !written)))
        status = warn(run, chat, &ids, rows);
    if (status == AX_OK && !model->tie && !written)
        status = warn(run, chat, &ids, head);
    ax_ids_fini(&ids);
    return status;
}
