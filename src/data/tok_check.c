/* The round trip of a document: encodes and decodes it, compares the result, and counts tokens. */
#include "data/tok.h"

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

/* Appends the text that decoding must return: the prefix space, if the tokenizer adds one, and the document,
 * normalized between the bytes that are not valid UTF-8. */
static ax_status expected_text(const ax_tokenizer *tok, const char *text, size_t n, ax_buf *out)
{
    if (tok->prefix_space && n && text[0] != ' ')
        AX_TRY(ax_buf_add(out, " ", 1));
    for (size_t at = 0; at < n;) {
        size_t valid = tok_utf8_prefix(text + at, n - at);
        AX_TRY(tok_normalize(tok->form, text + at, valid, out));
        at += valid;
        if (at < n)
            AX_TRY(ax_buf_add(out, text + at++, 1));
    }
    return AX_OK;
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
