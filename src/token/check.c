/* ax_tokenizer_check: encodes and decodes a document, compares the result with the document, and counts
 * tokens. */
#include "token/tok.h"

#include <stdlib.h>
#include <string.h>

void ax_tokenizer_report_fini(ax_tokenizer_report *report)
{
    free(report->used);
    *report = (ax_tokenizer_report){0};
}

static ax_status count_used(const ax_tokenizer *tok, const ax_ids *ids, ax_tokenizer_report *report)
{
    if (!report->used)
        AX_TRY(ax_calloc((size_t)tok->n_ids, sizeof *report->used, &report->used));
    for (size_t i = 0; i < ids->size; i++) {
        report->tokens_used += !report->used[ids->data[i]];
        report->used[ids->data[i]] = 1;
    }
    return AX_OK;
}

/* Appends `text`, which is valid UTF-8, to `out` in the form that it has just before merging: normalized,
 * with spaces added or replaced. */
static ax_status add_prepared(const ax_tokenizer *tok, tok_place place, const char *text, size_t n,
                              ax_buf *out)
{
    ax_buf work[3] = {{0}};
    ax_status status = tok_steps_run(&tok->normalizer, place, &text, &n, work);
    if (status == AX_OK)
        status = tok_set_spaces(tok, place, &text, &n, &work[2]);
    if (status == AX_OK)
        status = ax_buf_add(out, text, n);
    for (size_t i = 0; i < AX_COUNT(work); i++)
        ax_buf_fini(&work[i]);
    return status;
}

/* Appends the text that decoding must return. It is the document as it is just before merging (add_prepared),
 * changed by the steps of the decoder. The characters (as a rule spaces) that decoding removes from the start
 * are left out. */
static ax_status expected_text(const ax_tokenizer *tok, const char *text, size_t n, ax_buf *out)
{
    ax_buf before = {0};
    ax_status status = AX_OK;
    for (size_t at = 0; at < n && status == AX_OK;) {
        size_t valid = tok_utf8_prefix(text + at, n - at);
        status = add_prepared(tok, at ? TOK_CONTINUES : TOK_AT_BEGINNING, text + at, valid, &before);
        at += valid;
        if (at < n && status == AX_OK)
            status = ax_buf_add(&before, text + at++, 1);
    }
    const char *start = before.data;
    size_t size = before.size, space = tok->space ? strlen(tok->space) : 0;
    bool drops = tok->decoder.n && tok->decoder.step[tok->decoder.n - 1].drop_first;
    if (drops && space && size >= space && !memcmp(start, tok->space, space)) {
        start += space;
        size -= space;
    }
    ax_buf work[2] = {{0}};
    if (status == AX_OK)
        status = tok_steps_run(&tok->decoder, TOK_AT_BEGINNING, &start, &size, work);
    for (int strips = tok->strips; strips && size && *start == tok->strip; strips--, size--)
        start++;
    if (status == AX_OK)
        status = ax_buf_add(out, start, size);
    ax_buf_fini(&work[0]);
    ax_buf_fini(&work[1]);
    ax_buf_fini(&before);
    return status;
}

static bool equals(const ax_buf *a, const char *text, size_t n)
{
    return a->size == n && (!n || !memcmp(a->data, text, n));
}

static void record_failure(const ax_buf *back, const ax_buf *expected, ax_tokenizer_report *report)
{
    size_t at = 0;
    while (at < back->size && at < expected->size && back->data[at] == expected->data[at])
        at++;
    if (!report->failed++) {
        report->first_failed = report->documents;
        report->first_failed_byte = (int64_t)at;
    }
}

static ax_status compare(const ax_tokenizer *tok, const ax_ids *ids, const char *text, size_t n, ax_buf *back,
                         ax_buf *expected, ax_tokenizer_report *report)
{
    AX_TRY(count_used(tok, ids, report));
    AX_TRY(ax_decode(tok, ids->data, ids->size, 0, back));
    if (equals(back, text, n))
        return AX_OK;
    AX_TRY(expected_text(tok, text, n, expected));
    if (equals(back, expected->data, expected->size))
        report->normalized++;
    else
        record_failure(back, expected, report);
    return AX_OK;
}

ax_status ax_tokenizer_check(ax_encoder *encoder, const char *text, size_t n, ax_tokenizer_report *report)
{
    const ax_tokenizer *tok = tok_encoder_tokenizer(encoder);
    int64_t invalid = tok_encoder_invalid(encoder), unknown = tok_encoder_unknown(encoder);
    ax_ids ids = {0};
    ax_buf back = {0}, expected = {0};
    ax_status status = ax_encode(encoder, text, n, 0, &ids);
    if (status == AX_OK)
        status = compare(tok, &ids, text, n, &back, &expected, report);
    if (status == AX_OK) {
        report->documents++;
        report->bytes += (int64_t)n;
        report->tokens += (int64_t)ids.size;
        report->invalid_bytes += tok_encoder_invalid(encoder) - invalid;
        report->unknown += tok_encoder_unknown(encoder) - unknown;
    }
    ax_ids_fini(&ids);
    ax_buf_fini(&back);
    ax_buf_fini(&expected);
    return status;
}
