/* Conversations: ids and masks of the golden file for every template, the choice of a template, contents that
 * look like markup, and prompts. */
#include "chat_test.h"
#include "token/chat_templates.h"

#include <math.h>
#include <time.h>

/* ---- the golden file ------------------------------------------------------------------------------ */

static void expect_case(const char *name, size_t number, const json_t *expected, const ax_ids *ids,
                        const ax_buf *mask)
{
    const json_t *want = json_array_get(expected, 0);
    const char *bits = json_string_value(json_array_get(expected, 1));
    for (size_t i = 0; i < ids->size && i < json_array_size(want); i++)
        if (ids->data[i] != json_integer_value(json_array_get(want, i)) || mask->data[i] != bits[i] - '0')
            fail_msg("%s, record %zu, token %zu: %d (%d), expected %d (%c)", name, number, i, ids->data[i],
                     mask->data[i], (int)json_integer_value(json_array_get(want, i)), bits[i]);
    assert_int_equal(ids->size, json_array_size(want));
    assert_int_equal(mask->size, ids->size);
}

/* Returns the template that the special tokens of a template's tokenizer choose. */
static const char *by_tokens(const char *name)
{
    static const char *const asked[][2] = {
        {"llama3.1", "llama3"}, {"qwen2.5", "chatml"}, {"mistral-", "mistral"}};
    for (size_t i = 0; i < AX_COUNT(asked); i++)
        if (!strncmp(name, asked[i][0], strlen(asked[i][0])))
            return asked[i][1];
    return name;
}

static void expect_template(scratch *s, const json_t *entry, const json_t *records)
{
    const char *name = json_string_value(json_object_get(entry, "name"));
    const json_t *cases = json_object_get(entry, "cases");
    ax_tokenizer *tok;
    ax_encoder *encoder;
    ax_chat *chat;
    ax_chat_turns turns = {0};
    ax_chat_text text = {0};
    ax_ids ids = {0};
    ax_buf mask = {0};
    OK(ax_tokenizer_load(put_template(s, entry), &tok));
    OK(ax_encoder_create(tok, &encoder));
    OK(ax_chat_create(tok, NULL, &chat));
    assert_string_equal(ax_chat_name(chat), by_tokens(name));
    assert_string_equal(ax_chat_origin(chat), "chosen by the tokenizer's special tokens");
    ax_chat_destroy(&chat);
    OK(ax_chat_create(tok, name, &chat));
    assert_null(ax_chat_origin(chat));
    const char *eos = json_string_value(json_object_get(entry, "eos"));
    assert_int_equal(ax_chat_end(chat), ax_tokenizer_id(tok, eos, strlen(eos)));
    for (size_t i = 0; i < json_array_size(records); i++) {
        turns.n = ids.size = mask.size = 0;
        OK(ax_chat_read(json_array_get(records, i), NULL, &turns));
        if (json_is_null(json_array_get(cases, i))) { /* tools that the template does not write */
            FAILS(AX_ERR_DATA, "", ax_chat_render(chat, &turns, false, &text));
            continue;
        }
        OK(ax_chat_render(chat, &turns, false, &text));
        OK(ax_chat_encode(encoder, &text, &ids, &mask));
        expect_case(name, i, json_array_get(cases, i), &ids, &mask);
    }
    ax_chat_turns_fini(&turns);
    ax_chat_text_fini(&text);
    ax_ids_fini(&ids);
    ax_buf_fini(&mask);
    ax_chat_destroy(&chat);
    ax_encoder_destroy(&encoder);
    ax_tokenizer_destroy(&tok);
}

static void golden(void **state)
{
    json_t *file = read_golden("chat.json"), *entry;
    size_t i, names = 0;
    json_array_foreach(json_object_get(file, "templates"), i, entry)
    {
        expect_template(*state, entry, json_object_get(file, "records"));
        names++;
    }
    for (const char *c = ax_chat_names; *c; c++)
        names -= *c == '|';
    assert_int_equal(names, 1);
    json_decref(file);
}

/* ---- chat templates in Jinja ----------------------------------------------------------------------- */

/* Expects that without a name, template `name` is found, and that its origin begins with `origin`. */
static void expect_found(const ax_tokenizer *tok, const char *name, const char *origin)
{
    ax_chat *chat;
    OK(ax_chat_create(tok, NULL, &chat));
    assert_string_equal(ax_chat_name(chat), name);
    assert_int_equal(strncmp(ax_chat_origin(chat), origin, strlen(origin)), 0);
    ax_chat_destroy(&chat);
}

