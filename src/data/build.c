/* ax_data_build: tokenizes a corpus into packed token files with several threads. Documents keep their order.
 *
 * Units of work (a file, or some lines of a JSONL file; corpus.h) are numbered in the order in which workers
 * get them. A worker encodes its unit into slot `number % SLOTS` of a ring buffer. A worker writes the oldest
 * unit in flight to the files once that unit is encoded, so units are written in order, and the files do not
 * depend on the number of threads. Memory is bounded: a unit is handed out only if a slot is free and the
 * units in flight (handed out and not yet written), this unit included, hold at most IN_FLIGHT_BYTES of text.
 * A unit that alone is larger is handed out when no other unit is in flight. */
#include "corpus.h"
#include "hash_set.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <xxhash.h>

enum { SLOTS = 64, IN_FLIGHT_BYTES = 64 << 20, KEEP_IDS = 1 << 16 };

/* One encoded document of a slot. Its token ids are slot.ids[b ... end-1]; b is the `end` of the previous
 * document in the slot, or 0 for the first one. */
typedef struct built_document {
    size_t end;
    int64_t text_bytes;
    uint64_t hash; /* hash of the document's text */
    bool masked;   /* the document is a conversation: slot.is_target has a byte for each of its ids */
    bool plain;    /* the conversation was written without a template */
} built_document;

typedef struct slot {
    bool done;
    ax_status status;
    char *message; /* message of a failure */
    corpus_omitted omitted;
    corpus_unit unit;
    ax_ids ids;
    ax_buf is_target; /* for each id of the documents that are conversations: 1 if the token is a target, else
                         0 */
    ax_buf documents; /* array of built_document */
} slot;

typedef struct build {
    const ax_data_build_options *options;
    ax_corpus *corpus;
    ax_token_writer *train, *valid; /* valid: NULL if options->valid_fraction is 0 */
    int64_t counts[2];              /* number of documents written to `train` and to `valid` */
    hash_set seen;         /* only with the option `dedup`: hashes of the texts of documents written so far */
    int64_t conversations; /* number of conversations written */
    int64_t texts;         /* number of documents of plain text written */
    bool noted[2];         /* a conversation was written by a template; a plain one was written */
    int64_t copies;        /* number of documents left out because `seen` contains their text's hash */
    pthread_mutex_t lock;  /* guards the fields below, except a slot that a worker is filling or writing, and
                              the fields that only the writing worker uses (see `writing`) */
    pthread_cond_t changed;
    atomic_bool failing; /* corpus_is_failing: documents are neither encoded nor written any more */
    corpus_unit next;
    bool more;               /* `next` holds a unit that no worker has got yet */
    int64_t issued, written; /* number of units handed out to workers, number of units written */
    int64_t bytes_in_flight;
    bool writing;     /* a worker is writing a slot: only this worker uses the token writers, the members from
                         `counts` to `copies`, `progress` and `told` */
    ax_status status; /* the first failure in the corpus's order, which stops the build */
    char *message;
    ax_data_progress progress;
    double started, told; /* times (ax_now) of the start, and of the last call of options->progress */
    slot slots[SLOTS];
} build;

typedef struct worker {
    build *b;
    ax_encoder *encoder;
    ax_buf scratch;
    slot *slot; /* the slot that is being filled */
} worker;

/* Returns true if a document goes to the validation part: if its hash, as a uniform number in [0, 1), is
 * below `fraction`. So the choice depends on the document's text alone, not on its place in the corpus. */
static bool falls_to_validation(const built_document *document, double fraction)
{
    return (double)(document->hash >> 11) * 0x1p-53 < fraction;
}

/* Encodes a document of plain text as transformers does, which puts the special tokens of post_processor
 * around it. If the last of these is the end-of-text token, it is left to the token writer, which appends
 * this token to each document. */
static ax_status encode_plain(worker *w, const char *text, size_t bytes, ax_ids *ids)
{
    const ax_data_build_options *o = w->b->options;
    const ax_ids *after = ax_tokenizer_after(o->tokenizer);
    if (o->bare)
        return ax_encode(w->encoder, text, bytes, 0, ids);
    AX_TRY(ax_encode(w->encoder, text, bytes, AX_ENCODE_ADD_SPECIAL, ids));
    if (after->size && after->data[after->size - 1] == ax_tokenizer_eos(o->tokenizer))
        ids->size--;
    return AX_OK;
}

