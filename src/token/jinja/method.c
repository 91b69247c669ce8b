/* Methods of strings, lists and maps. */
#include "token/jinja/inner.h"
#include "token/tok.h"

#include <string.h>

/* ---- strings --------------------------------------------------------------------------------------- */

static jstr *needed_string(jx *e, const jargs *a, size_t at, const char *name)
{
    jstr *s = string_argument(e, a, at, name);
    if (!s)
        jx_fail(e, "argument %zu (%s) is missing", at + 1, name);
    return s;
}

static jv m_upper(jx *e, jv self, const jargs *a)
{
    return check_arguments(e, a, 0), jv_str(js_case(e, self.s, 'u'));
}
static jv m_lower(jx *e, jv self, const jargs *a)
{
    return check_arguments(e, a, 0), jv_str(js_case(e, self.s, 'l'));
}
static jv m_title(jx *e, jv self, const jargs *a)
{
    return check_arguments(e, a, 0), jv_str(js_case(e, self.s, 't'));
}
static jv m_swapcase(jx *e, jv self, const jargs *a)
{
    return check_arguments(e, a, 0), jv_str(js_case(e, self.s, 's'));
}
static jv m_capitalize(jx *e, jv self, const jargs *a)
{
    return check_arguments(e, a, 0), jv_str(js_case(e, self.s, 'c'));
}
static jv m_strip(jx *e, jv self, const jargs *a)
{
    check_arguments(e, a, 1);
    return jv_str(js_strip(e, self.s, string_argument(e, a, 0, ""), true, true));
}
static jv m_lstrip(jx *e, jv self, const jargs *a)
{
    check_arguments(e, a, 1);
    return jv_str(js_strip(e, self.s, string_argument(e, a, 0, ""), true, false));
}
static jv m_rstrip(jx *e, jv self, const jargs *a)
{
    check_arguments(e, a, 1);
    return jv_str(js_strip(e, self.s, string_argument(e, a, 0, ""), false, true));
}

/* Splits at white space, at most `most` times (negative: without bound). */
static jlist *split_space(jx *e, jstr *s, int64_t most)
{
    jlist *list = list_new(e, L_LIST);
    s = js_strip(e, s, NULL, true, false);
    while (s->n) {
        const char *data = js_data(e, s);
        size_t at = 0;
        while (at < s->n && !(data[at] >= 0x1c && data[at] <= 0x1f) &&
               !tok_space_prefix(data + at, s->n - at))
            at += tok_utf8_size((unsigned char)data[at]);
        if (most-- == 0) {
            list_add(e, list, jv_str(s));
            break;
        }
        jx_charge(e, at);
        list_add(e, list, jv_str(js_sub(e, s, 0, at)));
        s = js_strip(e, js_sub(e, s, at, s->n - at), NULL, true, false);
    }
    return list;
}

/* Returns how often a string is split; -1: without bound. */
static int64_t most_splits(jx *e, const jargs *a)
{
    const int64_t most = int_argument(e, a, 1, "maxsplit", -1);
    return most < 0 ? -1 : most;
}

static jv m_split(jx *e, jv self, const jargs *a)
{
    check_arguments(e, a, 2);
    jstr *by = string_argument(e, a, 0, "sep");
    int64_t most = most_splits(e, a);
    if (!by)
        return jv_list(split_space(e, self.s, most));
    if (!by->n)
        jx_fail(e, "split needs a separator that is not empty");
    jlist *list = list_new(e, L_LIST);
    size_t begin = 0;
    for (size_t at; most-- != 0 && (at = js_find(e, self.s, by, begin)) != SIZE_MAX; begin = at + by->n)
        list_add(e, list, jv_str(js_sub(e, self.s, begin, at - begin)));
    list_add(e, list, jv_str(js_sub(e, self.s, begin, self.s->n - begin)));
    return jv_list(list);
}