/* Expects that without a name the tokenizer's own template is run, and what it writes for a question. */
static void expect_own(const ax_tokenizer *tok, const char *text)
{
    ax_chat *chat, *again;
    ax_chat_text out = {0};
    ax_chat_turn turn[] = {{.role = AX_CHAT_USER, .text = "q", .size = 1}};
    OK(ax_chat_create(tok, NULL, &chat));
    assert_int_equal(strncmp(ax_chat_name(chat), "own-", 4), 0);
    assert_string_equal(ax_chat_origin(chat), "the tokenizer's own chat_template, run as it is");
    OK(ax_chat_render(chat, &(ax_chat_turns){.turn = turn, .n = 1}, true, &out));
    assert_string_equal(out.text.data, text);
    OK(ax_chat_create(tok, ax_chat_name(chat), &again));
    assert_string_equal(ax_chat_name(again), ax_chat_name(chat));
    assert_string_equal(ax_chat_origin(again), ax_chat_origin(chat));
    ax_chat_destroy(&again);
    ax_chat_text_fini(&out);
    ax_chat_destroy(&chat);
}

/* Expects that without a name there is no template, because the tokenizer's own cannot be used. */
static void expect_broken(const ax_tokenizer *tok, const char *why)
{
    ax_chat *chat;
    ax_chat_text text = {0};
    OK(ax_chat_create(tok, NULL, &chat));
    assert_string_equal(ax_chat_name(chat), "none");
    assert_null(ax_chat_origin(chat));
    FAILS(AX_ERR_USAGE, why, ax_chat_render(chat, &(ax_chat_turns){0}, false, &text));
    ax_chat_text_fini(&text);
    ax_chat_destroy(&chat);
}

/* Checks the Jinja of a template against the text that transformers ran (check_chat.py), and that a tokenizer
 * saved with it is loaded with the same template. */
static void expect_jinja(scratch *s, const json_t *entry, const char *expected)
{
    const char *name = json_string_value(json_object_get(entry, "name"));
    ax_tokenizer *tok, *loaded;
    ax_chat *chat;
    ax_buf jinja = {0};
    OK(ax_tokenizer_load(put_template(s, entry), &tok));
    OK(ax_chat_create(tok, name, &chat));
    OK(ax_chat_jinja(chat, &jinja));
    assert_string_equal(jinja.data, expected);
    const uint64_t hash = ax_tokenizer_hash(tok);
    OK(ax_tokenizer_set_chat_template(tok, jinja.data));
    OK(ax_tokenizer_save(tok, in_scratch(s, "saved")));
    OK(ax_tokenizer_load(in_scratch(s, "saved"), &loaded));
    assert_string_equal(ax_tokenizer_chat_template(loaded), jinja.data);
    assert_int_equal(ax_tokenizer_hash(loaded), hash);
    expect_found(loaded, name, "that of the tokenizer's chat_template");
    ax_buf_fini(&jinja);
    ax_chat_destroy(&chat);
    ax_tokenizer_destroy(&tok);
    ax_tokenizer_destroy(&loaded);
}

static void templates_become_jinja(void **state)
{
    json_t *file = read_golden("chat.json"), *expected = read_golden("chat_jinja.json"), *entry;
    size_t i;
    json_array_foreach(json_object_get(file, "templates"), i, entry)
    {
        const char *name = json_string_value(json_object_get(entry, "name"));
        expect_jinja(*state, entry, json_string_value(json_object_get(expected, name)));
    }
    assert_int_equal(i, json_object_size(expected));
    json_decref(file);
    json_decref(expected);
}

/* Expects that results of tools are written or refused. */
static void expect_tools(const ax_tokenizer *tok, bool written)
{
    ax_chat *chat;
    ax_chat_text text = {0};
    ax_chat_turn turn[] = {{.role = AX_CHAT_USER, .text = ""},
                           {.role = AX_CHAT_ASSISTANT, .text = ""},
                           {.role = AX_CHAT_TOOL, .text = ""}};
    OK(ax_chat_create(tok, NULL, &chat));
    ax_status status = ax_chat_render(chat, &(ax_chat_turns){.turn = turn, .n = 3}, false, &text);
    if (status != (written ? AX_OK : AX_ERR_DATA))
        fail_msg("%s: %s", ax_chat_origin(chat), ax_error_message());
    ax_chat_text_fini(&text);
    ax_chat_destroy(&chat);
}

