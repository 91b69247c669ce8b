/* Chat templates as data: the strings that stand around the turns of a conversation. Read axonn/chat.h
 * first. */
#ifndef AXONN_TOKEN_CHAT_TEMPLATES_H
#define AXONN_TOKEN_CHAT_TEMPLATES_H

#include "axonn/chat.h"

/* Placeholders in the strings of templates; each is a string of its own. CHAT_BEGIN stands for the tokens
 * that the tokenizer puts before each text, CHAT_EOS for the tokenizer's end-of-text token. */
#define CHAT_BEGIN "{begin}"
#define CHAT_EOS "{eos}"

/* What a template writes before and after a turn's text. */
typedef struct chat_frame {
    const char *before, *after; /* `before` NULL: the template has no such pair of strings */
} chat_frame;

/* How a template writes tools. `list` is the list of tools of the conversation:
 *
 *     list:        list.before, of each tool: tool.before JSON tool.after, list.after
 *     calls:       of each call: [gap] call.before name arguments JSON call.after
 *     results:     row.before, of each result: result.before text result.after, row.after
 *
 * `gap` stands before a call that follows a text or a call. Results that follow each other are one row. JSON
 * is written as Python's json.dumps does (chat_put_json). */
typedef struct chat_tools {
    bool in_user;     /* the list stands before the text of the first turn of the user; else at the end of the
                         system turn, which is written even if the conversation has none */
    bool empty;       /* a list without tools is written too */
    int indent;       /* of the JSON of a tool; 0: on one line */
    const char *note; /* written at the start of the system turn if there is a list; or NULL */
    const char *after_text; /* written between the text of the system turn and the list */
    chat_frame list, tool;
    const char *gap; /* NULL: an answer is a text or one call */
    chat_frame call;
    const char *arguments;
    bool verbatim; /* arguments that are a string are written as they are; else such arguments are an error,
                      because Jinja templates would write them in quotes */
    chat_frame row, result;
    bool quoted; /* results are written as JSON strings */
} chat_tools;

/* A chat template. A rendered conversation has the template's strings (the fields below) in this order; each
 * turn writes one of the last two lines:
 *
 *     start:      begin [no_system]
 *     user:       [between] frame[role].before [note] preamble [list] text [list] frame[role].after
 *     assistant:  header opening [think.before reasoning think.after] text [calls] frame[role].after
 *
 * Turns of the system and inputs are written like those of the user. The header of an answer is
 * frame[AX_CHAT_ASSISTANT].before. A prompt ends with the header, and the targets of training begin after it.
 */
typedef struct chat_template {
    const char *name;
    /* Tokens that the tokenizer must have; CHAT_EOS: its end-of-text token. No text of a turn can contain
     * them. */
    const char *needs[7];
    const char *guards[3];       /* further tokens, beside `needs`, that no text of a turn can contain, if the
                                    tokenizer has them */
    const char *end;             /* the token that ends a turn of the assistant */
    const char *begin;           /* written at the start of a conversation */
    const char *no_system;       /* written after `begin` if the first turn is not the system's */
    const char *no_system_input; /* written instead of no_system if an input (Alpaca) follows the first turn;
                                    NULL: no_system */
    const char *default_system;  /* text of the system turn that is written where the conversation has none;
                                    NULL: there is no such turn */
    const char *preamble;        /* written before the text of each system turn; or NULL */
    chat_frame frame[AX_CHAT_ROLES]; /* the system's: before NULL: conversations cannot have a system turn */
    chat_frame after_system; /* strings around a turn of the user after a turn of the system; before NULL:
                                those of `frame` */
    const char *between;     /* written before each turn of the user that follows an answer */
    const char *opening;     /* written before the assistant's text; a target of training */
    chat_frame think; /* written around the reasoning of each answer, even if the reasoning is empty; a target
                         of training; before NULL: the template has no reasoning */
    const chat_tools *tools; /* NULL: the template writes no tools */
    /* Where the text of the system turn is written: in a turn of its own, or before the text of the first or
     * last turn of the user, which has the strings of the system's frame around it. */
    enum { CHAT_OWN_TURN, CHAT_FIRST_USER, CHAT_LAST_USER } system_at;
    bool asked; /* the template is chosen only by its name or by the tokenizer's own template, not by the
                   tokenizer's special tokens */
    bool trims; /* white space at both ends of each turn's text is dropped, except in results of tools */
} chat_template;

