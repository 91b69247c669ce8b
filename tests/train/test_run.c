/* Runs in which something is wrong or unusual: numbers that are not finite, data that is missing or does not
 * fit the model, an existing model to start from, a full or read-only disk, too little memory. */
#include "train/run_test.h"

#include <dlfcn.h>
#include <math.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#define GOLDEN AXONN_SOURCE_DIR "/tests/golden/gpt2/tanh"
#define FROM_KEYS OTHER_KEYS "data.train=from.tok model.seq_len=16 "

static char *log_after(int code, const char *keys)
{
    run_expect(code, NULL, "%s", keys);
    return text_of("log");
}

/* ---- not finite ---------------------------------------------------------------------------------- */

static void count_rows(const char *run, int *skipped, int *null_losses, int *rows)
{
    char *text = metrics_of(run, true);
    *skipped = *null_losses = *rows = 0;
    for (char *at = text; (at = strstr(at, "\"step\"")); at++)
        ++*rows;
    for (char *at = text; (at = strstr(at, "\"skipped\": true")); at++)
        ++*skipped;
    for (char *at = text; (at = strstr(at, "\"loss\": null")); at++)
        ++*null_losses;
    free(text);
}

/* With a NaN in the initial weights the run stops, and the message names the weights, not the gradients. */
static void a_weight_is_not_finite(void **state)
{
    (void)state;
    ax_st *st;
    int skipped, nulls, rows;
    sh("rm -rf run poison && cp -r " GOLDEN " poison");
    OK(ax_st_open("poison/model.safetensors", &st));
    const ax_st_array *a = ax_st_find(st, "transformer.h.1.mlp.c_fc.weight");
    a = a ? a : ax_st_find(st, "h.1.mlp.c_fc.weight");
    assert_non_null(a);
    sh("printf '\\377\\377\\377\\177' | dd of=poison/model.safetensors bs=1 seek=%lld conv=notrunc "
       "2>/dev/null",
       (long long)a->offset + 4 * 17);
    ax_st_close(&st);
    run_expect(6, "step 1: the weights of h.1.mlp.", FROM_KEYS "model.from=poison");
    char *log = text_of("log");
    assert_non_null(strstr(log, "not finite (loss nan, gradient norm nan); the step was not applied"));
    assert_non_null(strstr(log, "there is no checkpoint yet"));
    free(log);
    /* train.nonfinite=skip does not help: no later step could be applied either. */
    run_expect(6, "step 1: the weights of h.1.mlp.",
               FROM_KEYS "model.from=poison train.nonfinite=skip train.steps=3 run.dir=run2");
    count_rows("run2", &skipped, &nulls, &rows);
    assert_true(skipped == 1 && nulls == 1 && rows == 1);
}

/* With a learning rate that is far too large a later step stops the run. The checkpoint is fine: with a
 * smaller rate the run continues from it. */
static void a_gradient_is_not_finite(void **state)
{
    (void)state;
    sh("rm -rf run");
    run_expect(6, "the newest checkpoint is that of step ",
               BASE_KEYS "optim.lr=1e25 optim.schedule=constant");
    char *log = text_of("log");
    assert_non_null(strstr(log, "error: step "));
    assert_true(strstr(log, "the gradient of ") || strstr(log, "the weights of "));
    free(log);
    /* The same with train.nonfinite=skip: the run reaches its end and logs which steps were not applied. */
    int skipped, nulls, rows;
    sh("rm -rf run");
    run_expect(0, "is skipped: the ", BASE_KEYS "optim.lr=1e25 optim.schedule=constant train.nonfinite=skip");
    count_rows("run", &skipped, &nulls, &rows);
    assert_true(skipped > 0 && skipped < 6 && rows == 6);
}

/* ---- what a failed start leaves behind ----------------------------------------------------------- */

