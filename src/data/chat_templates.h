/* The templates of conversations, as data. Read axonn/chat.h first. */
#ifndef AXONN_DATA_CHAT_TEMPLATES_H
#define AXONN_DATA_CHAT_TEMPLATES_H

#include "axonn/chat.h"

/* Placeholders in templates, each a whole string. CHAT_BEGIN stands for the tokens that the tokenizer puts
 * before each text, CHAT_EOS for the tokenizer's end-of-text token. */
#define CHAT_BEGIN "{begin}"
#define CHAT_EOS "{eos}"

/* What a template writes before and after a turn's text. */
typedef struct chat_frame {
    const char *before, *after; /* NULL in `before`: the template has no such frame */
} chat_frame;

/* A template. A rendered conversation has its strings in this order:
 *
 *     begin [no_system] { frame[...] } header opening [think reasoning] text frame[ASSISTANT].after ...
 *
 * The header of an answer is frame[AX_CHAT_ASSISTANT].before: a prompt ends with it. The targets begin after
 * it. */
typedef struct chat_template {
    const char *name;
    const char
        *needs[5]; /* tokens that the tokenizer must have, or CHAT_EOS; no text of a turn can contain them */
    const char *guards[3]; /* further tokens that no text of a turn can contain, if the tokenizer has them */
    const char *marks[3];  /* strings that each Jinja template of this format contains */
    const char *other; /* a string that no Jinja template of this format contains, if the marks alone do not
                          tell; or NULL */
    const char *end;   /* the token that ends a turn of the assistant */
    const char *begin; /* written first */
    const char *no_system;       /* written if there is no turn of the system */
    const char *no_system_input; /* instead of no_system, if the first turn has an input; NULL: no_system */
    chat_frame frame[AX_CHAT_ROLES];
    chat_frame after_system; /* the user's frame after a turn of the system; before NULL: the usual one */
    const char *between;     /* written before each turn of the user that is not the first */
    const char *opening;     /* written before the assistant's text; a target */
    chat_frame think; /* written around the reasoning of each answer, even if it is empty; a target; before
                         NULL: the template has no reasoning */
    bool trims;       /* white space at both ends of a text is dropped */
} chat_template;

enum { CHAT_TEMPLATES = 6 };
/* The table of templates, in the order in which ax_chat_create tries them. */
extern const chat_template chat_templates[CHAT_TEMPLATES];

struct ax_chat {
    const chat_template *template; /* NULL: none fits the tokenizer */
    const ax_tokenizer *tok;
    ax_buf begin;   /* what CHAT_BEGIN stands for */
    ax_ids guarded; /* ids of tokens, special or not, that no text of a turn can contain */
    const char *origin;
};

/* Returns what a string of the template stands for, and its size; NULL is the empty string. */
const char *chat_string(const ax_chat *chat, const char *text, size_t *n);

/* Returns true if the text of a Jinja template has the marks of this template's format. */
bool chat_has_marks(const char *jinja, const chat_template *t);

#endif
