/* A text that continues a prompt: its tokens, its bytes, and where it ends. It does not know where its tokens
 * come from: text.c draws those of one text, batch.c those of many. */
#ifndef AX_INFER_CONTINUATION_H
#define AX_INFER_CONTINUATION_H

#include "axonn/infer.h"

typedef struct ax_continuation {
    const ax_pretrained *model;
    const ax_text_options *options;
    const ax_strings *until;
    const ax_chat *chat;
    ax_ids ids;         /* the prompt, then the generated tokens */
    size_t prompt;      /* number of tokens of the prompt */
    int64_t most;       /* the largest number of tokens, prompt included */
    uint64_t key;       /* of the random numbers */
    ax_decoder decoder; /* of the generated tokens */
    ax_buf text;
    size_t begin;  /* bytes of `text` that are the prompt's */
    size_t read;   /* bytes of `text` in which no end was found */
    size_t taken;  /* bytes of `text` that ax_continuation_take has returned or left out */
    int64_t depth; /* braces that the prompt has opened, and the text up to `read` has not closed */
    bool braces;   /* the text ends where they are closed */
    ax_finish finish;
} ax_continuation;

/* Begins the text that continues a prompt. A continuation is zeroed before its first text, and released with
 * ax_continuation_fini. AX_ERR_USAGE if the prompt leaves no position for a token. */
AX_MUST_CHECK ax_status ax_continuation_begin(ax_continuation *c, const ax_pretrained *model,
                                              const ax_text_options *options, const ax_prompt *prompt,
                                              int64_t sample);
void ax_continuation_fini(ax_continuation *c);

/* Draws the next token from its logits on this rank. `work`: [3, vocab], scratch. */
AX_MUST_CHECK ax_status ax_continuation_draw(const ax_continuation *c, const float *logits, float *work,
                                             int32_t *id);
/* Appends a token, unless it is one that ends the text, and finds out whether the text ends with it. */
AX_MUST_CHECK ax_status ax_continuation_add(ax_continuation *c, int32_t id);

/* As ax_text_take and ax_text_get. */
const char *ax_continuation_take(ax_continuation *c, size_t *n);
const char *ax_continuation_get(const ax_continuation *c, size_t *n);

#endif