/* What the failed start made is gone, and what was there before it stays. */
static void a_failed_start_leaves_nothing(void **state)
{
    (void)state;
    make_tokens("wide.tok", 100, 1000, 1);
    sh("rm -rf run deep kept && echo '{\"text\": 1' > bad.jsonl && mkdir -p kept/below");
    run_expect(4, "wide.tok", BASE_KEYS "data.train=wide.tok");
    assert_false(ax_path_exists("run"));
    run_expect(4, "wide.tok", BASE_KEYS "data.train=wide.tok run.dir=deep//in/run ranks=2 grid.data=2");
    assert_false(ax_path_exists("deep"));
    run_expect(4, "bad.jsonl",
               BASE_KEYS "data.tokenizer=tok model.vocab=300 data.train=bad.jsonl run.dir=deep/run");
    assert_false(ax_path_exists("deep")); /* nor deep/run/data, where its token file was to be */
    run_expect(4, "wide.tok", BASE_KEYS "data.train=wide.tok run.dir=kept/below/run");
    assert_true(count_files("kept") == 1 && count_files("kept/below") == 0);
    sh("mkdir kept/below/data");
    run_expect(4, "wide.tok", BASE_KEYS "data.train=wide.tok run.dir=kept/below");
    assert_true(count_files("kept/below") == 1 && ax_path_is_dir("kept/below/data"));
    sh("touch kept/below/lock");
    run_expect(4, "wide.tok", BASE_KEYS "data.train=wide.tok run.dir=kept/below");
    assert_int_equal(count_files("kept/below"), 2);
}

/* Token files stay: the next start does not tokenize the same text again. So does a run. */
static void a_failed_start_leaves_token_files_and_runs(void **state)
{
    (void)state;
    make_tokens("wide.tok", 400, 1000, 1);
    sh("rm -rf run");
    const char *keys = BASE_KEYS "data.tokenizer=tok model.vocab=300 data.train=text.txt train.steps=1 ";
    run_expect(4, "wide.tok", "%s data.valid=wide.tok", keys);
    assert_true(count_files("run") == 1 && count_files("run/data") == 1);
    run_expect(0, "done: step 1", "%s", keys);
    int files = count_files("run");
    run_expect(4, "wide.tok", "%s data.valid=wide.tok", keys);
    assert_int_equal(count_files("run"), files);
}

/* ---- data and tokenizer -------------------------------------------------------------------------- */

/* Writes a file of 16-bit tokens without a header; one of them is `odd`. */
static void make_bin(const char *path, int64_t tokens, uint16_t odd)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    for (int64_t i = 0; i < tokens; i++) {
        uint16_t token = i == tokens / 2 ? odd : (uint16_t)(i % 50);
        assert_int_equal(fwrite(&token, sizeof token, 1, file), 1);
    }
    fclose(file);
}

static void data_that_cannot_be_used(void **state)
{
    (void)state;
    static const struct {
        int code;
        const char *keys, *said;
    } cases[] = {
        {4, "data.train=nowhere.tok", "nowhere.tok"},
        {4, "data.valid=nowhere.tok", "nowhere.tok"},
        {4, "data.train=wide.tok", "wide.tok"},
        {4, "data.train=odd.bin data.order=sequential train.global_batch=32 train.micro_batch=32", "odd.bin"},
        {4, "data.train=short.tok", "short.tok has fewer than two tokens: there is nothing to learn"},
        {2, "data.long=drop", "data.long: has an effect only where a sample holds whole documents"},
        {4, "data.train=torn.tok", "torn.tok"},
        {2, "data.train=text.txt", "data.tokenizer"},
        {4, "data.tokenizer=nowhere", "nowhere"},
        {2, "data.tokenizer=tok", "model.vocab: must be at least 280, the size of the tokenizer's"},
    };
    make_tokens("wide.tok", 100, 1000, 1);
    ax_token_writer *writer;
    OK(ax_token_writer_create("short.tok", VOCAB, -1, 0, &writer));
    OK(ax_token_writer_add(writer, (int32_t[]){1}, 1, 1));
    OK(ax_token_writer_finish(&writer, NULL));
    make_bin("odd.bin", 600, 77);
    sh("head -c 2000 train.tok > torn.tok");
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        sh("rm -rf run");
        run_expect(cases[i].code, cases[i].said, BASE_KEYS "%s", cases[i].keys);
        char *log = text_of("log");
        assert_non_null(strstr(log, "error: "));
        free(log);
    }
}

