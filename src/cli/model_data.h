/* The data on which verbs evaluate a model: text or tokens, read in the same way by all of them. */
#ifndef AX_CLI_MODEL_DATA_H
#define AX_CLI_MODEL_DATA_H

#include "model.h"

/* The arguments that say how text becomes tokens. The options are MODEL_TEXT_OPTIONS. */
typedef struct model_text {
    char *tokenizer, *template;
    cli_text text;
    ax_strings ignore;
    bool bos;
} model_text;

#define DATA_HELP                                                                                            \
    "text, JSON or JSONL, a directory of them, a token file, a directory of shards, or a pattern "           \
    "('*.bin'); /dev/stdin reads text from standard input"

#define MODEL_TEXT_OPTIONS(args, field)                                                                      \
    {"tokenizer", AX_OPT_PATH, offsetof(args, field.tokenizer), .meta = "DIR",                               \
     .help = "a tokenizer's directory or tokenizer.json, to use instead of the model's tokenizer"},          \
        TEXT_OPTIONS(args, field.text),                                                                      \
        {"bos", AX_OPT_BOOL, offsetof(args, field.bos), "true",                                              \
         .help =                                                                                             \
             "put around each text of --data what the tokenizer's post_processor puts there (as a rule a "   \
             "token that begins the text), as transformers does; conversations have the tokens of their "    \
             "template"},                                                                                    \
        IGNORE_OPTION(args, field.ignore),                                                                   \
    {                                                                                                        \
        "template", AX_OPT_STRING, offsetof(args, field.template),                                           \
            .meta = "NAME",                                                                                  \
            .help = "template by which conversations become text: chatml, llama3, qwen3 or another of "      \
                    "docs/howto.md, or one that the tokenizer brings by name (default, tool_use); default: " \
                    "the model's own chat_template; without one, that which its special tokens choose"       \
    }

/* The sources that a verb reads. */
typedef struct model_data {
    const char *verb; /* names temporary files */
    const model_text *text;
    const char *const *path; /* [n] */
    int n;
    bool bare; /* no special tokens around texts (model_data_follow) */
    /* Writes the tokens of path[0], the only source, to the token file `tokens`; NULL: the sources are text
     * or tokens. */
    ax_status (*write)(void *user, const char *tokens);
    void *user;
} model_data;

/* Uses the tokenizer of --tokenizer, if one is given, and checks that the sources can be read. Appends what
 * the user did wrong to `errors`, a line for each source. Not collective. */
ax_status model_data_check(const model_data *data, opened_model *m, ax_buf *errors);
/* Ends a check that has returned `status`: fails with AX_ERR_USAGE and all `errors`, if there are any, and
 * releases them. */
ax_status model_data_checked(ax_status status, ax_buf *errors);
/* Sets *shape to the rows with which the run that wrote the model evaluates (ax_train_saved_shape), and
 * *bare. Rank 0 reads the checkpoint, which a run that still trains may remove. Collective. */
ax_status model_data_follow(const opened_model *m, const model_text *text, ax_row_shape *shape, bool *bare);
/* Tokenizes the text on rank 0, opens the sources on all ranks and calls `use` with them. A rank on another
 * host that does not see rank 0's temporary directory tokenizes the text itself. Signals are caught
 * (cli_stop_catch). Collective. */
ax_status model_data_use(const model_data *data, opened_model *m,
                         ax_status (*use)(const void *args, opened_model *m, ax_data *const *sources),
                         const void *args);
/* Returns the number of rows that each rank computes at a time: `batch` or, if that is 0, as many as have
 * AX_ROW_MOST tokens together; not more than the n sources have. */
int64_t model_data_batch(const opened_model *m, int64_t batch, ax_data *const *sources, int n,
                         const ax_row_shape *shape);
/* Returns true if standard input is one of the n paths. */
bool model_data_is_stdin(const char *const *path, int n);

#endif
