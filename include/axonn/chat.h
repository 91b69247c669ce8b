/* data/chat: conversations, and the templates that turn them into one text for a model.
 *
 * A conversation is a list of turns: of the system (only as the first turn), of the user and of the
 * assistant, the last two in alternation. A template writes special tokens and headers around each turn. A
 * rendered conversation is a text of parts: strings of the template, and texts of turns. Special tokens, and
 * all tokens that the template needs, are recognized in the template's strings only, so the text of a turn
 * can never contain such a token. Headers that are plain text instead of special tokens cannot be protected
 * in this way: those of deepseek-coder and of alpaca, and those of mistral, mistral-v0 and mistral-v1
 * if the tokenizer has no tokens [INST] and [/INST]. The targets of training are all that follows the header
 * in a turn of the assistant: what the assistant says, the template's strings around it, and what closes the
 * turn. Not collective; the objects are for one thread at a time, but any number of threads may share an
 * ax_chat. */
#ifndef AXONN_CHAT_H
#define AXONN_CHAT_H

#include "axonn/option.h"
#include "axonn/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

struct json_t; /* of <jansson.h> */

/* A chat template, bound to one tokenizer. */
typedef struct ax_chat ax_chat;

/* The names of the templates that axonn has itself, separated by "|". */
extern const char ax_chat_names[];
enum { AX_CHAT_NAME_BYTES = 24 }; /* enough bytes for the name of a template and its NUL */

/* Creates the template `name`: one of ax_chat_names, one that the tokenizer brings by this name, or the
 * tokenizer's own by the name that ax_chat_name gave it ("own-" and a hash of its text). If `name` is NULL,
 * the tokenizer decides. Its own chat template, a Jinja text (ax_tokenizer_chat_template), decides first: if
 * the text is one that ax_chat_jinja prints for a template, or a known text of a released model that writes
 * the same, that template is created, and the text is run for conversations that this template refuses; any
 * other text is run for each conversation. If the tokenizer has no chat template, its added tokens decide: of
 * llama3, qwen3, chatml, deepseek-coder, mistral and alpaca, in this order, the first is chosen whose needed
 * tokens are all among the added tokens. The others must be named. `tok` must outlive *out, which the caller
 * destroys. AX_ERR_USAGE: there is no template of this name, or the tokenizer lacks some of the tokens that
 * it needs, which the message lists. AX_ERR_DATA: the text of the named template is not Jinja, or has what is
 * not offered. If `name` is NULL and there is no template that can be used, the call succeeds, and rendering
 * fails. */
AX_MUST_CHECK ax_status ax_chat_create(const ax_tokenizer *tok, const char *name, ax_chat **out);
void ax_chat_destroy(ax_chat **chat);

/* Returns the name of the template, or "none". */
const char *ax_chat_name(const ax_chat *chat);
/* Returns a phrase for messages that says how the template was chosen, such as "chosen by the tokenizer's
 * special tokens". Returns NULL if the caller named a template of axonn's own, of whose name the tokenizer
 * has no other, or if there is none. */
const char *ax_chat_origin(const ax_chat *chat);
/* Returns a sentence for a warning, if no token of the tokenizer ends an answer as the template writes it:
 * its marker is plain text to the tokenizer. A model that learns from such answers never ends one. Else NULL.
 */
const char *ax_chat_doubt(const ax_chat *chat);
/* Returns the id of the special token that ends a turn of the assistant, or -1 without a template. */
int32_t ax_chat_end(const ax_chat *chat);

/* Returns the time whose date the template can write, in seconds since 1970: that of the environment variable
 * SOURCE_DATE_EPOCH (*fixed is set; the date is that of UTC), or that at which *chat was created. Returns -1
 * if it writes no date. */
int64_t ax_chat_date(const ax_chat *chat, bool *fixed);

/* Appends the template as Jinja, which transformers, vLLM and llama.cpp read as a model's chat template. For
 * turns that ax_chat_render accepts, the Jinja template writes the same text; if add_generation_prompt is
 * set, the header of an answer follows. The Jinja template has no role for the input of Alpaca, and does not
 * prevent special tokens in the texts of turns. AX_ERR_USAGE: there is no template. */
AX_MUST_CHECK ax_status ax_chat_jinja(const ax_chat *chat, ax_buf *out);

/* ---- conversations ------------------------------------------------------------------------------- */

/* AX_CHAT_INPUT is the field "input" of the Alpaca format, the text to which the instruction refers. A turn
 * with this role follows a turn of the user. Templates that have no such role append the input to the user's
 * text, after a newline. AX_CHAT_TOOL is the result of a tool, which follows an answer. */
typedef enum ax_chat_role {
    AX_CHAT_SYSTEM,
    AX_CHAT_USER,
    AX_CHAT_INPUT,
    AX_CHAT_TOOL,
    AX_CHAT_ASSISTANT
} ax_chat_role;
enum { AX_CHAT_ROLES = 5 };

typedef struct ax_chat_turn {
    ax_chat_role role;
    const char *text;
    size_t size;
    const char *reasoning; /* reasoning of the assistant, written only by a template that has reasoning:
                              qwen3; NULL: the reasoning, if any, is in `text`, before </think> */
    size_t reasoning_size;
    const struct json_t
        *calls;     /* NULL, or calls of tools that follow the answer's text: a list of objects with
                       "name" and "arguments" (an object or a string), perhaps in "function" */
    bool unlearned; /* the turn is no target, although it is the assistant's */
    const struct json_t *message; /* NULL, or the message from which the turn was read, an object with "role":
                                     what a model's own template gets */
} ax_chat_turn;