/* Encodes a conversation. Before plain turns stand the tokens that stand before a text; after them the text
 * itself has the end-of-text token. */
static ax_status encode_chat(worker *w, ax_chat_text *chat, slot *s)
{
    const ax_data_build_options *o = w->b->options;
    const ax_ids *before = ax_tokenizer_before(o->tokenizer);
    if (chat->plain && !o->bare) {
        AX_TRY(ax_ids_add(&s->ids, before->data, before->size));
        for (size_t i = 0; i < before->size; i++)
            AX_TRY(ax_buf_add(&s->is_target, "", 1));
    }
    return ax_chat_encode(w->encoder, chat, &s->ids, &s->is_target);
}

static ax_status encode_document(void *user, const char *text, size_t bytes, ax_chat_text *chat)
{
    worker *w = user;
    slot *s = w->slot;
    if (w->b->failing)
        return AX_OK;
    ax_status status = chat ? encode_chat(w, chat, s) : encode_plain(w, text, bytes, &s->ids);
    if (status != AX_OK)
        ax_error_context("%s", ax_corpus_path(w->b->corpus, s->unit.file));
    AX_TRY(status);
    built_document document = {s->ids.size, (int64_t)bytes, XXH3_64bits(text, bytes), chat != NULL,
                               chat && chat->plain};
    return ax_buf_add(&s->documents, &document, sizeof document);
}

static void fill_slot(worker *w, slot *s)
{
    w->slot = s;
    s->ids.size = s->is_target.size = s->documents.size = 0;
    s->status = corpus_read_unit(w->b->corpus, &s->unit, &w->scratch, encode_document, w, &s->omitted);
    if (s->status == AX_OK)
        return;
    if (ax_strdup(ax_error_message(), &s->message) != AX_OK)
        s->message = NULL;
}

/* ---- writing in order ---------------------------------------------------------------------------- */

/* Counts a conversation that is to be written. At the first one that a template wrote, logs the template and
 * gives its name to the token files; at the first one that none wrote, logs that. */
static void note_template(build *b, bool plain)
{
    const ax_chat *chat = b->corpus->chat;
    const char *origin = ax_chat_origin(chat);
    ax_token_writer *writers[] = {b->train, b->valid};
    b->conversations++;
    if (b->noted[plain])
        return;
    b->noted[plain] = true;
    if (plain)
        ax_log(AX_LOG_INFO,
               "strings \"prompt\" and \"completion\" are joined as plain text, without a template");
    else
        ax_log(AX_LOG_INFO, "conversations are written by template %s%s%s", ax_chat_name(chat),
               origin ? ", " : "", origin ? origin : "");
    for (size_t i = 0; i < AX_COUNT(writers) && !plain; i++)
        if (writers[i])
            ax_token_writer_set_template(writers[i], ax_chat_name(chat));
}

bool data_frames(const ax_data_build_options *o)
{
    return !o->bare && (ax_tokenizer_before(o->tokenizer)->size || ax_tokenizer_after(o->tokenizer)->size);
}

static ax_status print_names(const ax_tokenizer *tok, const ax_ids *ids, const char *verb, ax_buf *out)
{
    for (size_t i = 0; i < ids->size; i++) {
        size_t n = 0;
        const char *name = ax_tokenizer_piece(tok, ids->data[i], &n);
        AX_TRY(
            ax_buf_printf(out, "%s %.*s (%d)", i ? "" : verb, (int)n, name ? name : "", (int)ids->data[i]));
    }
    return AX_OK;
}

/* Counts a document of plain text that is to be written; at the first one, logs the special tokens that such
 * documents get. */
static ax_status log_frame(build *b)
{
    const ax_tokenizer *tok = b->options->tokenizer;
    const ax_ids *before = ax_tokenizer_before(tok), *after = ax_tokenizer_after(tok);
    if (b->texts++ || !data_frames(b->options))
        return AX_OK;
    ax_buf text = {0};
    ax_status status = print_names(tok, before, " begins with", &text);
    if (status == AX_OK)
        status = print_names(tok, after, before->size ? " and ends with" : " ends with", &text);
    if (status == AX_OK)
        ax_log(AX_LOG_INFO,
               "each text%s, as the tokenizer's post_processor says (--no-bos and data.bos: false leave that "
               "out)",
               text.data);
    ax_buf_fini(&text);
    return status;
}

