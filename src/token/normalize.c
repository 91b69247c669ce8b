/* Changes text before it is cut into pieces: runs the steps of a normalizer, and adds or replaces spaces as
 * the pre-tokenizers ByteLevel and Metaspace do. */
#include "token/tok.h"

#include <stdlib.h>
#include <string.h>

void tok_steps_fini(tok_steps *steps)
{
    for (int i = 0; i < steps->n; i++) {
        free(steps->step[i].find);
        free(steps->step[i].put);
    }
    *steps = (tok_steps){0};
}

const char *tok_text_find(const char *find, size_t n_find, const char *text, size_t n)
{
    const char *end = text + n, *at = text;
    while (n >= n_find && (at = memchr(at, *find, n - n_find + 1))) {
        if (!memcmp(at, find, n_find))
            return at;
        n = (size_t)(end - ++at);
    }
    return NULL;
}

ax_status tok_replace(const char *find, const char *put, const char *text, size_t n, ax_buf *out)
{
    size_t n_find = strlen(find), n_put = strlen(put);
    const char *end = text + n;
    for (const char *found; (found = tok_text_find(find, n_find, text, (size_t)(end - text)));
         text = found + n_find) {
        AX_TRY(ax_buf_add(out, text, (size_t)(found - text)));
        AX_TRY(ax_buf_add(out, put, n_put));
    }
    return ax_buf_add(out, text, (size_t)(end - text));
}

static ax_status prepend(const char *put, const char *text, size_t n, ax_buf *out)
{
    AX_TRY(ax_buf_add(out, put, strlen(put)));
    return ax_buf_add(out, text, n);
}

ax_status tok_steps_run(const tok_steps *steps, tok_place place, const char **text, size_t *n, ax_buf work[2])
{
    for (int i = 0; i < steps->n && *n; i++) {
        const tok_step *step = &steps->step[i];
        ax_buf *out = &work[*text == work[0].data];
        if (!step->form && !step->find && place == TOK_CONTINUES)
            continue;
        out->size = 0;
        AX_TRY(step->form   ? tok_normalize(step->form, *text, *n, out)
               : step->find ? tok_replace(step->find, step->put, *text, *n, out)
                            : prepend(step->put, *text, *n, out));
        *text = out->data;
        *n = out->size;
    }
    return AX_OK;
}

/* Returns true if `find` may lie on both sides of the place before byte b: b is one of its later bytes, or a
 * normal form may have made a character of b that is not ASCII (`formed`), and `find` has such characters. */
static bool joins(const char *find, char b, bool formed)
{
    bool found = memchr(find + 1, b, strlen(find) - 1) != NULL;
    for (const char *at = find; formed && *at; at++)
        found |= (unsigned char)*at >= 0x80;
    return found;
}

/* Returns true if the steps from index i on divide before byte b. A normal form does not combine ASCII with
 * the text before it, but with marks after it. A replacement must not find text that lies on both sides. If
 * it replaces text from b on, the later steps must divide before `put`. */
static bool divides(const tok_steps *steps, int i, char b)
{
    for (bool formed = false; i < steps->n; i++) {
        const tok_step *step = &steps->step[i];
        if (step->form && (unsigned char)b >= 0x80)
            return false;
        formed |= step->form != 0;
        if (step->find && (joins(step->find, b, formed) ||
                           (*step->find == b && !(*step->put && divides(steps, i + 1, *step->put)))))
            return false;
    }
    return true;
}

bool tok_steps_divide(const tok_steps *steps, char b) { return divides(steps, 0, b); }

static bool starts_with(const char *text, size_t n, const char *start)
{
    size_t size = strlen(start);
    return n >= size && !memcmp(text, start, size);
}

ax_status tok_set_spaces(const ax_tokenizer *tok, tok_place place, const char **text, size_t *n, ax_buf *work)
{
    bool prefix = tok->prefix == TOK_PREFIX_ALWAYS  ? place != TOK_CONTINUES
                  : tok->prefix == TOK_PREFIX_FIRST ? place == TOK_AT_BEGINNING
                                                    : false;
    const char *space = tok->space ? tok->space : " ";
    if (!*n || starts_with(*text, *n, " ") || starts_with(*text, *n, space))
        prefix = false;
    if (!prefix && !tok->space)
        return AX_OK;
    work->size = 0;
    if (prefix)
        AX_TRY(ax_buf_add(work, space, strlen(space)));
    AX_TRY(tok_replace(" ", space, *text, *n, work));
    *text = work->data;
    *n = work->size;
    return AX_OK;
}

bool tok_spaces_divide(const ax_tokenizer *tok, char b) { return !tok->space || !strchr(tok->space + 1, b); }
