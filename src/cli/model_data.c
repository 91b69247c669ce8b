/* Opens the data on which a verb evaluates a model. */
#include "model_data.h"

#include "axonn/train.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static ax_status check_source(const model_data *d, const opened_model *m, const char *path)
{
    ax_data_format format;
    AX_TRY(ax_data_detect(path, &format));
    AX_CHECK(m->model.tokenizer || format != AX_DATA_PIPE, AX_ERR_USAGE,
             "%s is a pipe, which is read as text, and %s has no tokenizer: give --tokenizer; a token file "
             "must be a regular file",
             path, m->model.dir);
    AX_CHECK(m->model.tokenizer || !ax_data_format_is_text(format), AX_ERR_USAGE,
             "%s is text and %s has no tokenizer: give --tokenizer, or a token file", path, m->model.dir);
    AX_CHECK(!d->text->template || ax_data_format_is_text(format), AX_ERR_USAGE,
             "--template: %s holds tokens, not conversations: leave out --template", path);
    AX_CHECK(d->text->bos || ax_data_format_is_text(format), AX_ERR_USAGE,
             "--no-bos: %s holds tokens, which are read as they are: leave out --no-bos", path);
    return AX_OK;
}

ax_status model_data_check(const model_data *d, opened_model *m, ax_buf *errors)
{
    if (d->text->tokenizer) {
        ax_tokenizer_destroy(&m->model.tokenizer);
        AX_TRY(ax_tokenizer_load(d->text->tokenizer, &m->model.tokenizer));
    }
    for (int i = 0; i < d->n; i++) {
        ax_status status = check_source(d, m, d->path[i]);
        if (status == AX_ERR_USAGE)
            status = ax_buf_printf(errors, "%s%s", errors->size ? "\n" : "", ax_error_message());
        AX_TRY(status);
    }
    return AX_OK;
}

ax_status model_data_checked(ax_status status, ax_buf *errors)
{
    if (status == AX_OK && errors->size)
        status = ax_fail(AX_ERR_USAGE, "%s", errors->data);
    ax_buf_fini(errors);
    return status;
}

ax_status model_data_follow(const opened_model *m, const model_text *text, ax_row_shape *shape, bool *bare)
{
    ax_work *work;
    bool bos;
    *shape = (ax_row_shape){.seq_len = 0};
    AX_TRY(ax_comm_agree(m->world, m->first ? ax_train_saved_shape(&m->model, shape, &bos) : AX_OK));
    int64_t values[] = {shape->seq_len, shape->mask_documents, shape->answers, shape->pack, m->first && bos};
    AX_TRY(ax_broadcast(m->world, NULL, values, AX_COUNT(values), AX_I64, 0, &work));
    AX_TRY(ax_wait(&work));
    *shape = (ax_row_shape){.seq_len = values[0],
                            .mask_documents = values[1],
                            .answers = values[2],
                            .pack = (ax_data_packing)values[3]};
    *bare = !text->bos || !values[4];
    return AX_OK;
}

bool model_data_is_stdin(const char *const *path, int n)
{
    for (int i = 0; i < n; i++)
        if (cli_is_stdin(path[i]))
            return true;
    return false;
}

int64_t model_data_batch(const opened_model *m, int64_t batch, ax_data *const *sources, int n,
                         const ax_row_shape *shape)
{
    AX_ASSERT(shape->seq_len > 0);
    const int64_t ranks = ax_grid_group_size(m->ctx->grid, ax_batch_axes(m->ctx)),
                  most = batch ? batch : ax_max(AX_ROW_MOST / shape->seq_len, 1);
    int64_t rows = 0;
    for (int i = 0; i < n; i++)
        rows = ax_max(rows, ax_data_rows(sources[i], shape));
    return ax_max(ax_min(most, ax_ceil_div(rows, ranks)), 1);
}

/* ---- text to tokens ------------------------------------------------------------------------------ */

static bool show_build(void *user, const ax_data_progress *progress)
{
    cli_progress_update(user, progress->bytes_done, progress->bytes_total);
    return !cli_stop_wanted();
}

static ax_status make_dir(const char *verb, char *dir, size_t size)
{
    snprintf(dir, size, "%s/axonn-%s-XXXXXX", ax_temporary_dir(), verb);
    if (mkdtemp(dir))
        return AX_OK;
    ax_status status = ax_fail(
        AX_ERR_DATA,
        "cannot create a temporary directory in %s: %s; set the environment variable TMPDIR to another "
        "directory",
        ax_temporary_dir(), strerror(errno));
    *dir = 0;
    return status;
}

/* Warns of a doubt about the template, if it has written conversations of a token file. */
static bool warn_of_template(const ax_chat *chat, const char *tokens)
{
    ax_data *data;
    if (!chat || !ax_chat_doubt(chat) || ax_data_open(tokens, -1, &data) != AX_OK)
        return false;
    const bool written = !strcmp(ax_data_describe(data)->chat_template, ax_chat_name(chat));
    if (written)
        ax_log(AX_LOG_WARN, "%s", ax_chat_doubt(chat));
    ax_data_close(&data);
    return written;
}