/* Compares bytes. Adds those that were looked at to *work. */
static bool same_bytes(const char *a, const char *b, size_t n, size_t *work)
{
    enum { BLOCK = 256 };
    for (size_t i = 0; i < n; i += BLOCK) {
        const size_t size = n - i < BLOCK ? n - i : BLOCK;
        *work += size;
        if (memcmp(a + i, b + i, size) != 0)
            return false;
    }
    return true;
}

/* Returns the last place of `find` that ends before `end`, or SIZE_MAX. */
static size_t find_last(jx *e, jstr *s, jstr *find, size_t end)
{
    const char *data = js_data(e, s), *wanted = js_data(e, find);
    size_t at = end >= find->n ? end - find->n + 1 : 0, work = 0;
    bool found = false;
    while (at > 0 && !found) {
        at--;
        work += 4;
        found = !find->n || (data[at] == *wanted && same_bytes(data + at, wanted, find->n, &work));
        if (work > 4096 || found || !at) {
            jx_charge(e, work);
            work = 0;
        }
    }
    return found ? at : SIZE_MAX;
}

static jv m_rsplit(jx *e, jv self, const jargs *a)
{
    check_arguments(e, a, 2);
    jstr *by = string_argument(e, a, 0, "sep");
    int64_t most = most_splits(e, a);
    if (!by && most >= 0)
        jx_fail(e, "rsplit at white space with a number of parts is not offered");
    if (!by)
        return jv_list(split_space(e, self.s, -1));
    if (!by->n)
        jx_fail(e, "rsplit needs a separator that is not empty");
    jlist *list = list_new(e, L_LIST);
    size_t end = self.s->n;
    for (size_t at; most-- != 0 && (at = find_last(e, self.s, by, end)) != SIZE_MAX; end = at)
        list_add(e, list, jv_str(js_sub(e, self.s, at + by->n, end - at - by->n)));
    list_add(e, list, jv_str(js_sub(e, self.s, 0, end)));
    return jv_list(list_back(e, list, L_LIST));
}

static jv m_splitlines(jx *e, jv self, const jargs *a)
{
    check_arguments(e, a, 1);
    const bool keep = bool_argument(e, a, 0, "keepends", false);
    jlist *list = list_new(e, L_LIST);
    const char *data = js_data(e, self.s);
    size_t begin = 0;
    for (size_t i = 0; i < self.s->n; i++) {
        const bool pair = data[i] == '\r' && i + 1 < self.s->n && data[i + 1] == '\n';
        const bool wide = (i + 1 < self.s->n && !memcmp(data + i, "\xc2\x85", 2)) ||
                          (i + 2 < self.s->n && !memcmp(data + i, "\xe2\x80\xa8", 3)) ||
                          (i + 2 < self.s->n && !memcmp(data + i, "\xe2\x80\xa9", 3));
        const size_t n = wide ? tok_utf8_size((unsigned char)data[i]) : 1 + (size_t)pair;
        if (!wide && !(data[i] >= '\n' && data[i] <= '\r') && !(data[i] >= 0x1c && data[i] <= 0x1e))
            continue;
        list_add(e, list, jv_str(js_sub(e, self.s, begin, keep ? i - begin + n : i - begin)));
        i += n - 1;
        begin = i + 1;
    }
    jx_charge(e, self.s->n);
    if (begin < self.s->n)
        list_add(e, list, jv_str(js_sub(e, self.s, begin, self.s->n - begin)));
    return jv_list(list);
}