/* Writes a document to the training or the validation file; with `dedup`, leaves out copies of earlier
 * documents. `is_target` is read only for conversations. */
static ax_status write_document(build *b, const built_document *d, const int32_t *ids,
                                const uint8_t *is_target, int64_t n)
{
    bool valid = falls_to_validation(d, b->options->valid_fraction), fresh = true;
    if (b->options->dedup)
        AX_TRY(hash_set_add(&b->seen, d->hash, &fresh));
    if (!fresh) {
        b->copies++;
        return AX_OK;
    }
    ax_token_writer *to = valid ? b->valid : b->train;
    if (d->masked)
        note_template(b, d->plain);
    else
        AX_TRY(log_frame(b));
    AX_TRY(d->masked ? ax_token_writer_add_masked(to, ids, is_target, n, d->text_bytes)
                     : ax_token_writer_add(to, ids, n, d->text_bytes));
    b->counts[valid]++;
    b->progress.tokens += n;
    b->progress.documents++;
    return AX_OK;
}

static ax_status write_documents(build *b, const slot *s)
{
    const built_document *documents = (const void *)s->documents.data;
    const uint8_t *is_target = (const uint8_t *)s->is_target.data;
    size_t n = s->documents.size / sizeof *documents, begin = 0;
    for (size_t i = 0; i < n; i++) {
        const built_document *d = &documents[i];
        AX_TRY(write_document(b, d, s->ids.data + begin, is_target, (int64_t)(d->end - begin)));
        if (d->masked)
            is_target += d->end - begin;
        begin = d->end;
    }
    return AX_OK;
}

static bool report_progress(build *b, bool always)
{
    double now = ax_now();
    if (!b->options->progress || (!always && now - b->told < 0.1))
        return true;
    ax_data_progress told = b->progress;
    told.seconds = now - b->started;
    b->told = now;
    return b->options->progress(b->options->user, &told);
}

static ax_status write_slot(build *b, slot *s)
{
    if (s->status != AX_OK)
        return ax_fail(s->status, "%s",
                       s->message ? s->message
                                  : "tokenizing failed, and there is not enough memory for the reason");
    AX_TRY(corpus_note(b->corpus, &s->unit, &s->omitted));
    b->failing = corpus_is_failing(b->corpus);
    if (!b->failing)
        AX_TRY(write_documents(b, s));
    b->progress.bytes_done += s->unit.share;
    if (s->ids.capacity > KEEP_IDS) /* frees memory that grew for an unusually large document */
        ax_ids_fini(&s->ids);
    if (s->is_target.capacity > KEEP_IDS)
        ax_buf_fini(&s->is_target);
    if (s->documents.capacity > KEEP_IDS)
        ax_buf_fini(&s->documents);
    return report_progress(b, false) ? AX_OK : ax_fail(AX_ERR_SIGNAL, "building the token files was stopped");
}

/* Unless another worker is writing, writes slots in the order of their units, until it reaches a unit that is
 * not encoded yet. The caller holds b->lock; the function releases b->lock while it writes. */
static void write_ready(build *b)
{
    while (!b->writing && b->status == AX_OK && b->slots[b->written % SLOTS].done) {
        slot *s = &b->slots[b->written % SLOTS];
        b->writing = true;
        pthread_mutex_unlock(&b->lock);
        ax_status status = write_slot(b, s);
        pthread_mutex_lock(&b->lock);
        b->writing = false;
        if (status != AX_OK) {
            b->status = status;
            if (ax_strdup(ax_error_message(), &b->message) != AX_OK)
                b->message = NULL;
        }
        s->done = false;
        b->bytes_in_flight -= s->unit.to - s->unit.from;
        b->written++;
        pthread_cond_broadcast(&b->changed);
    }
}

/* ---- workers ------------------------------------------------------------------------------------- */

/* Waits until the next unit may be handed out, and returns the slot that holds it; NULL: there are no more
 * units, or the build has failed. The caller holds b->lock. */
