/* cli: time until a training run begins its first step. Label bench: no other test runs at the same time.
 * What other programs of a busy machine take of the processors is subtracted. */
#include "axonn/data.h"
#include "cli/cli_test.h"
#include "support/sanitized.h"

#include <jansson.h>
#include <math.h>
#include <sys/resource.h>
#include <unistd.h>

enum { VOCAB = 8192, TRIES = 5 };

/* Seconds of processor time: `wanted` by all processes of this machine since it started, whether they got it
 * or the hypervisor gave it to other guests (/proc/stat), and `own`, used by the children of this process. */
typedef struct usage {
    double wanted, own;
} usage;

static usage usage_now(void)
{
    double t[8] = {0}; /* user, nice, system, idle, waiting, interrupts (two), stolen by other guests */
    FILE *file = fopen("/proc/stat", "r");
    struct rusage r;
    assert_non_null(file);
    assert_int_equal(fscanf(file, "cpu %lf %lf %lf %lf %lf %lf %lf %lf", t, t + 1, t + 2, t + 3, t + 4, t + 5,
                            t + 6, t + 7),
                     8);
    fclose(file);
    assert_int_equal(getrusage(RUSAGE_CHILDREN, &r), 0);
    return (usage){(t[0] + t[1] + t[2] + t[5] + t[6] + t[7]) / (double)sysconf(_SC_CLK_TCK),
                   (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) +
                       1e-6 * (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec)};
}

/* Returns the fraction of the wanted processor time that other processes and other guests got. */
static double lost_between(usage a, usage b)
{
    double wanted = b.wanted - a.wanted;
    return wanted > 0 ? fmin(fmax(0, 1 - (b.own - a.own) / wanted), 0.99) : 0;
}

static double parameters_and_time(double *time)
{
    char *text;
    size_t size;
    assert_int_equal(ax_file_read("start/metrics.jsonl", &text, &size), AX_OK);
    *strchr(text, '\n') = 0;
    json_t *row = json_loads(text, 0, NULL);
    double parameters = json_number_value(json_object_get(row, "parameters"));
    *time = json_number_value(json_object_get(row, "time"));
    json_decref(row);
    free(text);
    return parameters;
}

/* Measures from the start of the process to the first step, for a model of 10 M parameters on a token file.
 * The row of metrics.jsonl that describes the run is the last thing written before that step. Sanitizers get
 * more time. */
static void training_starts_in_half_a_second(void **state)
{
    (void)state;
    double best = 1e9;
    ax_buf out = {0};
    for (int i = 0; i < TRIES && best > 0.25; i++) {
        usage before = usage_now();
        double start = ax_wall_clock(), first;
        assert_int_equal(shell("rm -rf start && " AXONN " train ten.yaml 2>&1", &out), 0);
        double parameters = parameters_and_time(&first), lost = lost_between(before, usage_now());
        assert_true(parameters > 9.5e6 && parameters < 10.5e6);
        best = fmin(best, (first - start) * (1 - lost));
        print_message("%.0f ms to the first step, %.0f %% of the processors' time lost to others\n",
                      (first - start) * 1e3, lost * 1e2);
    }
    ax_buf_fini(&out);
    assert_true(best < (SANITIZED ? 10 : 0.5));
}

static ax_status make_tokens(const char *path)
{
    ax_token_writer *writer;
    int32_t tokens[2000];
    AX_TRY(ax_token_writer_create(path, VOCAB, -1, 0, &writer));
    for (int i = 0; i < 2000; i++)
        tokens[i] = (i * 37) % VOCAB;
    for (int i = 0; i < 4; i++)
        AX_TRY(ax_token_writer_add(writer, tokens, 2000, 2000));
    return ax_token_writer_finish(&writer, NULL);
}

static int set_up(void **state)
{
    static const char config[] =
        "model: {family: gpt2, layers: 6, hidden: 320, heads: 5, vocab: 8192, seq_len: 256}\n"
        "data: {train: ten.tok}\n"
        "train: {steps: 1, global_batch: 1, micro_batch: 1}\n"
        "run: {dir: start, checkpoint_interval: 0}\n";
    (void)state;
    if (chdir(AXONN_BUILD_DIR) || ax_remove_tree("cli-start") != AX_OK || ax_mkdirs("cli-start") != AX_OK ||
        chdir("cli-start") || make_tokens("ten.tok") != AX_OK)
        return 1;
    FILE *file = fopen("ten.yaml", "w");
    return !file || fputs(config, file) < 0 || fclose(file);
}

static int tear_down(void **state)
{
    (void)state;
    return chdir("..") || ax_remove_tree("cli-start") != AX_OK;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(training_starts_in_half_a_second)};
    return cmocka_run_group_tests_name("cli.start", tests, set_up, tear_down);
}