/* Finds the text that an entry of chat_known.json has or, if it is in no package, its hash. */
static const chat_own *find_own(const json_t *entry)
{
    const char *hash = json_string_value(json_object_get(entry, "hash"));
    for (int i = 0; i < CHAT_OWN_TEXTS && hash; i++)
        if (chat_own_texts[i].hash == strtoull(hash, NULL, 16))
            return &chat_own_texts[i];
    return hash ? NULL : chat_known(json_string_value(json_object_get(entry, "jinja")));
}

/* Texts of released models and of packages, by which transformers writes what the template writes. No text is
 * known that make_chat_known.py did not compare. */
static void known_texts_are_recognized(void **state)
{
    json_t *file = read_golden("chat.json"), *known = read_golden("chat_known.json"), *entry, *own;
    bool compared[CHAT_OWN_TEXTS] = {false};
    size_t i, k;
    json_array_foreach(json_object_get(file, "templates"), i, entry)
    {
        const char *name = json_string_value(json_object_get(entry, "name"));
        ax_tokenizer *tok;
        OK(ax_tokenizer_load(put_template(*state, entry), &tok));
        json_array_foreach(known, k, own)
        {
            if (strcmp(json_string_value(json_object_get(own, "template")), name))
                continue;
            const chat_own *found = find_own(own);
            const json_t *jinja = json_object_get(own, "jinja");
            if (!found || strcmp(found->name, name) ||
                found->tools != json_is_true(json_object_get(own, "tools")))
                fail_msg("%s is not known", json_string_value(json_object_get(own, "source")));
            compared[found - chat_own_texts] = true;
            if (!jinja)
                continue;
            OK(ax_tokenizer_set_chat_template(tok, json_string_value(jinja)));
            if (found->differs) { /* so the text itself is run */
                ax_chat *chat;
                OK(ax_chat_create(tok, NULL, &chat));
                assert_int_equal(strncmp(ax_chat_name(chat), "own-", 4), 0);
                ax_chat_destroy(&chat);
                continue;
            }
            expect_found(tok, name, "that of the tokenizer's chat_template");
            expect_tools(tok, found->tools);
        }
        ax_tokenizer_destroy(&tok);
    }
    for (int t = 0; t < CHAT_OWN_TEXTS; t++)
        if (!compared[t])
            fail_msg("text %d is in no entry of chat_known.json", t);
    json_decref(file);
    json_decref(known);
}

/* Expects that the tokenizer's own template begins with `begin`, and that conversations with tools have the
 * one of the name "tool_use". */
static void expect_own_and_tools(const ax_tokenizer *tok, const char *begin)
{
    ax_chat *chat;
    ax_chat_text out = {0};
    ax_chat_turn turn[] = {{.role = AX_CHAT_USER, .text = "q", .size = 1}};
    json_t *tools = json_pack("[{s:s}]", "name", "f");
    OK(ax_chat_create(tok, NULL, &chat));
    OK(ax_chat_render(chat, &(ax_chat_turns){.turn = turn, .n = 1}, true, &out));
    assert_int_equal(strncmp(out.text.data, begin, strlen(begin)), 0);
    OK(ax_chat_render(chat, &(ax_chat_turns){.turn = turn, .n = 1, .tools = tools}, true, &out));
    assert_string_equal(out.text.data, "1!");
    ax_chat_destroy(&chat);
    OK(ax_chat_create(tok, "tool_use", &chat));
    ax_chat_destroy(&chat);
    FAILS(AX_ERR_USAGE, "the tokenizer brings default, tool_use", ax_chat_create(tok, "rag", &chat));
    ax_chat_text_fini(&out);
    json_decref(tools);
}

/* A known text writes the tokens that the configuration names, and of a list of texts transformers takes
 * another one for conversations with tools. */
