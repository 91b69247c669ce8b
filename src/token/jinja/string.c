/* Strings that know where each of their bytes came from. */
#include "token/jinja/inner.h"
#include "token/tok.h"

#include <string.h>
#include <utf8proc.h>

int32_t from_both(int32_t a, int32_t b)
{
    return a == b || b == AX_JINJA_TEMPLATE ? a : a == AX_JINJA_TEMPLATE ? b : AX_JINJA_OTHER;
}

int32_t js_from(const jstr *s)
{
    int32_t from = s->from;
    for (size_t i = 0; s->mixed && i < s->n_runs; i++)
        from = i ? from_both(from, s->runs[i].from) : s->runs[i].from;
    return s->mixed && !s->n_runs ? AX_JINJA_OTHER : from;
}

/* ---- ropes ----------------------------------------------------------------------------------------- */

typedef struct filling {
    char *data;
    size_t n, n_runs, capacity;
    jrun *runs;
} filling;

static void add_run(jx *e, filling *f, size_t n, int32_t from)
{
    f->n += n;
    if (f->n_runs && f->runs[f->n_runs - 1].from == from) {
        f->runs[f->n_runs - 1].end = f->n;
        return;
    }
    f->runs = jx_grow(e, f->runs, f->n_runs, &f->capacity, sizeof *f->runs);
    f->runs[f->n_runs++] = (jrun){f->n, from};
}

static void fill(jx *e, jstr *s, filling *f)
{
    if (!s->data) {
        size_t depth = 0;
        jstr *first = s;
        for (; !first->data; first = first->left)
            depth++;
        jstr **right = jx_alloc(e, depth * sizeof *right);
        jx_charge(e, depth * sizeof *right);
        for (size_t i = depth; !s->data; s = s->left)
            right[--i] = s->right;
        fill(e, first, f);
        for (size_t i = 0; i < depth; i++)
            fill(e, right[i], f);
        return;
    }
    memcpy(f->data + f->n, s->data, s->n);
    if (!s->mixed) {
        add_run(e, f, s->n, s->from);
        return;
    }
    for (size_t i = 0, begin = 0; i < s->n_runs; begin = s->runs[i++].end)
        add_run(e, f, s->runs[i].end - begin, s->runs[i].from);
}

const char *js_data(jx *e, jstr *s)
{
    if (s->data)
        return s->data;
    filling f = {.data = jx_room(e, s->n + 1)};
    e->lasting += s->born < e->since;
    jx_charge(e, s->n);
    fill(e, s, &f);
    f.data[s->n] = 0;
    s->left = s->right = NULL;
    s->depth = 0;
    s->data = f.data;
    s->mixed = f.n_runs > 1;
    s->from = f.n_runs ? f.runs[0].from : AX_JINJA_TEMPLATE;
    s->runs = f.runs;
    s->n_runs = f.n_runs;
    return s->data;
}

jstr *js_cat(jx *e, jstr *a, jstr *b)
{
    enum { DEPTH = 16 };
    if (!a->n || !b->n)
        return a->n ? a : b;
    if (a->n + b->n > e->most_text)
        jx_fail_own(e, "the template writes more text than the size of the conversation allows (%zu MiB)",
                    e->most_text >> 20);
    if (b->depth == DEPTH)
        js_data(e, b);
    jstr *s = jx_alloc(e, sizeof *s);
    s->n = a->n + b->n;
    s->left = a;
    s->right = b;
    s->depth = (int)ax_max(a->depth, b->depth + 1);
    s->mixed = a->mixed || b->mixed || a->from != b->from;
    s->from = a->from;
    s->born = e->now_born;
    return s;
}

/* ---- parts ------------------------------------------------------------------------------------------ */

jstr *js_sub(jx *e, jstr *s, size_t at, size_t n)
{
    const char *data = js_data(e, s);
    if (n == s->n)
        return s;
    jstr *part = js_new(e, data + at, n, s->from);
    if (!s->mixed)
        return part;
    filling f = {0};
    for (size_t i = 0, begin = 0; i < s->n_runs && begin < at + n; begin = s->runs[i++].end) {
        const size_t first = begin > at ? begin : at,
                     last = s->runs[i].end < at + n ? s->runs[i].end : at + n;
        if (first < last)
            add_run(e, &f, last - first, s->runs[i].from);
    }
    jx_charge(e, s->n_runs * sizeof *s->runs);
    part->mixed = f.n_runs > 1;
    part->from = f.n_runs ? f.runs[0].from : AX_JINJA_TEMPLATE;
    part->runs = f.runs;
    part->n_runs = f.n_runs;
    return part;
}

bool js_is(jx *e, jstr *s, const char *text)
{
    return s->n == strlen(text) && !memcmp(js_data(e, s), text, s->n);
}

int js_compare(jx *e, jstr *a, jstr *b)
{
    const size_t n = a->n < b->n ? a->n : b->n;
    const int order = n ? memcmp(js_data(e, a), js_data(e, b), n) : 0;
    jx_charge(e, n);
    return order ? order : (a->n > b->n) - (a->n < b->n);
}

size_t js_length(jx *e, jstr *s)
{
    const uint64_t ones = UINT64_C(0x0101010101010101);
    const char *data = js_data(e, s);
    size_t n = s->n, i = 0;
    for (uint64_t x; i + sizeof x <= s->n; i += sizeof x) {
        memcpy(&x, data + i, sizeof x);
        n -= ((x >> 7 & ~(x >> 6) & ones) * ones) >> 56; /* bytes 10xxxxxx begin no character */
    }
    for (; i < s->n; i++)
        n -= (data[i] & 0xc0) == 0x80;
    jx_charge(e, s->n);
    return n;
}