/* Returns true if the string begins (or ends) with the argument, or with one of a tuple. */
static jv has_affix(jx *e, jv self, const jargs *a, bool end)
{
    check_arguments(e, a, 1);
    const jv *given = get_argument(e, a, 0, "");
    const jlist one = {.v = (jv *)given, .n = given != NULL};
    const jlist *list = given && given->kind == J_LIST && given->list->kind == L_TUPLE ? given->list : &one;
    const char *data = js_data(e, self.s);
    for (size_t i = 0; i < list->n; i++) {
        if (list->v[i].kind != J_STRING)
            jx_fail(e, "%s needs a string, but has a %s", end ? "endswith" : "startswith",
                    kind_name(list->v[i]));
        jstr *s = list->v[i].s;
        jx_charge(e, s->n <= self.s->n ? s->n : 0);
        if (s->n <= self.s->n && !memcmp(data + (end ? self.s->n - s->n : 0), js_data(e, s), s->n))
            return jv_bool(true);
    }
    if (!given)
        jx_fail(e, "%s needs a string", end ? "endswith" : "startswith");
    return jv_bool(false);
}
static jv m_startswith(jx *e, jv self, const jargs *a) { return has_affix(e, self, a, false); }
static jv m_endswith(jx *e, jv self, const jargs *a) { return has_affix(e, self, a, true); }

static jv m_removeprefix(jx *e, jv self, const jargs *a)
{
    check_arguments(e, a, 1);
    const bool has = has_affix(e, self, a, false).i;
    const size_t n = needed_string(e, a, 0, "")->n;
    return has ? jv_str(js_sub(e, self.s, n, self.s->n - n)) : self;
}
static jv m_removesuffix(jx *e, jv self, const jargs *a)
{
    check_arguments(e, a, 1);
    const bool has = has_affix(e, self, a, true).i;
    return has ? jv_str(js_sub(e, self.s, 0, self.s->n - needed_string(e, a, 0, "")->n)) : self;
}

static jv m_replace(jx *e, jv self, const jargs *a)
{
    check_arguments(e, a, 3);
    return jv_str(js_replace(e, self.s, needed_string(e, a, 0, "old"), needed_string(e, a, 1, "new"),
                             int_argument(e, a, 2, "count", -1)));
}

/* Returns the place in code points of a byte; -1 for SIZE_MAX. */
static jv place(jx *e, jstr *s, size_t at)
{
    return jv_int(at == SIZE_MAX ? -1 : (int64_t)js_length(e, js_sub(e, s, 0, at)));
}
static jv m_find(jx *e, jv self, const jargs *a)
{
    check_arguments(e, a, 1);
    return place(e, self.s, js_find(e, self.s, needed_string(e, a, 0, "sub"), 0));
}
static jv m_rfind(jx *e, jv self, const jargs *a)
{
    check_arguments(e, a, 1);
    return place(e, self.s, find_last(e, self.s, needed_string(e, a, 0, "sub"), self.s->n));
}
static jv m_index(jx *e, jv self, const jargs *a)
{
    const jv at = m_find(e, self, a);
    if (at.i < 0)
        jx_fail(e, "index: the string does not have the part");
    return at;
}

static jv m_count(jx *e, jv self, const jargs *a)
{
    check_arguments(e, a, 1);
    jstr *find = needed_string(e, a, 0, "sub");
    int64_t n = 0;
    if (!find->n)
        return jv_int((int64_t)js_length(e, self.s) + 1);
    for (size_t at = 0; (at = js_find(e, self.s, find, at)) != SIZE_MAX; at += find->n)
        n++;
    return jv_int(n);
}

static jv m_join(jx *e, jv self, const jargs *a)
{
    check_arguments(e, a, 1);
    const jv *given = get_argument(e, a, 0, "");
    if (!given)
        jx_fail(e, "join needs a list");
    jlist *list = elements(e, *given);
    jstr *out = js_text(e, "");
    for (size_t i = 0; i < list->n; i++) {
        if (list->v[i].kind != J_STRING)
            jx_fail(e, "join: element %zu is a %s, not a string", i, kind_name(list->v[i]));
        out = js_cat(e, i ? js_cat(e, out, self.s) : out, list->v[i].s);
    }
    return jv_str(out);
}