static void known_texts_depend_on_the_configuration(void **state)
{
    json_t *known = read_golden("chat_known.json"), *file = read_golden("chat.json"), *entry, *own;
    const char *jinja[2] = {NULL, NULL}; /* of Llama 3.1 and of Qwen 2.5 */
    size_t i;
    json_array_foreach(known, i, own)
    {
        const char *source = json_string_value(json_object_get(own, "source"));
        if (!strcmp(source, "trl/llama3_1.jinja") || !strcmp(source, "trl/qwen2_5.jinja"))
            jinja[source[4] == 'q'] = json_string_value(json_object_get(own, "jinja"));
    }
    json_array_foreach(json_object_get(file, "templates"), i, entry)
    {
        const char *name = json_string_value(json_object_get(entry, "name"));
        const bool qwen = !strcmp(name, "qwen2.5");
        ax_tokenizer *tok;
        char path[128];
        if (!qwen && strcmp(name, "llama3.1"))
            continue;
        const char *dir = put_template(*state, entry);
        json_t *config = json_pack("{s:s, s:[{s:s, s:s}, {s:s, s:s}]}", "bos_token", "<|eot_id|>",
                                   "chat_template", "name", "default", "template", jinja[qwen], "name",
                                   "tool_use", "template", "{{ tools | length }}!");
        char *text = json_dumps(config, 0);
        snprintf(path, sizeof path, "%s/tokenizer_config.json", name);
        put_text(*state, path, text);
        OK(ax_tokenizer_load(dir, &tok));
        expect_own_and_tools(tok,
                             qwen ? "<|im_start|>system\nYou are Qwen" : "<|eot_id|><|start_header_id|>");
        free(text);
        json_decref(config);
        ax_tokenizer_destroy(&tok);
    }
    json_decref(known);
    json_decref(file);
}

/* What alpaca prints has the marks of deepseek-coder, if the text ends with <|EOT|>. */
static void templates_recognize_their_own_jinja(void **state)
{
    ax_tokenizer *tok;
    ax_chat *chat;
    ax_buf jinja = {0};
    json_t *added = json_pack("[{s:s, s:b}, {s:s, s:b}]", "content", "<|EOT|>", "special", 1, "content",
                              "<\xef\xbd\x9c"
                              "begin\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>",
                              "special", 1);
    OK(ax_tokenizer_load(put_tokenizer(*state, "eot-tok", "gpt2", added, "<|EOT|>"), &tok));
    OK(ax_chat_create(tok, "alpaca", &chat));
    OK(ax_chat_jinja(chat, &jinja));
    OK(ax_tokenizer_set_chat_template(tok, jinja.data));
    expect_found(tok, "alpaca", "that of the tokenizer's chat_template");
    OK(ax_tokenizer_set_chat_template(tok, "### Instruction: <|EOT|>"));
    expect_own(tok, "### Instruction: <|EOT|>");
    json_decref(added);
    ax_buf_fini(&jinja);
    ax_chat_destroy(&chat);
    ax_tokenizer_destroy(&tok);
}

/* Loads a tokenizer with the tokens of ChatML, with texts for tokenizer_config.json (written with single
 * quotes) and for chat_template.jinja (NULL: no file). */
static ax_tokenizer *load_chatml(scratch *s, const char *config, const char *jinja)
{
    ax_tokenizer *tok;
    const char *path = put_chatml(s);
    char text[1024];
    snprintf(text, sizeof text, "%s", config);
    set_quotes(text);
    put_text(s, "chatml-tok/tokenizer_config.json", text);
    if (jinja)
        put_text(s, "chatml-tok/chat_template.jinja", jinja);
    OK(ax_tokenizer_load(path, &tok));
    return tok;
}

#define CHATML                                                                                               \
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + "        \
    "'<|im_end|>' + "                                                                                        \
    "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"

#define QUESTION "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"

/* A text that only resembles a known one may write something else, such as a default system turn. */
static void a_tokenizer_has_its_own_template(void **state)
{
    static const char own[] = "that of the tokenizer's chat_template (ChatML)",
                      tokens[] = "chosen by the tokenizer's special tokens";
    static const struct {
        const char *config, *jinja, *name,
            *text; /* text: the origin; name NULL: what is written; "": the error */
    } cases[] = {
        {"{}", NULL, "chatml", tokens},
        {"{'chat_template': '### Instruction: ### Response:'}", NULL, NULL, "### Instruction: ### Response:"},
        {"{'chat_template': null}", NULL, "chatml", tokens},
        {"{'chat_template': 3}", NULL, "", "tokenizer_config.json: it is neither a text, nor texts by name"},
        {"{'chat_template': '<start_of_turn>'}", NULL, NULL, "<start_of_turn>"},
        {"{'chat_template': '<|start_header_id|> <|eot_id|>'}", NULL, NULL, "<|start_header_id|> <|eot_id|>"},
        {"{'chat_template': '[INST] <<SYS>> [/INST]'}", NULL, NULL, "[INST] <<SYS>> [/INST]"},
        {"{}", CHATML, "chatml", own},
        {"{}", CHATML "\n", "chatml", own},
        {"{}", CHATML "\n\n", "chatml", own},
        {"{}", CHATML "\n\n\n", NULL, QUESTION "\n"},
        {"{}", "{{ 'be good' }}" CHATML, NULL, "be good" QUESTION},
        {"{}", "{% include 'x' %}" CHATML, "",
         "chat_template.jinja:1: the tag include is not offered here; correct it"},
        {"{}", "{{ bos_token is defined }}{{ eos_token }}" CHATML, NULL, "False" QUESTION},
        {"{'chat_template': '### Instruction: ### Response:'}", CHATML, "chatml", own},
    };
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        ax_tokenizer *tok = load_chatml(*state, cases[i].config, cases[i].jinja);
        if (!cases[i].name)
            expect_own(tok, cases[i].text);
        else if (!*cases[i].name)
            expect_broken(tok, cases[i].text);
        else
            expect_found(tok, cases[i].name, cases[i].text);
        ax_tokenizer_destroy(&tok);
    }
}
#undef CHATML
#undef QUESTION