/* Text is tokenized once, into run.dir. The tokenizer is copied into the checkpoints. */
static void text_is_tokenized_by_the_run(void **state)
{
    (void)state;
    sh("rm -rf run");
    const char *keys = BASE_KEYS "data.tokenizer=tok model.vocab=300 data.train=text.txt data.valid=text.txt "
                                 "train.steps=2";
    run_expect(0, "bits per byte", "%s", keys);
    assert_true(ax_path_exists("run/ckpt/step-2/tokenizer.json"));
    run_expect(0, "done: step 3", "%s train.steps=3", keys);
    sh("echo more >> text.txt"); /* changes the data */
    run_expect(2, "data.train was", "%s train.steps=4", keys);
}

static double first_number(const char *path, const char *key)
{
    char *text = text_of(path), *at = strstr(text, key);
    assert_non_null(at);
    double value = strtod(at + strlen(key), NULL);
    free(text);
    return value;
}

/* mem_bytes is the memory of the steps, although tokenizing took more. */
static void memory_is_that_of_the_steps(void **state)
{
    (void)state;
    if (SANITIZED) /* a sanitizer's tables are not in the plan; text_is_tokenized_by_the_run does the same */
        skip();
    sh("rm -rf run && for i in $(seq 30000); do echo \"$i: $((i * 7919 %% 10007)) of the lines\"; done > "
       "lines.txt && for i in $(seq 16); do cat lines.txt; done > much.txt && rm lines.txt");
    run_expect(0, NULL,
               BASE_KEYS "data.tokenizer=tok model.vocab=300 data.train=much.txt run.checkpoint_interval=0");
    const char *rows = "run/metrics.jsonl";
    double planned = first_number(rows, "\"mem_planned\":"), base = first_number(rows, "\"mem_baseline\":"),
           peak = first_number(rows, "\"mem_bytes\": ");
    print_message("planned %.1f MiB, measured %.1f MiB\n", planned / 1048576, (peak - base) / 1048576);
    assert_true(fabs(peak - base - planned) < 0.01 * planned + 8 * 1048576);
}

/* Writes 100 documents of one token, then one of 200 tokens, each with an end token. */
static void make_sorted(const char *path)
{
    ax_token_writer *writer;
    int32_t token[200] = {0};
    OK(ax_token_writer_create(path, VOCAB, VOCAB - 1, 0, &writer));
    for (int i = 0; i < 100; i++)
        OK(ax_token_writer_add(writer, token, 1, 1));
    OK(ax_token_writer_add(writer, token, 200, 200));
    OK(ax_token_writer_finish(&writer, NULL));
}

/* Evaluates rows 0, 6, 12 and 18 of 25, which have 8, 8, 12 and 16 targets. The evaluation before the first
 * step is not repeated by a resumed run. */
static void evaluation_of_a_part(void **state)
{
    (void)state;
    sh("rm -rf run");
    make_sorted("sorted.tok");
    const char *keys = BASE_KEYS "data.valid=sorted.tok run.eval_batches=2 run.eval_start=true ";
    run_expect(0, "step 0 | eval loss", "%s train.steps=3", keys);
    run_expect(0, "step 4 | eval loss", "%s train.steps=4", keys);
    char *metrics = metrics_of("run", true), *at = metrics;
    int evaluations = 0;
    for (; (at = strstr(at, "\"eval_loss\"")); at++, evaluations++)
        assert_true(strstr(at, "\"targets\": 44") < strchr(at, '\n'));
    assert_int_equal(evaluations, 3);
    free(metrics);
}

/* ---- an existing model --------------------------------------------------------------------------- */

static void from_an_existing_model(void **state)
{
    (void)state;
    sh("rm -rf run");
    run_expect(0, "done: step 6", FROM_KEYS "model.from=" GOLDEN);
    ax_ckpt_diff *diff;
    OK(ax_ckpt_diff_create(GOLDEN, "run", NULL, 0, &diff));
    for (int i = 0; i < diff->n; i++)
        if (diff->row[i].kind == AX_DIFF_ONLY_A || diff->row[i].kind == AX_DIFF_SHAPE)
            fail_msg("%s is not in the checkpoint as it was in the model", diff->row[i].key);
    ax_ckpt_diff_destroy(&diff);
    /* Continues from the run's own checkpoints. */
    run_expect(0, "run/ckpt/step-6 after step 6", FROM_KEYS "train.steps=7 model.from=" GOLDEN);
    /* model.from may be a run directory. */
    run_expect(0, "done: step 6", FROM_KEYS "run.dir=run3 model.from=run");
}