/* Returns {} of a format replaced: by the next argument, by that of this number or name. */
static jv m_format(jx *e, jv self, const jargs *a)
{
    jstr *out = js_text(e, "");
    const char *data = js_data(e, self.s);
    size_t begin = 0, next = 0;
    for (size_t i = 0; i < self.s->n; i++) {
        if (data[i] != '{' && data[i] != '}')
            continue;
        out = js_cat(e, out, js_sub(e, self.s, begin, i - begin));
        if (i + 1 < self.s->n && data[i + 1] == data[i]) {
            out = js_cat(e, out, js_sub(e, self.s, i++, 1));
            begin = i + 1;
            continue;
        }
        const char *close = data[i] == '{' ? memchr(data + i, '}', self.s->n - i) : NULL;
        if (!close)
            jx_fail(e, "format: a single %c in the format", data[i]);
        const size_t n = (size_t)(close - data) - i - 1;
        char name[64];
        if (n >= sizeof name)
            jx_fail(e, "format: a field has a long name");
        memcpy(name, data + i + 1, n);
        name[n] = 0;
        if (strpbrk(name, ":!.["))
            jx_fail(e, "format: the field {%s} has a form that is not offered; {}, {0} and {name} are", name);
        const bool number = n && strspn(name, "0123456789") == n;
        size_t at = n ? SIZE_MAX : next++;
        for (size_t k = 0; number && k < n; k++)
            at = (k ? 10 * at : 0) + (size_t)(name[k] - '0');
        const jv *value = get_argument(e, a, at, n && !number ? name : "");
        if (!value)
            jx_fail(e, "format: there is no argument for the field {%s}", name);
        out = js_cat(e, out, to_string(e, *value));
        i += n + 1;
        begin = i + 1;
    }
    return jv_str(js_cat(e, out, js_sub(e, self.s, begin, self.s->n - begin)));
}

/* Returns true if all characters are of a class ("d" digits, "a" letters, "n" both, " " white space, "u", "l"
 * letters of one case among any), and there is one. */
static jv all_are(jx *e, jv self, const jargs *a, char class)
{
    check_arguments(e, a, 0);
    const char *data = js_data(e, self.s);
    bool any = false;
    jx_charge(e, self.s->n);
    if (class == ' ')
        return jv_bool(self.s->n && !js_strip(e, self.s, NULL, true, false)->n);
    for (size_t i = 0; i < self.s->n; i++) {
        const char c = data[i];
        const bool lower = c >= 'a' && c <= 'z', upper = c >= 'A' && c <= 'Z', digit = c >= '0' && c <= '9';
        if ((unsigned char)c >= 0x80)
            jx_fail(e,
                    "characters beyond ASCII are not classed here (isalpha, isdigit, isupper and the like)");
        if (class == 'u' || class == 'l') {
            any |= class == 'u' ? upper : lower;
            if (class == 'u' ? lower : upper)
                return jv_bool(false);
            continue;
        }
        any = true;
        if (!(class == 'd' ? digit : class == 'a' ? lower || upper : lower || upper || digit))
            return jv_bool(false);
    }
    return jv_bool(any);
}
static jv m_isdigit(jx *e, jv self, const jargs *a) { return all_are(e, self, a, 'd'); }
static jv m_isalpha(jx *e, jv self, const jargs *a) { return all_are(e, self, a, 'a'); }
static jv m_isalnum(jx *e, jv self, const jargs *a) { return all_are(e, self, a, 'n'); }
static jv m_isspace(jx *e, jv self, const jargs *a) { return all_are(e, self, a, ' '); }
static jv m_isupper(jx *e, jv self, const jargs *a) { return all_are(e, self, a, 'u'); }
static jv m_islower(jx *e, jv self, const jargs *a) { return all_are(e, self, a, 'l'); }