/* Some readers prefer tokenizer_config.json to chat_template.jinja, so the two must not differ. */
static void a_template_replaces_that_of_the_config(void **state)
{
    ax_tokenizer *tok =
        load_chatml(*state, "{'eos_token': '<|im_end|>', 'chat_template': 'old', 'x': 1.5}", NULL);
    OK(ax_tokenizer_save(tok, in_scratch(*state, "kept")));
    assert_false(ax_path_exists(in_scratch(*state, "kept/chat_template.jinja")));
    OK(ax_tokenizer_set_chat_template(tok, "new"));
    OK(ax_tokenizer_save(tok, in_scratch(*state, "set")));
    json_t *config = json_load_file(in_scratch(*state, "set/tokenizer_config.json"), 0, NULL),
           *expected = json_pack("{s:s, s:f}", "eos_token", "<|im_end|>", "x", 1.5);
    assert_true(json_equal(config, expected));
    json_decref(config);
    json_decref(expected);
    ax_tokenizer_destroy(&tok);
    OK(ax_tokenizer_load(in_scratch(*state, "set"), &tok));
    assert_string_equal(ax_tokenizer_chat_template(tok), "new");
    ax_tokenizer_destroy(&tok);
    char *large = calloc((2 << 20) + 1, 1);
    memset(large, 'x', 2 << 20);
    put_text(*state, "set/chat_template.jinja", large);
    FAILS(AX_ERR_DATA, "chat_template.jinja", ax_tokenizer_load(in_scratch(*state, "set"), &tok));
    free(large);
}

/* ---- parts ---------------------------------------------------------------------------------------- */

/* Cuts a text at random characters into parts, of which none is plain. Returns their number. */
static size_t cut_text(const char *text, size_t n, uint64_t key, ax_text_part *parts, size_t most)
{
    size_t count = 0;
    for (size_t at = 1; at < n && count + 1 < most; at++)
        if ((text[at] & 0xc0) != 0x80 && ax_rng_uniform(key, at) < 0.3)
            parts[count++].end = at;
    parts[count++].end = n;
    return count;
}

/* `parts` has the ends of the parts in the text of the ids: a token's last byte lies in its part. */
static void expect_places(const ax_tokenizer *tok, const ax_ids *ids, const ax_ids *part,
                          const ax_text_part *parts)
{
    size_t at = 0, p = 0;
    for (size_t i = 0; i < ids->size; i++) {
        size_t n;
        assert_non_null(ax_tokenizer_piece(tok, ids->data[i], &n));
        at += n;
        while (parts[p].end < at)
            p++;
        assert_int_equal(part->data[i], p);
    }
}

/* Parts do not change the ids of a text, for every tokenizer and text of the golden file. */
static void parts_change_no_ids(void **state)
{
    scratch *s = *state;
    json_t *file = read_golden("tokenizer.json"), *entry, *text;
    size_t v, i;
    json_array_foreach(json_object_get(file, "variants"), v, entry)
    {
        ax_tokenizer *tok;
        ax_encoder *encoder;
        const char *name = json_string_value(json_object_get(entry, "name"));
        bool plain = !strcmp(name, "gpt2") || !strcmp(name, "llama3") || !strcmp(name, "three splits");
        char *parts_of = json_dumps(json_object_get(entry, "tokenizer"), 0);
        OK(ax_tokenizer_load(put_text(s, "tokenizer.json", parts_of), &tok));
        OK(ax_encoder_create(tok, &encoder));
        json_array_foreach(json_object_get(file, "texts"), i, text)
        {
            ax_ids whole = {0}, ids = {0}, part = {0};
            static ax_text_part parts[1000];
            const char *bytes = json_string_value(text);
            size_t n = json_string_length(text);
            size_t count = cut_text(bytes, n, ax_rng_key(1, name, i), parts, AX_COUNT(parts));
            OK(ax_encode(encoder, bytes, n, 0, &whole));
            OK(ax_encode_parts(encoder, bytes, parts, count, NULL, &ids, &part));
            assert_int_equal(ids.size, whole.size);
            assert_int_equal(part.size, ids.size);
            for (size_t t = 0; t < ids.size; t++) {
                assert_int_equal(ids.data[t], whole.data[t]);
                assert_in_range(part.data[t], t ? part.data[t - 1] : 0, count - 1);
            }
            if (plain)
                expect_places(tok, &ids, &part, parts);
            ax_ids_fini(&whole);
            ax_ids_fini(&ids);
            ax_ids_fini(&part);
        }
        free(parts_of);
        ax_encoder_destroy(&encoder);
        ax_tokenizer_destroy(&tok);
    }
    json_decref(file);
}