static void keys_that_contradict_the_model(void **state)
{
    (void)state;
    sh("rm -rf run");
    char *log =
        log_after(2, FROM_KEYS "model.layers=9 model.hidden=40 model.activation=gelu model.seq_len=25 "
                               "model.experts=4 "
                               "model.from=" GOLDEN);
    static const char *const said[] = {"model.layers: must be 2, as in model.from; leave the key out",
                                       "model.hidden: must be 20, as in model.from",
                                       "model.activation: must be the activation of the model in model.from",
                                       "model.experts: the model in model.from has no experts: leave the",
                                       "model.seq_len: must be at most 24, the number of positions"};
    for (size_t i = 0; i < AX_COUNT(said); i++)
        if (!strstr(log, said[i]))
            fail_msg("\"%s\" is not in:\n%s", said[i], log);
    free(log);
    assert_false(ax_path_exists("run")); /* nothing was written */
    run_expect(0, NULL, FROM_KEYS "model.layers=2 model.dropout=0.3 model.from=" GOLDEN);
    run_expect(2, "more than one is given", FROM_KEYS "model.family=gpt2 model.from=" GOLDEN);
    run_expect(4, "nowhere", FROM_KEYS "model.from=nowhere");
}

/* A short trial of a configuration with a long warm-up. */
static void warm_up_longer_than_the_run(void **state)
{
    (void)state;
    sh("rm -rf run");
    run_expect(0, "optim.warmup (5 steps) is longer than the run (3): the learning rate only rises, to 0.006",
               BASE_KEYS "train.steps=3 optim.warmup=5");
    char *rows = metrics_of("run", true);
    assert_non_null(strstr(rows, "\"lr\": 0.002"));
    assert_non_null(strstr(rows, "\"lr\": 0.006"));
    free(rows);
}

/* A decay to 0 ends at the last step, which is here the only one. */
static void a_step_without_effect(void **state)
{
    (void)state;
    sh("rm -rf run");
    run_expect(0, "the run's only step has learning rate 0 and changes no weights",
               BASE_KEYS "train.steps=1 optim.warmup=0");
}

/* All paths that do not exist are reported, with their keys, before anything is created. */
static void inputs_that_are_missing(void **state)
{
    (void)state;
    static const char *const keys[] = {"data.train", "data.valid", "data.tokenizer", "train.resume"};
    sh("rm -rf run");
    char *log = log_after(4, BASE_KEYS "data.train=[train.tok,no-a] data.valid=no-b data.tokenizer=no-c "
                                       "train.resume=no-d");
    for (size_t i = 0; i < AX_COUNT(keys); i++) {
        char said[128];
        snprintf(said, sizeof said, "command line: %s: no such file or directory: %s/no-%c", keys[i],
                 scratch_dir, 'a' + (int)i);
        if (!strstr(log, said))
            fail_msg("\"%s\" is not in:\n%s", said, log);
    }
    assert_null(strstr(log, "memory:"));
    free(log);
    assert_false(ax_path_exists("run"));
    /* A device that is absent is in the same list. Without visible devices CUDA is absent everywhere. */
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    log = log_after(2, BASE_KEYS "device=cuda data.valid=no-b");
    assert_non_null(strstr(log, "\"cuda\" cannot be used here"));
    assert_non_null(strstr(log, "/no-b"));
    free(log);
    unsetenv("CUDA_VISIBLE_DEVICES");
    /* A pattern whose files cannot be read: the message names the file. */
    sh("mkdir -p packed; printf BZh91 >packed/a.txt.bz2");
    log = log_after(4, BASE_KEYS "data.train=packed/*.bz2");
    assert_non_null(strstr(log, "packed/a.txt.bz2"));
    assert_null(strstr(log, "no such file"));
    free(log);
    /* Only the first twenty missing paths of a long list are named. */
    char many[1024] = BASE_KEYS "data.train=[no-0";
    for (int i = 1; i < 50; i++)
        ax_text_add(many, sizeof many, ",no-%d", i);
    ax_text_add(many, sizeof many, "]");
    log = log_after(4, many);
    assert_non_null(strstr(log, "/no-19"));
    assert_null(strstr(log, "/no-20"));
    free(log);
}

/* ---- disks --------------------------------------------------------------------------------------- */