/* Returns the text before a separator, the separator, and the text behind it. */
static jv parts_at(jx *e, jstr *s, jstr *by, size_t at, bool last)
{
    jlist *list = list_new(e, L_TUPLE);
    jstr *none = js_text(e, "");
    const bool found = at != SIZE_MAX;
    list_add(e, list, jv_str(found ? js_sub(e, s, 0, at) : last ? none : s));
    list_add(e, list, jv_str(found ? by : none));
    list_add(e, list, jv_str(found ? js_sub(e, s, at + by->n, s->n - at - by->n) : last ? s : none));
    return jv_list(list);
}
static jv m_partition(jx *e, jv self, const jargs *a)
{
    jstr *by = needed_string(e, a, 0, "sep");
    return parts_at(e, self.s, by, js_find(e, self.s, by, 0), false);
}
static jv m_rpartition(jx *e, jv self, const jargs *a)
{
    jstr *by = needed_string(e, a, 0, "sep");
    return parts_at(e, self.s, by, find_last(e, self.s, by, self.s->n), true);
}

/* Fills a string up to a number of characters: at its left, or at its right. */
static jv padded(jx *e, jv self, const jargs *a, bool left)
{
    check_arguments(e, a, 2);
    jstr *by = string_argument(e, a, 1, "fillchar");
    by = by ? by : js_text(e, " ");
    const int64_t width = int_argument(e, a, 0, "width", 0);
    const int64_t n = width < 0 ? 0 : width - (int64_t)js_length(e, self.s);
    jstr *out = self.s;
    for (int64_t i = 0; i < n; i++) {
        out = left ? js_cat(e, by, out) : js_cat(e, out, by);
        jx_charge(e, 64);
    }
    return jv_str(out);
}
static jv m_ljust(jx *e, jv self, const jargs *a) { return padded(e, self, a, false); }
static jv m_rjust(jx *e, jv self, const jargs *a) { return padded(e, self, a, true); }

/* ---- maps and lists ---------------------------------------------------------------------------------- */

static jv m_get(jx *e, jv self, const jargs *a)
{
    check_arguments(e, a, 2);
    const jv *key = get_argument(e, a, 0, ""), *other = get_argument(e, a, 1, "");
    jv value = other ? *other : jv_none();
    if (!key)
        jx_fail(e, "get needs a key");
    dict_get(e, self.dict, *key, &value);
    return value;
}

static jv m_items(jx *e, jv self, const jargs *a)
{
    check_arguments(e, a, 0);
    jlist *list = list_new(e, L_VIEW);
    for (size_t i = 0; i < self.dict->n; i++) {
        jlist *pair = list_new(e, L_TUPLE);
        list_add(e, pair, self.dict->key[i]);
        list_add(e, pair, self.dict->value[i]);
        list_add(e, list, jv_list(pair));
    }
    return jv_list(list);
}

static jv half_of(jx *e, const jargs *a, const jv *half, size_t n)
{
    check_arguments(e, a, 0);
    jlist *list = list_new(e, L_VIEW);
    for (size_t i = 0; i < n; i++)
        list_add(e, list, half[i]);
    return jv_list(list);
}
static jv m_keys(jx *e, jv self, const jargs *a) { return half_of(e, a, self.dict->key, self.dict->n); }
static jv m_values(jx *e, jv self, const jargs *a) { return half_of(e, a, self.dict->value, self.dict->n); }

static jv m_copy(jx *e, jv self, const jargs *a)
{
    check_arguments(e, a, 0);
    jdict *d = dict_new(e);
    if (self.kind == J_LIST) {
        jlist *list = list_new(e, L_LIST);
        for (size_t i = 0; i < self.list->n; i++)
            list_add(e, list, self.list->v[i]);
        return jv_list(list);
    }
    for (size_t i = 0; i < self.dict->n; i++)
        dict_set(e, d, self.dict->key[i], self.dict->value[i]);
    return jv_dict(d);
}

