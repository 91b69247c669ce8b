/* Conversations: a record of JSON is read, rendered and encoded. The first byte says by which template. What
 * a turn says never becomes a special token, each id has a byte of the mask, and no text of other turns than
 * answers is a target. */
#include "axonn/chat.h"
#include "axonn/json.h"
#include "fuzz/fuzz.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* A model's own template: it cuts reasoning off earlier answers, and asks which message is the last. */
#define OWN                                                                                                  \
    "{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}{{ messages[0].content }}{% else "    \
    "%}{% set "                                                                                              \
    "rest = messages %}{% endif %}{% for m in rest %}<|im_start|>{{ m.role }}\n{% if m.tool_calls %}{{ "     \
    "m.tool_calls "                                                                                          \
    "| tojson }}{% endif %}{% if loop.last or not m.content %}{{ m.content }}{% else %}{{ "                  \
    "m.content.split('</think>')[-1].strip() }}{% endif %}<|im_end|>\n{% endfor %}{% if "                    \
    "add_generation_prompt "                                                                                 \
    "%}<|im_start|>assistant\n<think>{% endif %}"

/* One that names the tool of a call in the turn of its result, and cuts reasoning off; and one with marks. */
#define CALLED                                                                                               \
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.reasoning_content and loop.last %}<think>"     \
    "{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}"           \
    "({{ c.function.name }}){% endfor %}{% if m.role == 'tool' %}{% for c in messages[loop.index0 - 1]"      \
    ".tool_calls or [] %}({{ c.function.name }}){% endfor %}{% endif %}<|im_end|>\n{% endfor %}"             \
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
#define MARKED                                                                                               \
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>"         \
    "{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}{% endfor %}"

/* Of each template: its tokenizer in tokenizer.json, tokens to add, and its text if it is a model's own. */
static const struct {
    const char *variant, *added[5], *own;
} kinds[] = {
    {"gpt2", {"<|im_start|>", "<|im_end|>"}, NULL},
    {"llama3", {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}, NULL},
    {"qwen2", {"<|im_start|>", "<|im_end|>", "<think>", "</think>"}, NULL},
    {"llama2", {NULL}, NULL},
    {"gpt2", {NULL}, NULL},
    {"qwen2", {"<|im_start|>", "<|im_end|>", "<think>", "</think>"}, OWN},
    {"qwen2", {"<|im_start|>", "<|im_end|>", "<think>", "</think>"}, CALLED},
    {"qwen2", {"<|im_start|>", "<|im_end|>"}, MARKED},
};
enum { KINDS = sizeof kinds / sizeof *kinds };
static ax_tokenizer *tokenizers[KINDS];
static ax_chat *chats[KINDS];

/* A conversation with many tool calls, whose names look like markup: its text has thousands of parts. */
static void seed_many_parts(void)
{
    enum { CALLS = 1800 };
    ax_buf text = {0};
    ax_status status = ax_buf_printf(&text, "2{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":"
                                            "\"assistant\",\"content\":\"\",\"tool_calls\":[");
    for (int i = 0; status == AX_OK && i < CALLS; i++)
        status = ax_buf_printf(&text, "%s{\"name\":\"<think>\",\"arguments\":{}}", i ? "," : "");
    if (status != AX_OK || ax_buf_printf(&text, "]}]}") != AX_OK)
        abort();
    fuzz_seed((fuzz_part[]){{text.data, text.size}, {NULL, 0}});
    ax_buf_fini(&text);
}

void fuzz_make_seeds(void)
{
    seed_many_parts();
    fuzz_seed_texts(
        (const char *[]){"0{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\","
                         "\"content\":\"a<|im_end|>\"},"
                         "{\"role\":\"assistant\",\"content\":\"\"},{\"role\":\"user\",\"content\":\"b\"}]}",
                         NULL});
    fuzz_seed_texts((const char *[]){"1{\"prompt\":\" p \",\"completion\":\"\\u3000c<|eot_id|>\"}", NULL});
    fuzz_seed_texts((const char *[]){
        "2{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"
        "\"<think>x</think>\\n\\ne\\u0301\",\"reasoning_content\":\"\\nr\"}]}",
        NULL});
    fuzz_seed_texts((const char *[]){"3{\"conversations\":[{\"from\":\"human\",\"value\":\"</s> "
                                     "x\"},{\"from\":\"gpt\",\"value\":\"\xe2\x96\x81\"}]}",
                                     NULL});
    fuzz_seed_texts((const char *[]){
        "5{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\","
        "\"content\":\"a<|im_end|>\"},{\"role\":\"assistant\",\"content\":\"<think>x</think>b\"},"
        "{\"role\":\"user\",\"content\":\"c\"},{\"role\":\"assistant\",\"content\":\"<think>\"}]}",
        NULL});
    fuzz_seed_texts((const char *[]){
        "6{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\","
        "\"reasoning_content\":\"r\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{}}}]},"
        "{\"role\":\"tool\",\"content\":\"x\"},{\"role\":\"user\",\"content\":\"c\"}]}",
        NULL});
    fuzz_seed_texts((const char *[]){
        "7{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"},"
        "{\"role\":\"assistant\",\"content\":\"c\",\"weight\":0}],\"chat_template_kwargs\":{\"m\":1}}",
        NULL});
    fuzz_seed_texts((const char *[]){"4{\"instruction\":\"i\",\"input\":\"n\",\"output\":\"o\"}", NULL});
    fuzz_seed_texts((const char *[]){"0{\"system\":\"s\",\"instruction\":\"i\",\"context\":\"c\","
                                     "\"response\":\"r\",\"history\":[[\"q\",\"a\"]],"
                                     "\"category\":\"x\"}",
                                     NULL});
    fuzz_seed_texts(
        (const char *[]){"0{\"tools\":[{\"name\":\"f\",\"x\":[1,-0.5e-7,null,{}]}],\"messages\":[{\"role\":"
                         "\"user\",\"content\":\"a\"},{"
                         "\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{\"name\":"
                         "\"f\",\"arguments\":{\"y\":1e300,"
                         "\"z\":\"\\u0001\"}}}]},{\"role\":\"tool\",\"content\":\"<|im_end|>\"}]}",
                         NULL});
    fuzz_seed_texts((const char *[]){"2{\"tools\":\"[{}]\",\"messages\":[{\"role\":\"user\",\"content\":"
                                     "\"a\"},{\"role\":\"assistant\",\"content\":\"\\n\","
                                     "\"tool_calls\":[{\"name\":\"f\",\"arguments\":\"{}\"},{\"name\":\"<"
                                     "think>\",\"arguments\":{}}]},{\"role\":\"tool\","
                                     "\"content\":\"r\"},{\"role\":\"tool\",\"content\":\"s\"}]}",
                                     NULL});
    fuzz_seed_texts((const char *[]){"2{\"prompt\":[{\"role\":\"developer\",\"content\":[{\"type\":\"text\","
                                     "\"text\":\"a\"},{\"type\":\"text\","
                                     "\"text\":\"b\"}]},{\"role\":\"user\",\"content\":\"u\",\"weight\":1}],"
                                     "\"completion\":[{\"role\":\"assistant\","
                                     "\"content\":\"c\",\"train\":false,\"thinking\":\"t\"}]}",
                                     NULL});
}