/* Parts end where the text before their end does after normalization, also where a mark or a space is the
 * next part's. A text of many parts does not take much longer than one of few: 60,000 take a few hundredths
 * of a second, and would take minutes if each looked at all the text before it. */
static void many_parts_end_where_their_text_does(void **state)
{
    enum { GROUP = 4, GROUPS = 15000, CPU_SECONDS = 5 };
    /* Of each tokenizer: the parts of a group; in the text of the ids, the bytes before the first group, and
     * the ends of the parts in a group. */
    static const struct {
        const char *variant, *part[GROUP];
        size_t ahead, end[GROUP];
    } cases[] = {
        {"qwen2", {"ab", "e", "\xcc\x81", "\xcc\xa7 "}, 0, {2, 3, 4, 7}},
        {"llama2", {"ab", "e f", " ", " "}, 1, {2, 5, 6, 7}},
        {"metaspace first", {"a", " ", "\xc3\xa9", "b"}, 1, {1, 2, 4, 5}},
    };
    static ax_text_part parts[GROUPS * GROUP], made[GROUPS * GROUP];
    json_t *file = read_golden("tokenizer.json"), *entry;
    size_t v, tried = 0;
    for (size_t c = 0; c < AX_COUNT(cases); c++)
        json_array_foreach(json_object_get(file, "variants"), v, entry)
        {
            ax_tokenizer *tok;
            ax_encoder *encoder;
            ax_buf text = {0};
            ax_ids ids = {0}, part = {0};
            if (strcmp(json_string_value(json_object_get(entry, "name")), cases[c].variant))
                continue;
            for (size_t i = 0; i < GROUPS * GROUP; i++) {
                OK(ax_buf_printf(&text, "%s", cases[c].part[i % GROUP]));
                parts[i].end = text.size;
                made[i].end = cases[c].ahead + i / GROUP * cases[c].end[GROUP - 1] + cases[c].end[i % GROUP];
            }
            char *tokenizer = json_dumps(json_object_get(entry, "tokenizer"), 0);
            OK(ax_tokenizer_load(put_text(*state, "tokenizer.json", tokenizer), &tok));
            OK(ax_encoder_create(tok, &encoder));
            clock_t start = clock();
            OK(ax_encode_parts(encoder, text.data, parts, AX_COUNT(parts), NULL, &ids, &part));
            assert_true((double)(clock() - start) / CLOCKS_PER_SEC < CPU_SECONDS);
            expect_places(tok, &ids, &part, made);
            free(tokenizer);
            ax_buf_fini(&text);
            ax_ids_fini(&ids);
            ax_ids_fini(&part);
            ax_encoder_destroy(&encoder);
            ax_tokenizer_destroy(&tok);
            tried++;
        }
    assert_int_equal(tried, AX_COUNT(cases));
    json_decref(file);
}

/* ---- contents that look like markup --------------------------------------------------------------- */

/* Contents with the tokens of a template are never these tokens, even if the tokenizer says that they are not
 * special. So a conversation has as many of each as the same conversation with other contents. */