enum { CHAT_TEMPLATES = 14 };
/* The table of templates, in the order in which ax_chat_create tries them. */
extern const chat_template chat_templates[CHAT_TEMPLATES];

/* The template that a model brings as Jinja: chat_own.h. */
typedef struct chat_jinja chat_jinja;

struct ax_chat {
    const chat_template *template; /* NULL: none of the table */
    chat_jinja *own;               /* NULL: `template`, or no template at all */
    chat_jinja *spare;             /* the tokenizer's text, which counts as `template`: it writes what
                                      `template` refuses; NULL: there is none */
    char name[AX_CHAT_NAME_BYTES];
    const chat_tools *tools; /* that of the template; NULL also if the tokenizer's own text writes none */
    const ax_tokenizer *tok;
    ax_buf begin;      /* text for which CHAT_BEGIN stands */
    ax_ids guarded[2]; /* ids of tokens, special or not, that no text of a turn can contain, and of those that
                          only answers can contain */
    ax_buf origin;     /* how the template was chosen; empty: it was named */
    ax_buf broken;     /* why the tokenizer's own template cannot be used; empty: it can. Where `own` is set,
                          it is for conversations with tools only */
    ax_buf doubt;      /* as ax_chat_doubt returns it; or empty */
    char *jinja;       /* text of `own` */
};

/* Fails with AX_ERR_USAGE: the tokenizer's own template cannot be used. `why` begins with its file. */
ax_status chat_refuse(const char *why);

/* Returns a string of the template, and its size *n, with the placeholders CHAT_BEGIN and CHAT_EOS replaced
 * by the tokenizer's texts. NULL counts as the empty string. */
const char *chat_string(const ax_chat *chat, const char *text, size_t *n);

/* Bits of the kind of a part: its tokens are targets of training; special tokens, and those of
 * chat->guarded[0], in it are encoded as plain text; those of chat->guarded[1] too. */
enum { CHAT_TARGET = 1, CHAT_PLAIN = 2, CHAT_STRICT = 4 };

/* Appends a part to a rendered conversation, unless its text is empty. */
ax_status chat_put(ax_chat_text *out, const char *text, size_t n, int kind);
/* Ends a part at byte `end` of the text. */
ax_status chat_end_part(ax_chat_text *out, size_t end, int kind);
/* Appends a string of the template, or nothing if `text` is NULL. */
ax_status chat_put_string(const ax_chat *chat, ax_chat_text *out, const char *text, int kind);

/* ---- tools: chat_tools.c ------------------------------------------------------------------------- */

/* Appends a JSON value as Python's json.dumps(value, ensure_ascii=False, indent=indent or None) writes it. */
ax_status chat_put_json(const struct json_t *value, int indent, ax_buf *out);
/* Appends a finite number as Python's repr writes it. */
ax_status chat_put_real(double value, ax_buf *out);
/* Fails if the value has a number that chat_put_json may write with other digits than its text had. */
ax_status chat_check_numbers(const struct json_t *value, const char *what);

/* Returns true if the template writes a list of tools for the conversation. */
bool chat_has_list(const chat_template *t, const ax_chat_turns *turns);
/* Fails if the conversation has tools, calls or results in a form that the template, or the tokenizer's own
 * text, does not write. */
ax_status chat_check_tools(const ax_chat *chat, const ax_chat_turns *turns);
/* These append the list of tools, the calls of an answer (`follows`: they follow a text), and the result of a
 * tool, which is turn i. */