/* Loads the tokenizer of a kind, once. */
static void load(size_t k)
{
    json_error_t error;
    json_t *golden = json_load_file(AXONN_SOURCE_DIR "/tests/golden/tokenizer.json", 0, &error), *entry;
    size_t i;
    json_array_foreach(json_object_get(golden, "variants"), i, entry)
    {
        json_t *tok = json_object_get(entry, "tokenizer"), *list = json_object_get(tok, "added_tokens");
        if (tokenizers[k] || strcmp(json_string_value(json_object_get(entry, "name")), kinds[k].variant))
            continue;
        for (int a = 0; kinds[k].added[a]; a++)
            json_array_append_new(list, json_pack("{s:i, s:s, s:b}", "id", 900 + a, "content",
                                                  kinds[k].added[a], "special", kinds[k].added[a][1] == '|'));
        char *text = json_dumps(tok, 0);
        if (!text ||
            ax_tokenizer_load(fuzz_file("tokenizer.json", text, strlen(text)), &tokenizers[k]) != AX_OK ||
            (kinds[k].own && ax_tokenizer_set_chat_template(tokenizers[k], kinds[k].own) != AX_OK) ||
            ax_chat_create(tokenizers[k], NULL, &chats[k]) != AX_OK)
            abort();
        free(text);
    }
    json_decref(golden);
}

static void check_encoding(const ax_tokenizer *tok, ax_chat_text *text)
{
    ax_encoder *encoder;
    ax_ids ids = {0};
    ax_buf mask = {0};
    if (ax_encoder_create(tok, &encoder) != AX_OK)
        abort();
    if (fuzz_read(ax_chat_encode(encoder, text, &ids, &mask))) {
        const ax_text_part *parts = (const void *)text->parts.data;
        for (size_t i = 0; i < text->parts.size / sizeof *parts; i++)
            FUZZ_HOLDS(!parts[i].strict || !parts[i].target);
        FUZZ_HOLDS(mask.size == ids.size && text->part.size == ids.size);
        for (size_t i = 0; i < ids.size; i++) {
            FUZZ_HOLDS(!ax_tokenizer_is_special(tok, ids.data[i]) || !parts[text->part.data[i]].plain ||
                       ids.data[i] == 0 /* unk_token */);
            FUZZ_HOLDS(!i || text->part.data[i] >= text->part.data[i - 1]);
        }
    }
    ax_ids_fini(&ids);
    ax_buf_fini(&mask);
    ax_encoder_destroy(&encoder);
}

static void read_record(size_t k, const json_t *record)
{
    ax_chat_turns turns = {0};
    ax_chat_text text = {0};
    if ((json_is_array(record) || ax_chat_member(record, NULL)) &&
        fuzz_read(ax_chat_read(record, NULL, &turns)))
        for (int prompt = 0; prompt < 2; prompt++)
            if (fuzz_read(ax_chat_render(chats[k], &turns, prompt, &text)))
                check_encoding(tokenizers[k], &text);
    ax_chat_turns_fini(&turns);
    ax_chat_text_fini(&text);
}

void fuzz_one(const fuzz_part *part, int n)
{
    json_t *record;
    (void)n;
    if (!part->size)
        return;
    size_t k = (unsigned char)part->data[0] % KINDS;
    if (!tokenizers[k])
        load(k);
    if (!fuzz_read(ax_json_parse("record", part->data + 1, part->size - 1, JSON_ALLOW_NUL, &record)))
        return;
    read_record(k, record);
    json_decref(record);
}
