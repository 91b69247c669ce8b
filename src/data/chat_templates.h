/* Chat templates as data: the strings that stand around the turns of a conversation. Read axonn/chat.h
 * first. */
#ifndef AXONN_DATA_CHAT_TEMPLATES_H
#define AXONN_DATA_CHAT_TEMPLATES_H

#include "axonn/chat.h"

/* Placeholders in the strings of templates; each is a string of its own. CHAT_BEGIN stands for the tokens
 * that the tokenizer puts before each text, CHAT_EOS for the tokenizer's end-of-text token. */
#define CHAT_BEGIN "{begin}"
#define CHAT_EOS "{eos}"

/* What a template writes before and after a turn's text. */
typedef struct chat_frame {
    const char *before, *after; /* `before` NULL: the template has no such pair of strings */
} chat_frame;

/* A chat template. A rendered conversation has the template's strings (the fields below) in this order; each
 * turn writes one of the last two lines:
 *
 *     at the start:           begin [no_system]
 *     system, user, input:    [between] frame[role].before text frame[role].after
 *     assistant:              header opening [think.before reasoning think.after] text frame[role].after
 *
 * The header of an answer is frame[AX_CHAT_ASSISTANT].before. A prompt ends with the header, and the targets
 * of training begin after it. */
typedef struct chat_template {
    const char *name;
    /* Tokens that the tokenizer must have; CHAT_EOS: its end-of-text token. No text of a turn can contain
     * them. */
    const char *needs[5];
    const char *guards[3]; /* further tokens, beside `needs`, that no text of a turn can contain, if the
                              tokenizer has them */
    const char *marks[3];  /* strings that each Jinja template of this format contains */
    const char *other; /* a string that no Jinja template of this format contains, for formats that `marks`
                          alone do not tell apart; or NULL */
    const char *end;   /* the token that ends a turn of the assistant */
    const char *begin; /* written at the start of a conversation */
    const char *no_system;       /* written after `begin` if the first turn is not the system's */
    const char *no_system_input; /* written instead of no_system if an input (Alpaca) follows the first turn;
                                    NULL: no_system */
    chat_frame frame[AX_CHAT_ROLES];
    chat_frame after_system; /* strings around a turn of the user after a turn of the system; before NULL:
                                those of `frame` */
    const char *between;     /* written before each turn of the user that follows an answer */
    const char *opening;     /* written before the assistant's text; a target of training */
    chat_frame think; /* written around the reasoning of each answer, even if the reasoning is empty; a target
                         of training; before NULL: the template has no reasoning */
    bool trims;       /* white space at both ends of each turn's text is dropped */
} chat_template;

enum { CHAT_TEMPLATES = 6 };
/* The table of templates, in the order in which ax_chat_create tries them. */
extern const chat_template chat_templates[CHAT_TEMPLATES];

struct ax_chat {
    const chat_template *template; /* NULL: none fits the tokenizer */
    const ax_tokenizer *tok;
    ax_buf begin;   /* text for which CHAT_BEGIN stands */
    ax_ids guarded; /* ids of tokens, special or not, that no text of a turn can contain */
    const char *origin;
    const chat_template *similar; /* template NULL: the one whose marks the tokenizer's own template has, or
                                     NULL */
};

/* Returns a string of the template, and its size *n, with the placeholders CHAT_BEGIN and CHAT_EOS replaced
 * by the tokenizer's texts. NULL counts as the empty string. */
const char *chat_string(const ax_chat *chat, const char *text, size_t *n);

/* Releases the texts that ax_chat_read has made for the turns (ax_chat_turns.made). */
void chat_forget_strings(ax_chat_turns *turns);

/* Returns the name of the template that writes what the Jinja text of a released model writes, and sets
 * *origin to a phrase as ax_chat_origin returns it. Returns NULL if the Jinja text is not known. */
const char *chat_known(const char *jinja, const char **origin);

/* Returns true if the Jinja text contains all strings `marks` of the template, and not its string `other`. */
bool chat_has_marks(const char *jinja, const chat_template *t);

#endif
