/* The program of bench/code: its prompts, its scores of given results, and what it refuses. (What it does
 * with samples: test_judge.c.) */
#include "cli/cli_test.h"

#define JUDGE AXONN_BUILD_DIR "/judge "

static void prints(const char *command, int code, const char *said)
{
    ax_buf out = {0};
    char line[1024];
    snprintf(line, sizeof line, "cd '%s' && %s 2>&1", AXONN_BUILD_DIR, command);
    const int got = shell(line, &out);
    if (got != code)
        fail_msg("%s: exit code %d, not %d:\n%s", command, got, code, out.data);
    assert_contains(out.data, said);
    ax_buf_fini(&out);
}

static void prompts_are_one_a_line(void **state)
{
    (void)state;
    prints(JUDGE "prompts | grep -c '^{\"id\":\"[a-z_]*/[a-z+]*\",.*\"prompt\":\"#include'", 0, "48\n");
    prints(JUDGE "prompts --kind fft --way mpi | grep -c mpi.h", 0, "1\n");
    prints(JUDGE "solutions wrong --way omp | grep -c '\"sample\":0'", 0, "12\n");
    prints(JUDGE "prompts --kind fftw", 2, "there are no problems of the kind \"fftw\"");
}

/* Two prompts with 2 of 4 and 4 of 4 good samples: pass@1 is (1/2 + 1)/2, pass@2 (1 - 1/6 + 1)/2; of the 8
 * samples one does not compile: build@1 is (3/4 + 1)/2. */
static void scores_are_those_of_the_results(void **state)
{
    (void)state;
#define ONE(ID, WAY, RESULT)                                                                                 \
    "{\\\"id\\\":\\\"" ID "\\\",\\\"kind\\\":\\\"sort\\\",\\\"way\\\":\\\"" WAY                              \
    "\\\",\\\"result\\\":\\\"" RESULT "\\\"}\\n"
    prints("printf \"" ONE("sort/omp", "omp", "passed") ONE("sort/omp", "omp", "wrong")
               ONE("sort/omp", "omp", "passed") ONE("sort/omp", "omp", "not built")
                   ONE("sort/mpi", "mpi", "passed") ONE("sort/mpi", "mpi", "passed")
                       ONE("sort/mpi", "mpi", "passed") ONE("sort/mpi", "mpi", "passed") "\" >judge.results",
           0, "");
    prints(JUDGE "score judge.results --k 1,2,5 --json | grep '\"group\":\"all\"'", 0,
           "\"prompts\":2,\"k\":1,\"build\":0.875,");
    prints(JUDGE "score judge.results --k 1 --json | grep '\"group\":\"all\"'", 0, "\"pass\":0.75,");
    prints(JUDGE "score judge.results --k 2 --json | grep '\"group\":\"all\"'", 0,
           "\"pass\":0.91666666666666");
    prints(JUDGE "score judge.results --k 2 --json | grep '\"group\":\"omp\"'", 0,
           "\"pass\":0.83333333333333");
    prints(JUDGE "score judge.results --k 5", 0, "a prompt has fewer samples");
    prints("echo '{\"id\": 1}' >judge.results; " JUDGE "score judge.results", 4,
           "judge.results:1: not a result");
}

static void mistakes_are_listed(void **state)
{
    (void)state;
    prints("printf '%s\\n' '{\"settings\": 1}' '{\"id\": \"sort/cuda\", \"text\": \"\"}' '{\"id\": "
           "\"sort/omp\"}' "
           "'{\"id\": \"sort/omp\", \"text\": \"\\u0000}\"}' '{\"id\": \"sort/omp\", \"text\": \"}\"}' "
           ">judge.samples; "
           "rm -f judge.out; " JUDGE "run judge.samples --out judge.out",
           4, "judge.samples:2: \"id\" is not that of a prompt");
    prints(JUDGE "run judge.samples --out judge.out", 4, "judge.samples:3: has no \"text\"");
    prints("test ! -e judge.out && " JUDGE "run judge.samples", 2, "--out");
    prints("touch judge.out; echo '{\"id\": \"sort/omp\", \"text\": \"}\"}' >judge.samples; " JUDGE
           "run judge.samples --out judge.out",
           2, "cannot make \"judge.out\"");
    prints(JUDGE "run --help", 0, "judge run: judge samples and print scores");
    prints(JUDGE "judge", 2, "there is no judge judge: prompts, solutions, run or score");
    prints("rm -f judge.samples judge.results judge.out", 0, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_are_one_a_line),
        cmocka_unit_test(scores_are_those_of_the_results),
        cmocka_unit_test(mistakes_are_listed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