static void a_file_cannot_grow(void **state)
{
    (void)state;
    sh("rm -rf ref run");
    run_expect(0, NULL, BASE_KEYS "run.dir=ref");
    run_limited(4, "no checkpoint can be saved: its largest file has", RLIMIT_FSIZE, 20000, BASE_KEYS);
    assert_false(ax_path_exists("run"));
    /* No space for metrics.jsonl is an error. There is space for config.yaml, and for a checkpoint. */
    const char *tiny = BASE_KEYS "model.layers=1 model.hidden=3 optim.schedule=constant train.steps=2 ";
    char keys[1024];
    run_expect(0, NULL, "%s", tiny);
    snprintf(keys, sizeof keys, "%strain.steps=60 run.checkpoint_interval=0", tiny);
    run_limited(4, "metrics.jsonl", RLIMIT_FSIZE, 9000, keys);
    assert_true(ax_path_is_dir("run/ckpt/step-2"));
}

static double fake_space = -1; /* free bytes of each disk, as the library sees them; below 0: what is free */

int statvfs(const char *path, struct statvfs *out)
{
    int (*real)(const char *, struct statvfs *) =
        (int (*)(const char *, struct statvfs *))(uintptr_t)dlsym(RTLD_NEXT, "statvfs");
    int result = real(path, out);
    if (fake_space >= 0)
        out->f_bavail = (fsblkcnt_t)(fake_space / (double)out->f_frsize);
    return result;
}

/* Expects this log of a run whose disk has room for `checkpoints` checkpoints, of about 255 KiB each. */
static void run_in_space(double checkpoints, int code, const char *said, const char *keys)
{
    fake_space = checkpoints * 255 * 1024;
    run_expect(code, said, "%s", keys);
    fake_space = -1;
}

/* A run that cannot save a checkpoint ends before step 1, and one that cannot keep as many as it is asked to
 * says so. It adds six, or with keep_latest: 2 three at a time, because the oldest is removed after a save.
 */
static void too_little_room_for_checkpoints(void **state)
{
    (void)state;
    sh("rm -rf run");
    run_in_space(0.5, 4, "run.dir: no space in ", BASE_KEYS);
    assert_false(ax_path_exists("run"));
    run_in_space(2.5, 0, "room for 2 of the 6 checkpoints that this run adds to it", BASE_KEYS);
    sh("rm -r run");
    run_in_space(1.5, 0, "the save of step 2 will fail", BASE_KEYS "run.keep_latest=2");
    sh("rm -r run/ckpt/step-6 && echo step-5 > run/latest");
    run_in_space(1.5, 0, "done: step 6", BASE_KEYS "run.keep_latest=2");
    char *log = text_of("log");
    assert_null(strstr(log, "has room for"));
    free(log);
    sh("rm -r run");
    run_in_space(2.5, 0, "or set run.keep_latest: 1", BASE_KEYS "run.keep_latest=2");
    sh("rm -r run");
    run_in_space(3.5, 0, "done: step 6", BASE_KEYS "run.keep_latest=2");
    log = text_of("log");
    assert_null(strstr(log, "has room for"));
    free(log);
    sh("rm -r run");
}

/* Mounts a file system of `kib` KiB on run/. If that is not possible, prints the reason and returns false. */
static bool mount_run(int kib)
{
    char options[64];
    snprintf(options, sizeof options, "size=%dk", kib);
    sh("rm -rf run && mkdir run");
    if (!geteuid() && !mount("none", "run", "tmpfs", 0, options))
        return true;
    print_message("skipped: no file system can be mounted here%s\n", geteuid() ? " but by root" : "");
    return false;
}

static void a_full_disk(void **state)
{
    (void)state;
    if (!mount_run(900))
        skip();
    run_expect(4, "no space in ", BASE_KEYS); /* 255 KiB each */
    int64_t steps = last_step("run");
    assert_true(steps > 1);
    assert_int_equal(count_files("run/ckpt"), steps - 1);
    /* With free space again the run continues normally. */
    sh("rm -r run/ckpt/step-1 run/ckpt/step-2");
    run_expect(0, "resuming", BASE_KEYS "run.keep_latest=1");
    sh("rm -rf ref");
    run_expect(0, NULL, BASE_KEYS "run.dir=ref");
    same_checkpoint("ref/ckpt/step-6", "run/ckpt/step-6");
    same_text(metrics_of("ref", true), metrics_of("run", true));
    assert_int_equal(umount("run"), 0);
}

