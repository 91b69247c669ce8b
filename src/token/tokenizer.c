/* Looks up ids and names of tokens; builds and searches the trie (prefix tree) of added tokens (entries of
 * added_tokens, such as special tokens); saves a tokenizer. */
#include "token/tok.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

ax_status tok_ids_reserve(ax_ids *ids, size_t extra)
{
    if (ids->size + extra <= ids->capacity)
        return AX_OK;
    size_t capacity = ids->capacity + ids->capacity / 2 + extra + 16;
    int32_t *data = realloc(ids->data, capacity * sizeof *data);
    AX_CHECK(data, AX_ERR_MEMORY, "not enough memory for a text of %zu token ids", capacity);
    ids->data = data;
    ids->capacity = capacity;
    return AX_OK;
}

ax_status ax_ids_add(ax_ids *ids, const int32_t *more, size_t n)
{
    AX_TRY(tok_ids_reserve(ids, n));
    if (n)
        memcpy(ids->data + ids->size, more, n * sizeof *more);
    ids->size += n;
    return AX_OK;
}

void ax_ids_fini(ax_ids *ids)
{
    free(ids->data);
    *ids = (ax_ids){0};
}

void ax_tokenizer_destroy(ax_tokenizer **tok)
{
    ax_tokenizer *t = *tok;
    if (!t)
        return;
    for (int i = 0; i < t->n_stages; i++)
        tok_stage_fini(&t->stages[i]);
    for (size_t i = 0; i < t->n_added; i++)
        free(t->added[i].content);
    free(t->added);
    tok_tree_fini(&t->raw_tree);
    tok_tree_fini(&t->normal_tree);
    ax_ids_fini(&t->before);
    ax_ids_fini(&t->after);
    ax_buf_fini(&t->bytes);
    free(t->pieces);
    free(t->by_name);
    free(t->rules);
    free(t->joins);
    tok_steps_fini(&t->normalizer);
    tok_steps_fini(&t->decoder);
    free(t->space);
    free(t->json);
    free(t->config);
    free(t->chat_template);
    free(t->template_file);
    free(t->template_dir);
    json_decref(t->templates);
    free(t);
    *tok = NULL;
}

static ax_status save_file(const char *dir, const char *name, const char *text, size_t size)
{
    char *path;
    AX_TRY(ax_path_join(dir, name, &path));
    ax_status status = ax_file_write_atomic(path, text, size);
    free(path);
    return status;
}

/* Removes a file that an earlier tokenizer in this directory has left, if there is one. */
static ax_status remove_file(const char *dir, const char *name)
{
    char *path;
    AX_TRY(ax_path_join(dir, name, &path));
    ax_status status = unlink(path) && errno != ENOENT
                           ? ax_fail(AX_ERR_DATA, "cannot remove %s: %s", path, strerror(errno))
                           : AX_OK;
    free(path);
    return status;
}

ax_status ax_tokenizer_save(const ax_tokenizer *tok, const char *dir)
{
    AX_TRY(ax_mkdirs(dir));
    AX_TRY(save_file(dir, "tokenizer.json", tok->json, tok->json_size));
    AX_TRY(save_file(dir, "tokenizer_config.json", tok->config, tok->config_size));
    static const char apart[] = "chat_template.jinja";
    return tok->chat_template_apart ? save_file(dir, apart, tok->chat_template, strlen(tok->chat_template))
                                    : remove_file(dir, apart);
}

int32_t ax_tokenizer_vocab_size(const ax_tokenizer *tok) { return tok->n_ids; }
int32_t ax_tokenizer_eos(const ax_tokenizer *tok) { return tok->eos; }
const ax_ids *ax_tokenizer_before(const ax_tokenizer *tok) { return &tok->before; }
const ax_ids *ax_tokenizer_after(const ax_tokenizer *tok) { return &tok->after; }
const char *ax_tokenizer_chat_template(const ax_tokenizer *tok) { return tok->chat_template; }
uint64_t ax_tokenizer_hash(const ax_tokenizer *tok) { return tok->hash; }

static bool has_name(const ax_tokenizer *tok, int32_t id, const char *name, size_t n)
{
    const tok_piece *piece = &tok->pieces[id];
    return piece->name_size == n && !memcmp(tok->bytes.data + piece->name, name, n);
}

int32_t tok_find(const ax_tokenizer *tok, const char *name, size_t n)
{
    for (uint64_t i = XXH3_64bits(name, n) & tok->by_name_mask;; i = (i + 1) & tok->by_name_mask) {
        int32_t id = tok->by_name[i];
        if (id < 0 || has_name(tok, id, name, n))
            return id;
    }
}

int32_t ax_tokenizer_id(const ax_tokenizer *tok, const char *name, size_t n)
{
    for (size_t i = 0; i < tok->n_added; i++)
        if (has_name(tok, tok->added[i].id, name, n))
            return tok->added[i].id;
    return n ? tok_find(tok, name, n) : -1;
}

const char *ax_tokenizer_piece(const ax_tokenizer *tok, int32_t id, size_t *n)
{
    if (id < 0 || id >= tok->n_ids || !tok->pieces[id].name_size)
        return NULL;
    *n = tok->pieces[id].text_size;
    return tok->bytes.data + tok->pieces[id].text;
}

bool ax_tokenizer_is_special(const ax_tokenizer *tok, int32_t id)
{
    return id >= 0 && id < tok->n_ids && tok->pieces[id].special;
}

/* Returns the child of trie node `node` (-1: the root) for `byte`, or -1 if there is no such child. */
static int32_t tree_step(const tok_tree *tree, int32_t node, unsigned char byte)
{
    if (node < 0)
        return tree->root[byte];
    int32_t child = tree->nodes[node].child;
    while (child >= 0 && tree->nodes[child].byte != byte)
        child = tree->nodes[child].sibling;
    return child;
}

static void tree_insert(tok_tree *tree, const tok_added *added, int32_t index)
{
    int32_t node = -1;
    for (size_t i = 0; i < added->size; i++) {
        unsigned char byte = (unsigned char)added->content[i];
        int32_t child = tree_step(tree, node, byte);
        if (child < 0) {
            child = tree->n_nodes++;
            int32_t *head = node < 0 ? &tree->root[byte] : &tree->nodes[node].child;
            tree->nodes[child] = (tok_node){.child = -1, .sibling = *head, .added = -1, .byte = byte};
            *head = child;
        }
        node = child;
    }
    tree->nodes[node].added = index;
}

ax_status tok_tree_init(tok_tree *tree, const tok_added *added, size_t n, bool normalized)
{
    size_t bytes = 0;
    for (size_t i = 0; i < n; i++)
        bytes += added[i].size;
    AX_CHECK(bytes < INT32_MAX, AX_ERR_DATA,
             "the tokenizer's added tokens have 2 GiB of text or more together; less is supported");
    AX_TRY(ax_calloc(bytes, sizeof *tree->nodes, &tree->nodes));
    for (size_t i = 0; i < AX_COUNT(tree->root); i++)
        tree->root[i] = -1;
    for (size_t i = 0; i < n; i++)
        if (added[i].normalized == normalized)
            tree_insert(tree, &added[i], (int32_t)i);
    return AX_OK;
}

void tok_tree_fini(tok_tree *tree) { free(tree->nodes); }

int32_t tok_tree_match(const tok_tree *tree, const char *text, size_t n)
{
    int32_t node = -1, found = -1;
    for (size_t i = 0; i < n && (node = tree_step(tree, node, (unsigned char)text[i])) >= 0; i++)
        if (tree->nodes[node].added >= 0)
            found = tree->nodes[node].added;
    return found;
}
