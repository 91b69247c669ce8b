/* Reads the member "decoder" of a tokenizer.json, and turns token ids into text as this decoder says. Most
 * steps of a decoder change each token by itself, so the text of each token is computed when the file is
 * loaded. Only two steps depend on the position in the text: Metaspace omits the space before the first
 * token, and Strip (after Fuse, which joins the tokens) removes a certain character, usually the space, from
 * the start of the text. An ax_decoder remembers whether it is still at the start of the text. */
#include "token/tok.h"

#include <ctype.h>
#include <string.h>

/* ---- reading ---- */

static ax_status parse_byte_level(const char *where, const json_t *part)
{
    const char *type;
    AX_TRY(tok_part_type(where, "decoder", part, &type));
    if (!type || !strcmp(type, "ByteLevel"))
        return AX_OK;
    AX_CHECK(!strcmp(type, "Sequence"), AX_ERR_DATA,
             "%s: decoder %s is not supported beside pre_tokenizer ByteLevel (ByteLevel is)", where, type);
    const json_t *members, *member;
    size_t i;
    AX_TRY(tok_sequence_members(where, "decoder", part, "decoders", &members));
    json_array_foreach(members, i, member) AX_TRY(parse_byte_level(where, member));
    return AX_OK;
}

static ax_status parse_strip(const char *where, const json_t *part, ax_tokenizer *tok)
{
    const char *content = json_string_value(json_object_get(part, "content"));
    json_int_t start = json_integer_value(json_object_get(part, "start"));
    json_int_t stop = json_integer_value(json_object_get(part, "stop"));
    AX_CHECK(content && (unsigned char)content[0] - 1 < 127 && !content[1], AX_ERR_DATA,
             "%s: decoder Strip.content is not one ASCII character", where);
    AX_CHECK(start >= 0 && start <= INT32_MAX && !stop, AX_ERR_DATA,
             "%s: decoder Strip has start %lld and stop %lld: start must not be negative, and stop must be 0",
             where, (long long)start, (long long)stop);
    AX_CHECK(!tok->strips, AX_ERR_DATA, "%s: decoder has two Strips; only one is supported", where);
    tok->strip = *content;
    tok->strips = (int)start;
    return AX_OK;
}

static ax_status parse_metaspace(const char *where, const json_t *part, ax_tokenizer *tok)
{
    const char *space;
    tok_prefix prefix;
    AX_TRY(tok_parse_metaspace(where, "decoder", part, &space, &prefix));
    AX_TRY(tok_add_step(where, "decoder", 0, space, " ", &tok->decoder));
    tok->decoder.step[tok->decoder.n - 1].drop_first = prefix != TOK_PREFIX_NEVER;
    return AX_OK;
}

/* Reads the decoder of a tokenizer whose token names are text (not byte-level). *fused: a step Fuse came
 * earlier, so later steps work on the whole text, not on single tokens. */
static ax_status parse_text(const char *where, const json_t *part, ax_tokenizer *tok, bool *fused)
{
    const char *type;
    AX_TRY(tok_part_type(where, "decoder", part, &type));
    AX_CHECK(type, AX_ERR_DATA,
             "%s: decoder is missing, and so is pre_tokenizer ByteLevel: one of them must say how tokens "
             "become text",
             where);
    AX_CHECK(strcmp(type, "ByteLevel"), AX_ERR_DATA,
             "%s: decoder ByteLevel is not supported without pre_tokenizer ByteLevel", where);
    if (!strcmp(type, "Sequence")) {
        const json_t *members, *member;
        size_t i;
        AX_TRY(tok_sequence_members(where, "decoder", part, "decoders", &members));
        json_array_foreach(members, i, member) AX_TRY(parse_text(where, member, tok, fused));
        return AX_OK;
    }
    bool fuse = !strcmp(type, "Fuse"), strip = !strcmp(type, "Strip");
    AX_CHECK(fuse || *fused == strip, AX_ERR_DATA, "%s: decoder %s %s Fuse is not supported", where, type,
             *fused ? "after" : "before");
    *fused |= fuse;
    if (strip)
        return parse_strip(where, part, tok);
    if (!strcmp(type, "Replace"))
        return tok_add_replace(where, "decoder", part, &tok->decoder);
    if (!strcmp(type, "Metaspace"))
        return parse_metaspace(where, part, tok);
    tok->decode_bytes |= !strcmp(type, "ByteFallback");
    AX_CHECK(fuse || !strcmp(type, "ByteFallback"), AX_ERR_DATA,
             "%s: decoder %s is not supported (ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace are)",
             where, type);
    return AX_OK;
}

ax_status tok_parse_decoder(const char *where, const json_t *part, ax_tokenizer *tok)
{
    bool fused = false;
    return tok->byte_level ? parse_byte_level(where, part) : parse_text(where, part, tok, &fused);
}

/* ---- the text of one token ---- */