static void a_read_only_disk(void **state)
{
    (void)state;
    if (!mount_run(700))
        skip();
    assert_int_equal(mount("none", "run", "tmpfs", MS_REMOUNT | MS_RDONLY, ""), 0);
    run_expect(4, "cannot write in run.dir", BASE_KEYS);
    run_expect(4, "run/below", BASE_KEYS "run.dir=run/below");
    assert_int_equal(umount("run"), 0);
    sh("rm -rf run && echo > run");
    run_expect(4, "run", BASE_KEYS);
    sh("rm run");
}

/* ---- memory -------------------------------------------------------------------------------------- */

/* Too little memory is reported before anything is allocated, with settings that would fit. */
static void too_little_memory(void **state)
{
    (void)state;
    sh("rm -rf run");
    /* A model so deep that planning would take more than a minute is refused before it is planned. */
    run_expect(3, "parameters need at least 1875.0 PiB",
               BASE_KEYS "model.hidden=1048576 model.layers=10000 model.heads=1 model.seq_len=8");
    assert_false(ax_path_exists("run/ckpt"));
    /* A limit of the process counts like a small machine. (Sanitizers reserve terabytes.) */
    if (!SANITIZED) {
        run_limited(3, "train.micro_batch: 256 would fit (", RLIMIT_AS, (rlim_t)264 << 20,
                    BASE_KEYS "train.global_batch=1024 train.micro_batch=1024 model.hidden=240");
        run_limited(3, "are scratch memory of the 64 threads of each rank: set `threads` lower", RLIMIT_AS,
                    (rlim_t)264 << 20, BASE_KEYS "device=cpu threads=64");
        run_limited(0, "train.recompute auto chose 1: ", RLIMIT_AS, (rlim_t)264 << 20,
                    BASE_KEYS "train.global_batch=256 train.micro_batch=256 model.hidden=96 model.layers=12 "
                              "train.steps=1 train.recompute=auto");
        sh("rm -r run");
        run_expect(0, "train.recompute auto chose none: ", BASE_KEYS "train.steps=1 train.recompute=auto");
        sh("rm -r run");
    }
    char keys[1024];
    int64_t free_bytes = ax_memory_available(), rows = 1 << 12;
    snprintf(keys, sizeof keys, BASE_KEYS "model.seq_len=%lld", (long long)(free_bytes / (24 * 4 * 20)));
    run_expect(
        3,
        "even train.micro_batch: 1 with train.recompute: full with offload.optimizer: file does not fit: "
        "divide the model",
        "%s", keys);
    /* Activations of about eight times the free memory, in 64 rows: a smaller micro-batch fits. */
    int64_t seq_len = 8 * free_bytes / (rows * 24 * 4 * 60);
    snprintf(keys, sizeof keys, BASE_KEYS "model.seq_len=%lld train.global_batch=%lld train.micro_batch=%lld",
             (long long)seq_len, (long long)rows, (long long)rows);
    char *log = log_after(3, keys);
    char *micro = strstr(log, "train.micro_batch: ");
    if (!micro || !strstr(log, " would fit (") || strstr(log, "even train"))
        fail_msg("no advice:\n%s", log);
    int64_t fits = strtoll(micro + strlen("train.micro_batch: "), NULL, 10);
    assert_true(fits > 0 && fits < rows && rows % fits == 0);
    free(log);
}