static ax_status tokenize(const model_data *d, const opened_model *m, const ax_chat *chat, const char *dir,
                          cli_progress *progress, ax_strings *tokens)
{
    const ax_data_build_options how = {.corpus = {.text_key = d->text->text.key,
                                                  .chat = chat,
                                                  .ignore = d->text->ignore,
                                                  .bad_lines = d->text->text.bad_lines},
                                       .tokenizer = m->model.tokenizer,
                                       .bare = d->bare,
                                       .progress = show_build,
                                       .user = progress};
    bool warned = false;
    for (int i = 0; i < d->n; i++) {
        char *path;
        AX_TRY(ax_data_prepare(d->path[i], &how, dir, &path));
        warned = warned || warn_of_template(chat, path);
        ax_status status = ax_strings_add(tokens, "%s", path);
        free(path);
        AX_TRY(status);
    }
    return AX_OK;
}

/* Creates a temporary directory, which the caller removes, and tokenizes the text into it. Sets `dir` to the
 * path of the directory, and `tokens` to the paths of the token files; of a source that holds tokens already,
 * this is the path of the source. */
static ax_status prepare(const model_data *d, const opened_model *m, char *dir, size_t size,
                         ax_strings *tokens)
{
    ax_chat *chat = NULL;
    cli_progress progress;
    AX_TRY(make_dir(d->verb, dir, size));
    if (d->write) {
        AX_TRY(ax_strings_add(tokens, "%s/tokens.tok", dir));
        return d->write(d->user, tokens->items[0]);
    }
    ax_status status =
        m->model.tokenizer ? ax_chat_create(m->model.tokenizer, d->text->template, &chat) : AX_OK;
    if (status != AX_OK) {
        ax_error_context("--template");
        return status;
    }
    cli_progress_start(&progress, "tokenizing", true);
    progress.terminal &= m->first;
    status = tokenize(d, m, chat, dir, &progress, tokens);
    cli_progress_end(&progress);
    ax_chat_destroy(&chat);
    return status;
}

/* Gives all ranks the paths that rank 0 has. */
static ax_status share_paths(const opened_model *m, int n, ax_strings *tokens)
{
    for (int i = 0; i < n; i++) {
        char *path = NULL;
        AX_ASSERT(!m->first || tokens->items);
        AX_TRY(ax_comm_agree(m->world, m->first ? ax_strdup(tokens->items[i], &path) : AX_OK));
        ax_status status = ax_comm_share_text(m->world, 0, &path);
        if (status == AX_OK && !m->first)
            status = ax_strings_add(tokens, "%s", path);
        free(path);
        AX_TRY(status);
    }
    return AX_OK;
}

static bool any_hidden(const ax_strings *tokens)
{
    for (size_t i = 0; i < tokens->count; i++)
        if (!ax_path_exists(tokens->items[i]))
            return true;
    return false;
}

/* ---- sources ------------------------------------------------------------------------------------- */

/* Opens the token file `tokens`, which is `path` or was made from it. */
static ax_status open_source(const model_data *d, const opened_model *m, const char *path, const char *tokens,
                             ax_data **out)
{
    const ax_tokenizer *tok = m->model.tokenizer;
    AX_TRY(ax_data_open(tokens, tok ? ax_tokenizer_eos(tok) : -1, out));
    AX_TRY(ax_data_set_path(*out, path));
    AX_TRY(ax_data_expect(*out, &(ax_data_reader){m->model.config.vocab, tok ? ax_tokenizer_hash(tok) : 0,
                                                  tok, .other = !m->first}));
    return tok ? ax_data_expect_begin(*out, tok, !d->bare && m->first) : AX_OK;
}

static ax_status open_all(const model_data *d, const opened_model *m, const ax_strings *tokens, ax_data **out)
{
    for (int i = 0; i < d->n; i++)
        AX_TRY(open_source(d, m, d->path[i], tokens->items[i], &out[i]));
    return AX_OK;
}

static ax_status with_sources(const model_data *d, opened_model *m, const ax_strings *tokens,
                              ax_status (*use)(const void *args, opened_model *m, ax_data *const *sources),
                              const void *args)
{
    ax_data **sources = NULL;
    ax_status status = ax_calloc((size_t)d->n, sizeof(ax_data *), &sources);
    if (status == AX_OK)
        status = open_all(d, m, tokens, sources);
    status = ax_comm_agree(m->world, status);
    if (status == AX_OK)
        status = use(args, m, sources);
    for (int i = 0; sources && i < d->n; i++)
        ax_data_close(&sources[i]);
    free(sources);
    return status;
}

ax_status model_data_use(const model_data *d, opened_model *m,
                         ax_status (*use)(const void *args, opened_model *m, ax_data *const *sources),
                         const void *args)
{
    char dir[4096] = "";
    ax_strings tokens = {0};
    cli_stop_catch();
    cli_world_wait_for_first(m->world, true);
    ax_status status = ax_comm_agree(m->world, m->first ? prepare(d, m, dir, sizeof dir, &tokens) : AX_OK);
    cli_world_wait_for_first(m->world, false);
    if (status == AX_OK)
        status = share_paths(m, d->n, &tokens);
    if (status == AX_OK) {
        const bool hidden = !m->first && any_hidden(&tokens);
        if (hidden)
            ax_strings_fini(&tokens);
        status = ax_comm_agree(m->world, hidden ? prepare(d, m, dir, sizeof dir, &tokens) : AX_OK);
    }
    if (status == AX_OK)
        status = with_sources(d, m, &tokens, use, args);
    ax_strings_fini(&tokens);
    ax_status removed = *dir ? ax_remove_tree(dir) : AX_OK;
    return status != AX_OK ? status : removed;
}