size_t js_offset(jx *e, jstr *s, size_t n)
{
    const char *data = js_data(e, s);
    size_t at = 0;
    for (; at < s->n && n; n--)
        at += tok_utf8_size((unsigned char)data[at]);
    jx_charge(e, at);
    return at;
}

size_t js_find(jx *e, jstr *s, jstr *find, size_t at)
{
    if (at > s->n)
        return SIZE_MAX;
    if (!find->n)
        return at;
    const char *data = js_data(e, s), *text = js_data(e, find);
    const char *found = memchr(data + at, text[0], s->n - at); /* quicker than memmem, and often all */
    if (found)
        found = memmem(found, s->n - (size_t)(found - data), text, find->n);
    const size_t end = found ? (size_t)(found - data) : s->n;
    jx_charge(e, 8 * (end - at) + (find->n < s->n ? find->n : 0));
    return found ? end : SIZE_MAX;
}

/* Returns the length of the white space, or of the character of `set`, at the start of a text; 0: none. */
static size_t strip_one(jx *e, const char *text, size_t n, jstr *set, bool right)
{
    const char end = right ? text[n - 1] : text[0];
    if (!set)
        return end >= 0x1c && end <= 0x1f ? 1 : right ? tok_space_suffix(text, n) : tok_space_prefix(text, n);
    size_t at = 0, length;
    if (right)
        for (at = n - 1; at && (text[at] & 0xc0) == 0x80;)
            at--;
    length = right ? n - at : tok_utf8_size((unsigned char)text[0]);
    jx_charge(e, set->n);
    return memmem(js_data(e, set), set->n, text + at, length) ? length : 0;
}

jstr *js_strip(jx *e, jstr *s, jstr *set, bool left, bool right)
{
    const char *data = js_data(e, s);
    size_t begin = 0, end = s->n;
    for (size_t n = 1; left && begin < end && n; begin += n)
        n = strip_one(e, data + begin, end - begin, set, false);
    for (size_t n = 1; right && begin < end && n; end -= n)
        n = strip_one(e, data + begin, end - begin, set, true);
    jx_charge(e, s->n - (end - begin));
    return js_sub(e, s, begin, end - begin);
}

jstr *js_replace(jx *e, jstr *s, jstr *old, jstr *new, int64_t most)
{
    jstr *out = js_text(e, "");
    size_t begin = 0;
    for (int64_t i = 0; most < 0 || i < most; i++) {
        size_t at = js_find(e, s, old, old->n || !i ? begin : begin + 1);
        if (!old->n && i) /* the empty string stands before each character and at the end */
            at = begin < s->n ? begin + tok_utf8_size((unsigned char)js_data(e, s)[begin]) : SIZE_MAX;
        if (at == SIZE_MAX)
            break;
        out = js_cat(e, js_cat(e, out, js_sub(e, s, begin, at - begin)), new);
        begin = at + old->n;
        jx_charge(e, 0);
    }
    return js_cat(e, out, js_sub(e, s, begin, s->n - begin));
}

static uint32_t changed(uint32_t c, char how, bool first)
{
    const bool up = how == 'u' || (how == 's' && utf8proc_islower((utf8proc_int32_t)c));
    const bool title = how != 'u' && how != 'l' && how != 's' && first;
    return (uint32_t)(up      ? utf8proc_toupper((utf8proc_int32_t)c)
                      : title ? utf8proc_totitle((utf8proc_int32_t)c)
                              : utf8proc_tolower((utf8proc_int32_t)c));
}

/* Returns true for letters whose other case is several letters, or depends on their place. */
static bool is_odd(uint32_t c)
{
    return c == 0xdf || c == 0x130 || c == 0x149 || c == 0x1f0 || c == 0x390 || c == 0x3b0 || c == 0x3a3 ||
           c == 0x587 || (c >= 0x1e96 && c <= 0x1e9e) || (c >= 0x1f50 && c <= 0x1fff) ||
           (c >= 0xfb00 && c <= 0xfb17);
}

static bool is_letter(uint32_t c)
{
    const utf8proc_category_t kind = utf8proc_category((utf8proc_int32_t)c);
    return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}

/* Appends n bytes with their case changed. *first: the next letter begins a word. */
static void put_case(jx *e, const char *data, size_t n, char how, bool *first, jbuf *out)
{
    for (size_t i = 0, size; i < n; i += size) {
        const uint32_t c = tok_utf8_get(data + i, &size);
        char text[8];
        if (is_odd(c))
            jx_fail(e, "the letter %.*s cannot be changed to upper or lower case here", (int)size, data + i);
        jbuf_add(e, out, text, tok_utf8_put(changed(c, how, *first), text));
        *first = how == 't'   ? !is_letter(c)
                 : how == 'T' ? c && c < 0x80 && strchr("-({[< \t\n\v\f\r", (int)c) != NULL
                              : false;
    }
}

jstr *js_case(jx *e, jstr *s, char how)
{
    const char *data = js_data(e, s);
    const jrun all = {s->n, s->from}, *runs = s->mixed ? s->runs : &all;
    jstr *made = js_text(e, "");
    bool first = true;
    for (size_t i = 0, begin = 0; i < (s->mixed ? s->n_runs : 1); begin = runs[i++].end) {
        jbuf out = {0};
        put_case(e, data + begin, runs[i].end - begin, how, &first, &out);
        made = js_cat(e, made, js_new(e, out.data, out.n, runs[i].from));
    }
    jx_charge(e, 16 * s->n);
    return made;
}