/* The plan is compared with runtime.device_memory to the byte, and recomputation is chosen within it. */
static void a_limit_of_device_memory(void **state)
{
    (void)state;
    static const char keys[] = BASE_KEYS "train.steps=1 run.checkpoint_interval=0 ";
    char limit[32];
    sh("rm -rf run");
    run_expect(0, "memory: ", "%s", keys);
    const int64_t planned = (int64_t)first_number("run/metrics.jsonl", "\"mem_planned\":");
    sh("rm -r run");
    run_expect(3, "runtime.device_memory allows only", "%sruntime.device_memory=%lld", keys,
               (long long)planned - 1);
    run_expect(3, ": train.micro_batch: 1 would fit (", "%sruntime.device_memory=%lld", keys,
               (long long)planned - 1);
    /* Each kind of change that fits is named, and if none does, those that fit together. */
    run_expect(3, "; or offload.optimizer: host would fit (", "%sruntime.device_memory=%lld", keys,
               (long long)planned - 1);
    sh("rm -rf run");
    run_expect(0, NULL, "%strain.micro_batch=1 offload.optimizer=host", keys);
    const int64_t least = (int64_t)first_number("run/metrics.jsonl", "\"mem_planned\":");
    sh("rm -r run");
    run_expect(3, ": train.micro_batch: 1 with offload.optimizer: host would fit (",
               "%sruntime.device_memory=%lld", keys, (long long)least);
    assert_false(ax_path_exists("run/metrics.jsonl"));
    run_expect(0, " (runtime.device_memory): weights ", "%sruntime.device_memory=%lld", keys,
               (long long)planned);
    sh("rm -r run");
    run_expect(0, "train.recompute auto chose 1: ", "%strain.recompute=auto runtime.device_memory=%lld", keys,
               (long long)planned - 1);
    sh("rm -r run");
    run_expect(2, "runtime.device_memory: must be from 0 ", "%sruntime.device_memory=-1", keys);
    run_expect(2, "runtime.device_memory: must be an integer", "%sruntime.device_memory=1GB", keys);
    snprintf(limit, sizeof limit, "%lld", (long long)planned - 1);
    setenv("AXONN_DEVICE_MEMORY", limit, 1);
    run_expect(3, "runtime.device_memory allows only", "%s", keys);
    unsetenv("AXONN_DEVICE_MEMORY");
}

/* Advice where buckets of offloaded state are in host memory, because the host updates for a GPU (here the
 * emulated one). */
static void a_limit_of_a_gpu_whose_state_the_host_updates(void **state)
{
    static const char plugins[] = AXONN_BUILD_DIR "/tests/cuda",
                      keys[] = BASE_KEYS "train.steps=1 run.checkpoint_interval=0 device=cuda "
                                         "offload.optimizer=host offload.update=host ";
    (void)state;
    if (!ax_path_exists(AXONN_BUILD_DIR "/tests/cuda/libaxonn_cuda.so"))
        skip();
    sh("rm -rf run");
    setenv("AXONN_PLUGINS", plugins, 1);
    setenv("AXONN_PLANS", "off", 1);
    run_expect(0, "memory: ", "%s", keys);
    const int64_t planned = (int64_t)first_number("run/metrics.jsonl", "\"mem_planned\":");
    sh("rm -r run");
    run_expect(3, "would fit (", "%sruntime.device_memory=%lld", keys, (long long)planned - 1);
    unsetenv("AXONN_PLUGINS");
    unsetenv("AXONN_PLANS");
}

static int tear_down(void **state)
{
    umount2("run", MNT_DETACH); /* if a test failed before it unmounted */
    return run_teardown(state);
}

static int set_up(void **state)
{
    if (run_setup(state))
        return -1;
    make_tokens("train.tok", VOCAB, 4000, 1);
    make_tokens("from.tok", 37, 3000, 2);
    make_tokenizer();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_weight_is_not_finite),
        cmocka_unit_test(a_gradient_is_not_finite),
        cmocka_unit_test(data_that_cannot_be_used),
        cmocka_unit_test(a_failed_start_leaves_nothing),
        cmocka_unit_test(a_failed_start_leaves_token_files_and_runs),
        cmocka_unit_test(text_is_tokenized_by_the_run),
        cmocka_unit_test(memory_is_that_of_the_steps),
        cmocka_unit_test(evaluation_of_a_part),
        cmocka_unit_test(from_an_existing_model),
        cmocka_unit_test(keys_that_contradict_the_model),
        cmocka_unit_test(warm_up_longer_than_the_run),
        cmocka_unit_test(a_step_without_effect),
        cmocka_unit_test(inputs_that_are_missing),
        cmocka_unit_test(a_file_cannot_grow),
        cmocka_unit_test(too_little_room_for_checkpoints),
        cmocka_unit_test(a_full_disk),
        cmocka_unit_test(a_read_only_disk),
        cmocka_unit_test(too_little_memory),
        cmocka_unit_test(a_limit_of_device_memory),
        cmocka_unit_test(a_limit_of_a_gpu_whose_state_the_host_updates),
    };
    return cmocka_run_group_tests_name("train.run", tests, set_up, tear_down);
}
