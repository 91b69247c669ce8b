/* The template that a model brings, for its three files: chat_context.c makes what it reads, and has it run;
 * chat_own.c finds the answers in what it writes; chat_probe.c creates it, and finds out what it does. */
#ifndef AXONN_TOKEN_CHAT_OWN_H
#define AXONN_TOKEN_CHAT_OWN_H

#include "chat_templates.h"
#include "token/jinja/jinja.h"
#include "token/tok.h"

#include <jansson.h>

struct chat_jinja {
    ax_jinja *text, *tools; /* tools: for conversations with tools; NULL: `text` */
    json_t *tokens;         /* bos_token and the like, for the context */
    int64_t now, clock; /* clock: as a clock in this time zone shows it; of a time that is fixed: in UTC */
    bool fixed;         /* by SOURCE_DATE_EPOCH */
    int32_t end;        /* the token that ends an answer; -1: none is known */
    ax_buf closing;     /* what stands between an answer and that token */
    ax_buf fault;       /* how it fails in all sample conversations, if it does not refuse them; or empty */
    ax_buf mute; /* says that it writes no answer, as it writes none of a sample conversation; or empty */
    ax_buf rest; /* what follows an answer in which no token is, without white space before it */
    ax_jinja_text work[4];
    ax_jinja_cuts cuts; /* of the conversation */
};

/* What the template writes for the first messages: `same` bytes of the whole text, and bytes begin to end of
 * another. */
typedef struct chat_written {
    const ax_jinja_text *all, *tail;
    size_t same, begin, end;
    size_t part; /* of the tail: the first one */
} chat_written;

typedef struct chat_range {
    size_t begin, end;
} chat_range;

/* ---- chat_context.c -------------------------------------------------------------------------------- */

/* Fails with AX_ERR_MEMORY. */
ax_status chat_no_memory(void);
/* Sets *out to an object with the names of special tokens, as transformers gives them to templates. */
ax_status chat_read_tokens(const ax_tokenizer *tok, json_t **out);
/* Sets a variable of a context; value NULL: to none. */
void chat_set_or_null(json_t *context, const char *name, const json_t *value);
/* Makes the context of a conversation. Sets number[i] to the number of turn i's message, counted from 1. */
ax_status chat_make_context(const chat_jinja *own, const ax_chat_turns *turns, int32_t *number, json_t **out);
/* Renders the first n messages of a context; with cuts, if they are not NULL. */
ax_status chat_write_first(const chat_jinja *own, const json_t *context, size_t n, bool prompt,
                           ax_jinja_cuts *cuts, ax_jinja_text *out);
/* Finds what the template writes for the first n messages; `work` has its text if it is not known yet. */
ax_status chat_read_first(const chat_jinja *own, const json_t *context, const ax_jinja_text *all, size_t n,
                          bool prompt, ax_jinja_text *work, chat_written *out);

/* ---- chat_own.c ------------------------------------------------------------------------------------ */

/* Returns what the template writes as a whole. */
chat_written chat_whole(const ax_jinja_text *all);
/* Finds the bytes that come from a message: from the first to the last. Returns false if there are none. */
bool chat_find_message(const chat_written *text, int32_t from, chat_range *out);
/* Returns the first special token in a text, or the first added token if none is special, but for white
 * space; NULL: there is none. *before is the number of bytes before it. The end-of-text token counts as
 * special. */
const tok_added *chat_first_token(const ax_tokenizer *tok, const char *text, size_t n, size_t *before);

#endif