static void contents_are_no_markup(void **state)
{
    static const struct {
        const char *template, *variant, *tokens[5];
    } cases[] = {
        {"chatml", "gpt2", {"<|im_start|>", "<|im_end|>"}},
        {"qwen3", "gpt2", {"<|im_start|>", "<|im_end|>", "<think>", "</think>"}},
        {"llama3", "gpt2", {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}},
        {"mistral", "llama2", {"[INST]", "[/INST]"}},
    };
    for (size_t c = 0; c < AX_COUNT(cases); c++) {
        ax_tokenizer *tok;
        ax_encoder *encoder;
        ax_chat *chat;
        json_t *added = json_array();
        ax_buf forged = {0}, mask = {0};
        ax_chat_text text = {0};
        ax_ids ids[2] = {{0}};
        for (size_t i = 0; cases[c].tokens[i]; i++) {
            json_array_append_new(added,
                                  json_pack("{s:s, s:b}", "content", cases[c].tokens[i], "special", 0));
            OK(ax_buf_printf(&forged, "%s\n", cases[c].tokens[i]));
        }
        OK(ax_tokenizer_load(put_tokenizer(*state, cases[c].template, cases[c].variant, added, NULL), &tok));
        OK(ax_encoder_create(tok, &encoder));
        OK(ax_chat_create(tok, cases[c].template, &chat));
        for (int i = 0; i < 2; i++) {
            ax_chat_turns turns = {0};
            ax_chat_turn turn = {.text = i ? forged.data : "hi", .size = i ? forged.size : 2};
            const bool tools = !strcmp(cases[c].variant, "gpt2") && strcmp(cases[c].template, "llama3");
            const ax_chat_role order[] = {AX_CHAT_SYSTEM, AX_CHAT_USER, AX_CHAT_ASSISTANT, AX_CHAT_TOOL};
            for (size_t r = 0; r < (tools ? 4 : 3); r++) {
                turn.role = order[r];
                OK(ax_chat_add(&turns, &turn));
            }
            turns.turn[2].reasoning = turn.text;
            turns.turn[2].reasoning_size = turn.size;
            json_t *calls = json_pack("[{s:s, s:s}, {s:s, s:{s:s}}]", "name", turn.text, "arguments",
                                      turn.text, "name", "f", "arguments", turn.text, turn.text);
            turns.turn[2].calls = tools ? calls : NULL;
            turns.tools = tools ? calls : NULL;
            OK(ax_chat_render(chat, &turns, false, &text));
            OK(ax_chat_encode(encoder, &text, &ids[i], &mask));
            ax_chat_turns_fini(&turns);
            json_decref(calls);
        }
        for (size_t t = 0; cases[c].tokens[t]; t++) {
            int32_t id = ax_tokenizer_id(tok, cases[c].tokens[t], strlen(cases[c].tokens[t]));
            int count = 0;
            for (int i = 0; i < 2; i++)
                for (size_t at = 0; at < ids[i].size; at++)
                    count += ids[i].data[at] == id ? i ? 1 : -1 : 0;
            assert_true(id >= 0);
            if (count)
                fail_msg("%s: contents have %d tokens %s", cases[c].template, count, cases[c].tokens[t]);
        }
        ax_ids_fini(&ids[0]);
        ax_ids_fini(&ids[1]);
        ax_buf_fini(&forged);
        ax_buf_fini(&mask);
        ax_chat_text_fini(&text);
        ax_chat_destroy(&chat);
        ax_encoder_destroy(&encoder);
        ax_tokenizer_destroy(&tok);
        json_decref(added);
    }
}

/* ---- templates that do not fit ---------------------------------------------------------------------- */

/* Writes a tokenizer that has no special token at all. */
static const char *put_bare(scratch *s) { return put_tokenizer(s, "bare-tok", "three splits", NULL, NULL); }

static void refused_templates(void **state)
{
    scratch *s = *state;
    ax_tokenizer *tok;
    ax_chat *chat;
    ax_chat_turns turns = {0};
    ax_chat_text text = {0};
    OK(ax_tokenizer_load(put_chatml(s), &tok));
    FAILS(AX_ERR_USAGE, "template qwen3 does not fit the tokenizer, which lacks \"<think>\", \"</think>\"",
          ax_chat_create(tok, "qwen3", &chat));
    FAILS(AX_ERR_USAGE, "template mistral does not fit the tokenizer, which lacks \"<s>\", \"</s>\"",
          ax_chat_create(tok, "mistral", &chat));
    FAILS(AX_ERR_USAGE, "there is no chat template \"gemma\"; there are chatml|llama3",
          ax_chat_create(tok, "gemma", &chat));
    assert_null(chat);
    ax_tokenizer_destroy(&tok);
    const char *dir = put_bare(s);
    OK(ax_tokenizer_load(dir, &tok));
    if (ax_tokenizer_eos(tok) >= 0) { /* the file has an end-of-text token: alpaca is what is left */
        OK(ax_chat_create(tok, NULL, &chat));
        assert_string_equal(ax_chat_name(chat), "alpaca");
        FAILS(AX_ERR_DATA,
              "the last turn must be the user's (or the result of a tool), so that the assistant can answer "
              "it; "
              "there are no turns",
              ax_chat_render(chat, &turns, true, &text));
        ax_chat_destroy(&chat);
    }
    ax_tokenizer_destroy(&tok);
    /* A token that eos_token names is an added token, as in transformers, also if tokenizer.json has it as a
     * plain one. */
    OK(ax_tokenizer_load(put_tokenizer(s, "spelled-tok", "three splits", NULL, "e"), &tok));
    assert_true(ax_tokenizer_is_special(tok, ax_tokenizer_eos(tok)));
    OK(ax_chat_create(tok, "alpaca", &chat));
    ax_chat_destroy(&chat);
    ax_tokenizer_destroy(&tok);
    ax_chat_text_fini(&text);
}
/* ---- prompts and token files ---------------------------------------------------------------------- */