/* Returns true if the text is the name of a byte, such as "<0x0A>", and sets *byte to that byte. */
static bool is_byte_name(const char *text, size_t n, char *byte)
{
    static const char digits[] = "0123456789abcdef";
    if (n != 6 || memcmp(text, "<0x", 3) || text[5] != '>' || !isxdigit((unsigned char)text[3]) ||
        !isxdigit((unsigned char)text[4]))
        return false;
    *byte = (char)((strchr(digits, tolower((unsigned char)text[3])) - digits) * 16 +
                   (strchr(digits, tolower((unsigned char)text[4])) - digits));
    return true;
}

ax_status tok_name_text(const ax_tokenizer *tok, const char *name, size_t n, bool first, ax_buf *out)
{
    ax_buf work[2] = {{0}};
    ax_status status = AX_OK;
    for (int i = 0; i < tok->decoder.n && n && status == AX_OK; i++) {
        const tok_step *step = &tok->decoder.step[i];
        ax_buf *changed = &work[i % 2];
        changed->size = 0;
        status = tok_replace(step->find, first && step->drop_first ? "" : step->put, name, n, changed);
        name = changed->data;
        n = changed->size;
    }
    char byte;
    if (status == AX_OK)
        status = tok->decode_bytes && is_byte_name(name, n, &byte) ? ax_buf_add(out, &byte, 1)
                                                                   : ax_buf_add(out, name, n);
    ax_buf_fini(&work[0]);
    ax_buf_fini(&work[1]);
    return status;
}

/* ---- decoding ---- */

void ax_decoder_init(ax_decoder *decoder, const ax_tokenizer *tok, unsigned flags)
{
    bool starts = tok && !(flags & AX_DECODE_CONTINUE);
    *decoder =
        (ax_decoder){.tok = tok, .flags = flags, .at_first = starts, .strips = starts ? tok->strips : 0};
}

static ax_status add_token(ax_decoder *d, int32_t id, size_t position, ax_buf *out)
{
    const ax_tokenizer *tok = d->tok;
    AX_CHECK(id >= 0 && id < tok->n_ids && tok->pieces[id].name_size, AX_ERR_DATA,
             "token %d (at position %zu) is not in the vocabulary of %d: is it an id of another tokenizer?",
             id, position, tok->n_ids);
    const tok_piece *piece = &tok->pieces[id];
    if ((d->flags & AX_DECODE_SKIP_SPECIAL) && piece->special)
        return AX_OK;
    const char *text = tok->bytes.data + (d->at_first ? piece->first : piece->text);
    size_t n = d->at_first ? piece->first_size : piece->text_size;
    d->at_first = false;
    for (; d->strips && n && *text == tok->strip; d->strips--, n--)
        text++;
    if (n)
        d->strips = 0;
    return ax_buf_add(out, text, n);
}

ax_status ax_decode(const ax_tokenizer *tok, const int32_t *ids, size_t n, unsigned flags, ax_buf *out)
{
    ax_decoder decoder;
    ax_decoder_init(&decoder, tok, flags);
    for (size_t i = 0; i < n; i++)
        AX_TRY(add_token(&decoder, ids[i], i, out));
    return AX_OK;
}

/* Returns how many bytes at the end of the text may be the start of a UTF-8 sequence that is not complete. */
static size_t incomplete_suffix(const char *text, size_t n)
{
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        const char *p = text + n - back;
        unsigned char lead = (unsigned char)*p;
        if (lead < 0x80)
            return 0;
        if (lead < 0xC0)
            continue;
        size_t len = lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
        if (back >= len)
            return 0;
        /* The sequence can still become valid if it is valid with the lowest or with the highest continuation
         * bytes in place of those that are missing. */
        char least[4], most[4];
        memcpy(least, p, back);
        memcpy(most, p, back);
        memset(least + back, 0x80, sizeof least - back);
        memset(most + back, 0xBF, sizeof most - back);
        return tok_utf8_prefix(least, len) == len || tok_utf8_prefix(most, len) == len ? back : 0;
    }
    return 0;
}

ax_status ax_decoder_push(ax_decoder *decoder, int32_t id, ax_buf *out)
{
    AX_TRY(ax_buf_add(out, decoder->held, decoder->n_held));
    size_t start = out->size - decoder->n_held;
    ax_status status = add_token(decoder, id, 0, out);
    if (status != AX_OK) {
        out->size = start; /* the bytes of the incomplete sequence stay in decoder->held */
        return status;
    }
    decoder->n_held = incomplete_suffix(out->data + start, out->size - start);
    out->size -= decoder->n_held;
    memcpy(decoder->held, out->data + out->size, decoder->n_held);
    if (out->data)
        out->data[out->size] = 0;
    return AX_OK;
}

ax_status ax_decoder_finish(ax_decoder *decoder, ax_buf *out)
{
    AX_TRY(ax_buf_add(out, decoder->held, decoder->n_held));
    ax_decoder_init(decoder, decoder->tok, decoder->flags);
    return AX_OK;
}
