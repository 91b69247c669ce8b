/* The configuration of a run. The first part is the YAML file, the others are key=value words. An accepted
 * configuration is written, and must read back as the same. */
#include "axonn/config.h"
#include "fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

/* Adds a YAML file with every key and its default. */
static void seed_defaults(void)
{
    char *words[] = {(char *)"data.train=x",   (char *)"model.family=gpt2", (char *)"model.layers=2",
                     (char *)"model.hidden=8", (char *)"model.heads=2",     (char *)"model.vocab=7"};
    ax_config config;
    ax_buf text = {0};
    FUZZ_HOLDS(ax_config_load(NULL, words, AX_COUNT(words), AX_CONFIG_TO_TRAIN, &config) == AX_OK);
    FUZZ_HOLDS(ax_config_dump(&config, &text) == AX_OK);
    fuzz_seed((fuzz_part[]){{text.data, text.size}, {NULL, 0}});
    ax_buf_fini(&text);
    ax_config_fini(&config);
}

void fuzz_make_seeds(void)
{
    seed_defaults();
    fuzz_seed_texts((const char *[]){
        "model: {family: gpt2, layers: 4, hidden: 128, heads: 4, vocab: 4096, seq_len: 128}\n"
        "data:\n  train: [{path: a.tok, weight: 2}, b.tok]\n  valid: c.tok\n  tokenizer: tok\n"
        "train: {steps: 200, global_batch: 16, micro_batch: 8, precision: bf16}\n"
        "optim: {lr: 2.0e-3, warmup: 20, betas: [0.9, 0.95]}\n",
        "train.steps=3", "optim.warmup=2%", "data.train=[a,b]", NULL});
    fuzz_seed_texts(
        (const char *[]){"model: {family: gpt2}\ndata: {train: x}\nruntime: {isa: generic, log: trace, "
                         "plans: p, ranks_per_node: 3}\n",
                         "runtime.shared_memory=off", "runtime.plugins=[", NULL});
    fuzz_seed_texts(
        (const char *[]){"model: &m\n  from: model\n  dropout: 0.1\ndata: {train: x.txt}\nrun: {dir: r, "
                         "keep_latest: 4294967297}\ntrain: {steps: 1_0}\ngrid: {x: 2, data: 999999937}\n",
                         "grid.x=4", "run.dir=\xff", NULL});
    fuzz_seed_texts(
        (const char *[]){"model: {family: gpt2}\ndata: {train: x}\n", "runtime.plugins=\xff", NULL});
    fuzz_seed_texts((const char *[]){"a: [[[[[[[[\n", NULL});
    fuzz_seed_texts(
        (const char *[]){"data.train: x\nmodel.family: gpt2\n? [complex]\n: *anchor\n--- !tag\n...\n", NULL});
}

/* Two equal configurations must print equally, or fail equally, if a value is not UTF-8. */
static void compare(const ax_config *a, const ax_config *b)
{
    ax_buf first = {0}, second = {0};
    bool prints = fuzz_read(ax_option_print(a->set, &first));
    FUZZ_HOLDS(fuzz_read(ax_option_print(b->set, &second)) == prints);
    FUZZ_HOLDS(first.size == second.size && (!first.size || !memcmp(first.data, second.data, first.size)));
    ax_buf_fini(&first);
    ax_buf_fini(&second);
}

/* Writes the runtime settings that a dump leaves out as words KEY=VALUE. Returns their number. */
static size_t print_settings(const ax_config *config, ax_buf words[AX_RUNTIME_COUNT])
{
    size_t n = 0;
    for (int id = 0; id < AX_RUNTIME_COUNT; id++) {
        const ax_option *row = &ax_runtime_options[id];
        if (!row->not_dumped)
            continue;
        FUZZ_HOLDS(ax_buf_printf(&words[n], "%s=", row->key) == AX_OK);
        FUZZ_HOLDS(ax_option_value(config->set, row->key, &words[n]) == AX_OK);
        n++;
    }
    return n;
}

static void dump_and_load(const ax_config *config, ax_config_use use)
{
    ax_buf text = {0}, settings[AX_RUNTIME_COUNT] = {{0}};
    char *words[AX_RUNTIME_COUNT];
    ax_config again;
    if (!fuzz_read(ax_config_dump(config, &text))) { /* a value is not UTF-8 */
        ax_buf_fini(&text);
        return;
    }
    const char *path = fuzz_file("dumped.yaml", text.data, text.size);
    size_t n = print_settings(config, settings);
    for (size_t i = 0; i < n; i++)
        words[i] = settings[i].data;
    FUZZ_HOLDS(ax_config_load(path, words, n, use, &again) == AX_OK);
    for (size_t i = 0; i < n; i++)
        ax_buf_fini(&settings[i]);
    compare(config, &again);
    ax_config_fini(&again);
    ax_buf_fini(&text);
}

void fuzz_one(const fuzz_part *part, int n)
{
    char *words[FUZZ_PARTS];
    ax_config config;
    const char *path = fuzz_file("config.yaml", part->data, part->size);
    for (int i = 1; i < n; i++)
        words[i - 1] = part[i].data;
    for (ax_config_use use = AX_CONFIG_TO_TRAIN; use <= AX_CONFIG_TO_MEASURE; use++) {
        if (fuzz_read(ax_config_load(path, words, (size_t)n - 1, use, &config))) {
            /* Numbers of an existing model are in the configuration only once the model's files are read. */
            if (!config.model.from && !config.model.config)
                dump_and_load(&config, use);
            (void)fuzz_read(ax_config_take_ranks(&config, 6));
        }
        ax_config_fini(&config);
    }
}