static slot *take_unit(build *b)
{
    while (b->more && b->status == AX_OK) {
        int64_t bytes = b->next.to - b->next.from;
        if (b->issued - b->written < SLOTS &&
            (!b->bytes_in_flight || b->bytes_in_flight + bytes <= IN_FLIGHT_BYTES)) {
            slot *s = &b->slots[b->issued++ % SLOTS];
            s->unit = b->next;
            b->bytes_in_flight += bytes;
            b->more = corpus_next_unit(b->corpus, &b->next);
            return s;
        }
        pthread_cond_wait(&b->changed, &b->lock);
    }
    return NULL;
}

static void *work(void *arg)
{
    worker *w = arg;
    build *b = w->b;
    slot *s;
    pthread_mutex_lock(&b->lock);
    while ((s = take_unit(b))) {
        pthread_mutex_unlock(&b->lock);
        fill_slot(w, s);
        pthread_mutex_lock(&b->lock);
        s->done = true;
        write_ready(b);
    }
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

/* Runs the workers until all units are written or the build fails. Worker 0 is the calling thread, so the
 * build works even if no thread can be started. */
static ax_status run_workers(build *b)
{
    int n = b->options->threads > 0 ? b->options->threads : ax_processors(), started = 1;
    worker *workers;
    pthread_t *threads;
    AX_TRY(ax_calloc((size_t)n, sizeof *workers, &workers));
    ax_status status = ax_calloc((size_t)n, sizeof *threads, &threads);
    for (int i = 0; i < n && status == AX_OK; i++) {
        workers[i].b = b;
        status = ax_encoder_create(b->options->tokenizer, &workers[i].encoder);
    }
    if (status == AX_OK) {
        while (started < n && !ax_thread_start(&threads[started], work, &workers[started]))
            started++;
        work(&workers[0]);
        for (int i = 1; i < started; i++)
            pthread_join(threads[i], NULL);
        if (b->status != AX_OK)
            status = ax_fail(b->status, "%s",
                             b->message ? b->message
                                        : "tokenizing failed, and there is not enough memory for the reason");
    }
    for (int i = 0; i < n; i++) {
        ax_encoder_destroy(&workers[i].encoder);
        ax_buf_fini(&workers[i].scratch);
    }
    free(workers);
    free(threads);
    return status;
}

/* ---- the whole ----------------------------------------------------------------------------------- */

/* Fails if the output path is a file that is an input, or that is neither empty nor a packed token file: a
 * mistaken path must not destroy such a file. A token file at the output path is never an input, even if it
 * lies below an input directory: the corpus leaves it out because it is not text. */
static ax_status check_output(const ax_corpus *corpus, const char *output)
{
    struct stat out, in;
    ax_data_format format;
    if (stat(output, &out) || !S_ISREG(out.st_mode) ||
        (ax_data_detect(output, &format) == AX_OK && format == AX_DATA_TOK))
        return AX_OK;
    for (int64_t i = 0; i < corpus->n; i++) {
        const corpus_file *file = &corpus->files[i];
        if (file->bytes == out.st_size && !stat(file->path, &in) && in.st_dev == out.st_dev &&
            in.st_ino == out.st_ino)
            return ax_fail(AX_ERR_USAGE, "%s is an input and an output: write to another file", output);
    }
    AX_CHECK(
        !out.st_size, AX_ERR_USAGE,
        "%s exists and is not a token file of axonn, so it is not overwritten: write to another file, or "
        "remove it first",
        output);
    return AX_OK;
}

static ax_status check_outputs(const ax_data_build_options *o, const ax_corpus *corpus)
{
    AX_CHECK(!o->valid_output || !ax_path_same(o->output, o->valid_output), AX_ERR_USAGE,
             "training and validation part would go to the same file, %s: write them to two files",
             o->output);
    AX_TRY(check_output(corpus, o->output));
    return o->valid_output ? check_output(corpus, o->valid_output) : AX_OK;
}

static ax_status open_writers(build *b)
{
    const ax_data_build_options *o = b->options;
    int64_t vocab = ax_tokenizer_vocab_size(o->tokenizer);
    int32_t end = ax_tokenizer_eos(o->tokenizer);
    uint64_t hash = ax_tokenizer_hash(o->tokenizer);
    AX_TRY(ax_token_writer_create(o->output, vocab, end, hash, &b->train));
    if (o->valid_fraction > 0)
        AX_TRY(ax_token_writer_create(o->valid_output, vocab, end, hash, &b->valid));
    return AX_OK;
}

static ax_status finish_writers(build *b, ax_data_build_report *report)
{
    AX_TRY(corpus_finish(b->corpus, b->counts[0] + b->counts[1]));
    AX_CHECK(b->counts[0] && (b->counts[1] || !b->valid), AX_ERR_DATA,
             "the validation fraction %g of %lld documents leaves no document for %s: give more documents, "
             "another fraction, or a separate validation file",
             b->options->valid_fraction, (long long)(b->counts[0] + b->counts[1]),
             b->counts[0] ? "validation" : "training");
    if (b->valid)
        AX_TRY(ax_token_writer_finish(&b->valid, &report->valid));
    return ax_token_writer_finish(&b->train, &report->train);
}

static ax_status build_with(build *b, ax_data_build_report *report)
{
    AX_TRY(open_writers(b));
    b->progress.bytes_total = b->corpus->bytes;
    b->started = ax_now();
    b->told = b->started - 1; /* so that the first unit is reported at once */
    b->more = corpus_next_unit(b->corpus, &b->next);
    AX_TRY(run_workers(b));
    AX_TRY(finish_writers(b, report));
    report->files = ax_corpus_files(b->corpus);
    report->skipped = b->corpus->skipped;
    report->copies = b->copies;
    report->bad_lines = ax_corpus_bad_lines(b->corpus);
    report->conversations = b->conversations;
    report->unanswered = b->corpus->unanswered;
    report->framed = b->texts && data_frames(b->options);
    report_progress(b, true);
    return AX_OK;
}

static void build_destroy(build *b)
{
    ax_token_writer_abandon(&b->train);
    ax_token_writer_abandon(&b->valid);
    ax_corpus_destroy(&b->corpus);
    hash_set_fini(&b->seen);
    if (b->more)
        corpus_unit_fini(&b->next);
    for (int i = 0; i < SLOTS; i++) {
        ax_ids_fini(&b->slots[i].ids);
        ax_buf_fini(&b->slots[i].is_target);
        ax_buf_fini(&b->slots[i].documents);
        corpus_unit_fini(&b->slots[i].unit);
        free(b->slots[i].message);
    }
    pthread_mutex_destroy(&b->lock);
    pthread_cond_destroy(&b->changed);
    free(b->message);
    free(b);
}

static ax_status check_options(const ax_data_build_options *options)
{
    AX_CHECK(options->tokenizer && options->output, AX_ERR_USAGE,
             "ax_data_build: the options need a tokenizer and an output");
    AX_CHECK(
        options->valid_fraction >= 0 && options->valid_fraction < 1 &&
            !options->valid_output == !options->valid_fraction,
        AX_ERR_USAGE,
        "a validation split needs a fraction above 0 and below 1 (it is %g) and an output file (it is %s)",
        options->valid_fraction, options->valid_output ? options->valid_output : "none");
    return AX_OK;
}

ax_status corpus_build(const ax_data_build_options *options, ax_corpus *corpus, ax_data_build_report *report)
{
    ax_data_build_report unused;
    build *b;
    ax_status status = ax_calloc(1, sizeof *b, &b);
    if (status != AX_OK) {
        ax_corpus_destroy(&corpus);
        return status;
    }
    b->options = options;
    b->corpus = corpus;
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->changed, NULL);
    report = report ? report : &unused;
    *report = (ax_data_build_report){0};
    status = build_with(b, report);
    build_destroy(b);
    return status;
}

ax_status ax_data_build(const ax_data_build_options *options, ax_data_build_report *report)
{
    ax_corpus *corpus;
    AX_TRY(check_options(options));
    AX_TRY(corpus_create(&options->corpus, options->progress, options->user, &corpus));
    ax_status status = check_outputs(options, corpus);
    if (status == AX_OK)
        return corpus_build(options, corpus, report);
    ax_corpus_destroy(&corpus);
    return status;
}