ax_status chat_put_list(const ax_chat *chat, const ax_chat_turns *turns, ax_chat_text *out);
ax_status chat_put_calls(const ax_chat *chat, const ax_chat_turn *turn, bool follows, int kind,
                         ax_chat_text *out);
ax_status chat_put_result(const ax_chat *chat, const ax_chat_turns *turns, size_t i, ax_chat_text *out);

/* ---- the model's own template: chat_own.h ------------------------------------------------------------ */

/* A text of the tokenizer, and where it stands, for messages. */
typedef struct chat_source {
    const char *text, *where;
} chat_source;
/* Creates the template from its text; `tools`: that for conversations with tools, whose text may be NULL.
 * AX_ERR_DATA: a text is not Jinja, or has what is not offered. */
ax_status chat_jinja_create(const ax_tokenizer *tok, chat_source text, chat_source tools, chat_jinja **out);
void chat_jinja_destroy(chat_jinja **jinja);
/* As ax_chat_render, by `text`, into an empty text. `marks`: blocks {% generation %} are the answers, if
 * there are any. */
ax_status chat_jinja_render(const ax_chat *chat, const chat_jinja *text, const ax_chat_turns *turns,
                            bool prompt, bool marks, ax_chat_text *out);
/* Returns the message of a failed rendering if the template fails so whatever the conversation; else NULL. */
const char *chat_jinja_fault(const chat_jinja *own, const char *message);
/* Returns the id of the token that ends an answer, or -1. */
int32_t chat_jinja_end(const chat_jinja *own);
/* Returns what the template writes after an answer, without white space before it, if no token is in it. */
const char *chat_jinja_rest(const chat_jinja *own);
/* Removes from the end of an answer what the template writes before that token. */
void chat_jinja_answer(const chat_jinja *own, const char *text, size_t *size);
/* Returns true if a string of the template contains these bytes. */
bool chat_jinja_has(const chat_jinja *own, const char *text, size_t size);
/* As ax_jinja_writes. */
bool chat_jinja_writes(const chat_jinja *own, const char *text, size_t size);
/* As ax_chat_date. */
int64_t chat_jinja_date(const chat_jinja *own, bool *fixed);
/* Appends the phrase of ax_chat_origin. `name`: of the text, where the tokenizer has several; or NULL. */
ax_status chat_jinja_describe(const chat_jinja *own, const char *name, ax_buf *out);
/* Returns a hash of the texts, which names the template in token files. */
uint64_t chat_jinja_hash(const char *text, const char *tools);

/* ---- tokens of the model's own template: chat_markup.c ------------------------------------------------ */

/* Returns true if the text of an added token is white space. */
struct tok_added;
bool chat_is_space(const struct tok_added *a);
/* Sets chat->guarded, which must be empty, for chat->own: to the added tokens that the template writes in
 * sample conversations. */
ax_status chat_guard_markup(ax_chat *chat);

/* Returns true if the template reads a variable of this name for the conversation. */
bool chat_jinja_reads(const chat_jinja *own, const ax_chat_turns *turns, const char *name);
/* Fails if a member of the conversation's record that is not read has the name of a variable of the model's
 * own template. */
ax_status chat_check_variables(const chat_jinja *own, const ax_chat_turns *turns);

/* Releases the texts that ax_chat_read has made for the turns (ax_chat_turns.made). */
void chat_forget_strings(ax_chat_turns *turns);

/* A Jinja text, by a released model or an earlier version of axonn, that writes what a template writes. */
typedef struct chat_own {
    uint64_t hash;      /* XXH3 of the text without newlines at its end */
    const char *name;   /* of the template */
    const char *origin; /* a phrase as ax_chat_origin returns it */
    bool tools;         /* the text writes tools, as the template does */
    bool differs;       /* the template writes some conversations otherwise than the text */
} chat_own;
enum { CHAT_OWN_TEXTS = 25 };
extern const chat_own chat_own_texts[CHAT_OWN_TEXTS];

/* Returns what is known of a Jinja text, or NULL if it is not known. */
const chat_own *chat_known(const char *jinja);

#endif
