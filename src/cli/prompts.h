/* Many prompts of a file, and the file of the texts that continue them (axonn generate --prompts). */
#ifndef AX_CLI_PROMPTS_H
#define AX_CLI_PROMPTS_H

#include "model.h"
#include "records.h"

/* What a prompt is made with. */
typedef struct prompt_source {
    const char *path;
    const ax_pretrained *model;
    const ax_chat *template; /* of prompts that are conversations, or NULL */
    const ax_strings *ignore;
    int64_t samples; /* of a prompt that does not say how many */
} prompt_source;

/* The prompts, on all ranks. Records and what is in `sent` before it is sent are rank 0's alone. */
typedef struct prompt_list {
    cli_records records;
    ax_prompt *prompt; /* [n] */
    size_t n;
    ax_ids sent;   /* all that is not text of all prompts, as prompts.c writes it */
    ax_buf texts;  /* their strings of `until`, each with a NUL */
    size_t *first; /* [n]: index in `sent` of each prompt; rank 0 */
    bool *done;    /* of all samples, prompt after prompt */
    ax_strings *until;
    int64_t texts_wanted; /* number of samples of all prompts, and how many of them are done */
    int64_t texts_done;
} prompt_list;

/* Logs the template of prompts, and how it was chosen; warns of it if there is a doubt. */
void cli_log_template(const ax_chat *template);
/* Warns, unless *warned is set, of what the template has left out of a conversation; sets *warned then.
 * `where` and `line` tell which conversation it is; line 0: it has none. */
void cli_warn_lost(const ax_chat_text *text, const char *where, int64_t line, bool *warned);

/* Reads a file of prompts, and finds all that is wrong in it. Called on rank 0. */
ax_status prompts_read(const prompt_source *source, prompt_list *out);
/* Prints a hash of the prompts, their ids and their other members as 16 hexadecimal digits. Rank 0. */
void prompts_hash(const prompt_list *prompts, char out[17]);
/* Marks a sample as done. Returns false if it is already, or if the prompt has fewer samples. */
bool prompts_mark(prompt_list *prompts, size_t prompt, int64_t sample);
/* Gives the prompts of rank 0 to all ranks, which can then continue them. Collective along the world. */
ax_status prompts_share(ax_comm *world, const ax_chat *template, prompt_list *prompts);
void prompts_fini(prompt_list *prompts);

/* The file of texts: a line that describes how they were made, then one line a text. */
typedef struct text_file {
    const char *path;
    int fd;
    prompt_list *prompts;
    ax_buf line; /* scratch */
} text_file;

/* Opens `path` to append texts. If the file exists, its first line must be `settings`; its texts are marked
 * as done in the prompts, and a last line without an end is dropped. AX_ERR_DATA: the file has other
 * settings, samples of other prompts, or is damaged; the message lists what is wrong. Called on rank 0. Takes
 * `settings`. */
ax_status text_file_open(const char *path, json_t *settings, prompt_list *prompts, text_file *out);
/* Appends a text. `said`: the model has a tokenizer, else its text is null. */
ax_status text_file_add(text_file *file, const ax_continued *one, bool said);
/* Makes sure that all texts are on the disk, and closes the file. */
ax_status text_file_end(text_file *file);
void text_file_close(text_file *file);

/* What axonn generate --prompts does. */
typedef struct prompt_run {
    const model_args *common;
    prompt_source source;
    const ax_text_options *options;
    const char *out;
    int64_t batch;
} prompt_run;
/* Continues the prompts of a file and writes the texts, of which those that are there already are left out;
 * prints what was done. Collective. */
ax_status prompts_run(const opened_model *opened, const prompt_run *run);

#endif