/* The turns of a conversation. Zero-initialise it. It does not own texts, calls and tools: those that
 * ax_chat_read has added belong to the JSON value, or to `made`, which the next ax_chat_read into an empty
 * list releases. */
typedef struct ax_chat_turns {
    ax_chat_turn *turn;
    size_t n, capacity;
    bool plain;                     /* the texts of the turns follow each other without a template */
    const struct json_t *tools;     /* list of the tools that the assistant can call; NULL: none */
    const struct json_t *documents; /* list of objects, texts on which answers rest; NULL: none */
    const struct json_t *variables; /* object with further variables of a model's own template; NULL: none */
    const struct json_t *record; /* object that was read, and the members of it that were left out; NULL: */
    const ax_strings *ignored;   /* none */
    struct json_t *made;         /* texts that were joined from parts */
} ax_chat_turns;
void ax_chat_turns_fini(ax_chat_turns *turns);

/* Appends a turn. AX_ERR_MEMORY. */
AX_MUST_CHECK ax_status ax_chat_add(ax_chat_turns *turns, const ax_chat_turn *turn);

/* Returns the name of the member that makes a JSON object a conversation, or NULL if no member does:
 * "messages" (a list of objects with "role" and "content") or "conversations" (ShareGPT: a list of objects
 * with "from" and "value", or "role" and "content"); or the first of two members, the question and its
 * answer: "prompt" and "completion", "instruction" and "output" (Alpaca; perhaps "input"), "instruction" and
 * "response" (Dolly; perhaps "context"), "prompt" and "response", "question" and "answer". A side is a string
 * or a list as in "messages". If several of these members are not null, the first in this order is returned.
 * Members that `ignore` names (NULL: none) count as missing. */
const char *ax_chat_member(const struct json_t *object, const ax_strings *ignore);

/* Appends the turns of a conversation. `value` is an object for which ax_chat_member returns a name; or an
 * object without an answer; or a list as in "messages". Beside the conversation, "system" becomes the first
 * turn and "history", a list of pairs, the turns before the question. In a turn, "reasoning_content",
 * "reasoning" and "thinking" are the reasoning; "weight": 0, "train": false and the like make the turn no
 * target. If the question is a list, only the answer's turns are targets. If "prompt" and "completion" are
 * strings, the turns are plain (ax_chat_turns.plain). "tools" beside the conversation and "tool_calls" in a
 * turn of the assistant are in the form of OpenAI; turns with the role "tool" are results of tools. Members
 * of "chat_template_kwargs" beside the conversation, an object, are variables of a model's own template, and
 * so is "documents", a list of objects; other templates refuse both. AX_ERR_DATA: a role that no template
 * has; a text that is neither a string nor a list of texts; a member that could be a part of what is said and
 * that nothing reads, such as "functions". Members that `ignore` names (NULL: none) count as missing. */
AX_MUST_CHECK ax_status ax_chat_read(const struct json_t *value, const ax_strings *ignore,
                                     ax_chat_turns *turns);

/* ---- rendering ----------------------------------------------------------------------------------- */

/* A rendered conversation. Zero-initialise it; rendering reuses its memory. */
typedef struct ax_chat_text {
    ax_buf text;
    /* An array of ax_text_part (tokenizer.h), one for each part of `text`. Their member `plain` is true for
     * texts of turns, their member `target` for texts that are targets of training. */
    ax_buf parts;
    const ax_ids *guarded; /* [2], as ax_encode_parts takes them: ids of tokens that texts of turns cannot
                              contain; owned by the ax_chat that rendered the text, which must live until the
                              text is encoded */
    bool plain;            /* the turns were plain: no template wrote the text */
    /* What the template that was run has left out or garbled, a phrase for messages; NULL: nothing that is
     * noticed. The turn that it is of, counted from 1; 0: the conversation. */
    const char *lost;
    size_t lost_turn;
    ax_buf joined; /* temporary memory of ax_chat_render */
    ax_ids part;   /* temporary memory of ax_chat_encode */
} ax_chat_text;
void ax_chat_text_fini(ax_chat_text *text);

/* Replaces *out by the rendered conversation. A template that the tokenizer brings is run, with the messages
 * (ax_chat_turn.message), tools and reasoning as transformers gives them, with the usual names of roles
 * (assistant, user, tool). With `prompt`, the header of the assistant's answer follows at the end, for a
 * model to continue; the last turn must then be the user's (or an input, AX_CHAT_INPUT, or the result of a
 * tool). AX_ERR_DATA: the turns are out of order, the template does not write tools, a template that is run
 * fails or refuses the conversation, or where an answer is cannot be told. AX_ERR_USAGE: there is no
 * template. */
AX_MUST_CHECK ax_status ax_chat_render(const ax_chat *chat, const ax_chat_turns *turns, bool prompt,
                                       ax_chat_text *out);

/* Reduces *text, which a model wrote after a prompt, to the text of the answer: removes the string that the
 * template puts before an answer (ax_chat_opening), and the string between the answer and the token that ends
 * the turn. Reasoning is not removed. */
void ax_chat_answer(const ax_chat *chat, const char **text, size_t *size);
/* Returns the length of the string that the template puts before an answer, if `text`, which a model wrote
 * after a prompt, begins with this string; else 0. */
size_t ax_chat_opening(const ax_chat *chat, const char *text, size_t size);

/* Appends the token ids of a rendered conversation to `ids`, and for each id a byte to `is_target`: 1 if the
 * token's last byte lies in a part that is a target, else 0. Errors as for ax_encode. */
AX_MUST_CHECK ax_status ax_chat_encode(ax_encoder *encoder, ax_chat_text *text, ax_ids *ids,
                                       ax_buf *is_target);

#ifdef __cplusplus
}
#endif
#endif