/* A prompt is the conversation up to where the answer begins, and its ids are a prefix of those of the
 * conversation. */
static void prompts(void **state)
{
    scratch *s = *state;
    json_t *file = read_golden("chat.json"), *entry;
    size_t i;
    json_array_foreach(json_object_get(file, "templates"), i, entry)
    {
        ax_tokenizer *tok;
        ax_encoder *encoder;
        ax_chat *chat;
        ax_chat_turns turns = {0};
        ax_chat_text text = {0};
        ax_ids prompt = {0}, whole = {0};
        ax_buf mask = {0};
        OK(ax_tokenizer_load(put_template(s, entry), &tok));
        OK(ax_encoder_create(tok, &encoder));
        OK(ax_chat_create(tok, json_string_value(json_object_get(entry, "name")), &chat));
        OK(ax_chat_add(&turns, &(ax_chat_turn){.role = AX_CHAT_USER, .text = "the first", .size = 9}));
        OK(ax_chat_render(chat, &turns, true, &text));
        OK(ax_chat_encode(encoder, &text, &prompt, &mask));
        assert_null(memchr(mask.data, 1, mask.size));
        OK(ax_chat_add(&turns, &(ax_chat_turn){.role = AX_CHAT_ASSISTANT, .text = "of it", .size = 5}));
        mask.size = 0;
        OK(ax_chat_render(chat, &turns, false, &text));
        OK(ax_chat_encode(encoder, &text, &whole, &mask));
        assert_true(whole.size > prompt.size);
        assert_memory_equal(whole.data, prompt.data, prompt.size * sizeof *prompt.data);
        for (size_t t = 0; t < whole.size;
             t++) /* a single turn: the targets are all that follows the prompt */
            assert_int_equal(mask.data[t], t >= prompt.size);
        FAILS(AX_ERR_DATA, "its role is assistant", ax_chat_render(chat, &turns, true, &text));
        ax_chat_turns_fini(&turns);
        ax_chat_text_fini(&text);
        ax_ids_fini(&prompt);
        ax_ids_fini(&whole);
        ax_buf_fini(&mask);
        ax_chat_destroy(&chat);
        ax_encoder_destroy(&encoder);
        ax_tokenizer_destroy(&tok);
    }
    json_decref(file);
}

/* Numbers are written as Python writes them: all powers of two, where the shortest text is often not the
 * nearest one of its length. `want` is the FNV-1a hash of what json.dumps gives, with a line end after each.
 */
static void numbers(void **state)
{
    (void)state;
    ax_buf text = {0};
    uint64_t hash = UINT64_C(0xcbf29ce484222325), want = UINT64_C(0x8a2ce174d3479c89);
    for (int k = -1074; k < 1024; k++) {
        json_t *number = json_real(ldexp(1, k));
        OK(chat_put_json(number, 0, &text));
        OK(ax_buf_add(&text, "\n", 1));
        json_decref(number);
    }
    assert_non_null(strstr(text.data, "\n5.684341886080802e-14\n"));
    for (size_t i = 0; i < text.size; i++)
        hash = (hash ^ (unsigned char)text.data[i]) * UINT64_C(0x100000001b3);
    assert_true(hash == want);
    ax_buf_fini(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers),
        cmocka_unit_test_setup_teardown(golden, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(templates_become_jinja, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(known_texts_are_recognized, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(known_texts_depend_on_the_configuration, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(templates_recognize_their_own_jinja, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(a_tokenizer_has_its_own_template, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(a_template_replaces_that_of_the_config, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(parts_change_no_ids, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(many_parts_end_where_their_text_does, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(contents_are_no_markup, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(refused_templates, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(prompts, files_setup, files_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
