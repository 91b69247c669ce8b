/* The Jinja of chat templates: what the environment of transformers offers to the template of a model,
 * written as text from a context of JSON values.
 *
 * Offered: expressions with all operators, slices, attributes, items and the methods of strings, lists and
 * maps that change nothing; `if`, `for` (with `loop`, a condition, `else`, `recursive`), `set`, `namespace`,
 * `macro`, `call`, `filter`, `with`, `raw`, `break`, `continue`, `generation`; the filters and tests of the
 * tables in filter.c, filter_list.c and test.c; the functions range, dict, namespace, raise_exception and
 * strftime_now. trim_blocks and lstrip_blocks are on, as in transformers. The filter `safe` changes nothing.
 * A template can read nothing but its context. Steps, memory, depth and output are bounded.
 *
 * The output tells apart text of the template and text of the context: each byte knows where it came from. A
 * string that is cut, joined, stripped, split or replaced keeps this; a string that a filter makes anew of a
 * mixed one (upper, tojson, the text of a list) counts as text of the context. */
#ifndef AXONN_TOKEN_JINJA_H
#define AXONN_TOKEN_JINJA_H

#include "axonn/base.h"

struct json_t;

/* A template, ready to be rendered. Any number of threads may render it at once. */
typedef struct ax_jinja ax_jinja;

/* Parses a template. `where` names it in messages, which begin with "WHERE:LINE: ". AX_ERR_DATA: the text is
 * not Jinja, or has something that is not offered; filters and tests that are not offered are all listed. */
AX_MUST_CHECK ax_status ax_jinja_parse(const char *where, const char *text, size_t size, ax_jinja **out);
void ax_jinja_destroy(ax_jinja **template);

/* Returns true if the template has a block {% generation %}. */
bool ax_jinja_marks(const ax_jinja *template);
/* Returns true if a text that the template writes as it is, or a string in it, contains these bytes. */
bool ax_jinja_has(const ax_jinja *template, const char *text, size_t size);
/* Returns true if a text that the template can write, in a branch that conversations may never reach,
 * contains these bytes. Strings that it only compares with, or searches, do not count. */
bool ax_jinja_writes(const ax_jinja *template, const char *text, size_t size);
/* Returns true if the template reads a variable of this name from its context: it asks whether it is defined,
 * or reads it before it gives the name a value itself. */
bool ax_jinja_reads(const ax_jinja *template, const char *name);
/* Returns true if the template asks for the date (strftime_now). */
bool ax_jinja_asks_date(const ax_jinja *template);

/* Where text came from: the template; element k of the list "messages" of the context (1 + k); another list
 * or object of the context. Strings that stand directly in the context, such as "bos_token", and the member
 * "role" of a message count as text of the template. The members of the context's object
 * "chat_template_kwargs" are variables too, and text of the context. */
enum { AX_JINJA_TEMPLATE = 0, AX_JINJA_OTHER = INT32_MAX };

typedef struct ax_jinja_part {
    size_t end; /* in bytes of the text; the part begins where the one before it ends */
    int32_t from;
    uint32_t block; /* the number, from 1 on, of the block {% generation %} that it is in; 0: in none */
} ax_jinja_part;

/* A rendered text. Zero-initialise it; rendering reuses its memory. */
typedef struct ax_jinja_text {
    ax_buf text, parts; /* parts: ax_jinja_part[n_parts] */
    size_t n_parts;
    ax_buf memory;  /* temporary, for rendering */
    bool lost;      /* a block {% generation %} became a value, as in a macro: its text is not marked */
    bool own_fault; /* the rendering failed by what the template does whatever it is given: it calls a
                       function that is not there, divides by zero, or takes more than it may */
} ax_jinja_text;
void ax_jinja_text_fini(ax_jinja_text *text);

/* What the template writes for the first messages alone: the first `same` bytes of the whole text, and a
 * tail. */
typedef struct ax_jinja_cut {
    bool wanted, known; /* known: set where it could be told on the way */
    bool spare;         /* wanted only where the text with the prompt is not how the whole goes on */
    size_t same, begin, end, part; /* of tails: bytes, and the index of the first part */
} ax_jinja_cut;

typedef struct ax_jinja_cuts {
    ax_jinja_cut *cut; /* [2 * n]: [2 * k + p]: of the first k messages; p = 1: with add_generation_prompt */
    size_t n;
    ax_jinja_text tails;
} ax_jinja_cuts;

/* What the message of a template that has called raise_exception has behind its place. */
#define AX_JINJA_REFUSES "the template refuses the conversation: "

/* Replaces *out by what the template writes for a context, a JSON object. `now` is the time that strftime_now
 * prints, in seconds since 1970 of the clock that it shows, whatever the time zone. AX_ERR_DATA: the template
 * failed, with its own message if it has called raise_exception, or took more than it may. */
AX_MUST_CHECK ax_status ax_jinja_render(const ax_jinja *template, const struct json_t *context, int64_t now,
                                        ax_jinja_text *out);
/* As ax_jinja_render for a context whose add_generation_prompt is false. Also finds the cuts that are wanted,
 * as far as this takes little time: a template that runs once over its messages, and does not ask for their
 * number, has written the text of the first messages on its way. */
AX_MUST_CHECK ax_status ax_jinja_render_cuts(const ax_jinja *template, const struct json_t *context,
                                             int64_t now, ax_jinja_cuts *cuts, ax_jinja_text *out);

#endif