static jv m_list_index(jx *e, jv self, const jargs *a)
{
    check_arguments(e, a, 1);
    const jv *given = get_argument(e, a, 0, "");
    for (size_t i = 0; given && i < self.list->n; i++)
        if (is_equal(e, self.list->v[i], *given))
            return jv_int((int64_t)i);
    jx_fail(e, "index: the list does not have the element");
}

static jv m_list_count(jx *e, jv self, const jargs *a)
{
    check_arguments(e, a, 1);
    const jv *given = get_argument(e, a, 0, "");
    int64_t n = 0;
    for (size_t i = 0; given && i < self.list->n; i++)
        n += is_equal(e, self.list->v[i], *given);
    return jv_int(n);
}

static jv m_changes(jx *e, jv self, const jargs *a)
{
    (void)a;
    jx_fail(e, "the template calls a method that changes a %s, which is not offered", kind_name(self));
}

static const jbuiltin string_methods[] = {
    {"upper", m_upper},
    {"lower", m_lower},
    {"title", m_title},
    {"capitalize", m_capitalize},
    {"swapcase", m_swapcase},
    {"strip", m_strip},
    {"lstrip", m_lstrip},
    {"rstrip", m_rstrip},
    {"split", m_split},
    {"rsplit", m_rsplit},
    {"splitlines", m_splitlines},
    {"startswith", m_startswith},
    {"endswith", m_endswith},
    {"removeprefix", m_removeprefix},
    {"replace", m_replace},
    {"removesuffix", m_removesuffix},
    {"find", m_find},
    {"rfind", m_rfind},
    {"index", m_index},
    {"count", m_count},
    {"join", m_join},
    {"format", m_format},
    {"isdigit", m_isdigit},
    {"isdecimal", m_isdigit},
    {"isnumeric", m_isdigit},
    {"isalpha", m_isalpha},
    {"isalnum", m_isalnum},
    {"isspace", m_isspace},
    {"isupper", m_isupper},
    {"islower", m_islower},
    {"partition", m_partition},
    {"rpartition", m_rpartition},
    {"ljust", m_ljust},
    {"rjust", m_rjust},
    {0},
};
static const jbuiltin dict_methods[] = {
    {"get", m_get},
    {"items", m_items},
    {"keys", m_keys},
    {"values", m_values},
    {"copy", m_copy},
    {"pop", m_changes},
    {"update", m_changes},
    {"setdefault", m_changes},
    {"clear", m_changes},
    {"popitem", m_changes},
    {0},
};
static const jbuiltin list_methods[] = {
    {"index", m_list_index}, {"count", m_list_count}, {"copy", m_copy},       {"append", m_changes},
    {"extend", m_changes},   {"insert", m_changes},   {"pop", m_changes},     {"remove", m_changes},
    {"clear", m_changes},    {"sort", m_changes},     {"reverse", m_changes}, {0},
};

bool names_method(const char *name)
{
    return find_builtin(string_methods, name) || find_builtin(dict_methods, name) ||
           find_builtin(list_methods, name);
}

jfn string_method(const char *name) { return find_builtin(string_methods, name); }

jv bind_method(jx *e, jv object, const char *name, jfn fn)
{
    jmethod *m = jx_alloc(e, sizeof *m);
    *m = (jmethod){name, object, fn};
    return (jv){.kind = J_METHOD, .method = m};
}

bool find_method(jx *e, jv object, const char *name, jv *method)
{
    static const jbuiltin none[] = {{0}};
    const jbuiltin *table = object.kind == J_STRING                                 ? string_methods
                            : object.kind == J_DICT                                 ? dict_methods
                            : object.kind == J_LIST && object.list->kind == L_LIST  ? list_methods
                            : object.kind == J_LIST && object.list->kind == L_TUPLE ? list_methods
                                                                                    : none;
    jfn fn = find_builtin(table, name);
    if (fn)
        *method = bind_method(e, object, name, fn);
    return fn != NULL;
}
