/* cli: help of every verb, exit codes, unknown words, man page, completion, installation. */
#include "cli/cli_test.h"

#include <jansson.h>

static void exit_codes_and_messages(void **state)
{
    (void)state;
    static const struct {
        const char *arguments;
        int code;
        const char *says;
    } cases[] = {
        {"--version", 0, "axonn "},
        {"--help", 0, "Exit codes"},
        {"help", 0, "Verbs"},
        {"help help", 0, "--completion SHELL"},
        {"", 2, "axonn: error: a verb is missing"},
        {"--verbose", 2, "--verbose: a verb, such as train, must come first"},
        {"hepl", 2, "unknown verb \"hepl\"; did you mean help?"},
        {"tok", 2, "a second word must follow: one of train, encode, decode, check\nSee 'axonn tok --help'."},
        {"tok xyz", 2,
         "unknown verb \"xyz\"; there are train, encode, decode, check\nSee 'axonn tok --help'."},
        {"help --josn", 2, "--josn: unknown flag; there are --man, --completion"},
        {"info --josn", 2, "--josn: unknown flag; did you mean --json?"},
        {"xyzzy --help", 2, "unknown verb \"xyzzy\""},
        {"help --mann", 2, "--mann: unknown flag; did you mean --man?"},
        {"info", 0, "ref "},
        {"info", 0, "hwloc API "},
        {"info", 0, "compute threads by default (key `threads`), "},
        {"info --json", 0, "\"binding\":{\"cores\":"},
        {"ckpt diff --help", 0, "what A is compared with: a checkpoint"},
        {"tok encode --help", 0, "an empty text gives an empty line"},
        {"tok decode --help", 0, "default: standard input; no ids give"},
        {"eval --help", 0, "or a pattern ('*.bin')"},
        {"data build --help", 0, "or patterns ('*.txt')"},
        {"generate --help", 0, "sizes of the grid of ranks in one argument, e.g. x=2,data=2"},
        {"info --options", 0, "1152921504606846976; default: 0)"},
        {"info --options", 0, "optim.lr X"},
        {"info --json --options", 0, "\"key\":\"optim.lr\""},
        {"info --json --options", 0, "\"key\":\"optim.warmup\",\"type\":\"integer or percentage\""},
        {"info --json --options", 0, "\"key\":\"data.train\",\"type\":\"list of paths\""},
        {"help --completion", 2, "--completion: needs a value"},
        {"help --completion zsh", 2, "must be bash, not \"zsh\""},
        {"train data.train=a.tok train.steps=2", 2, "write CONFIG.yaml before KEY=VALUE"},
        {"plan ./data.train=a.tok", 2,
         "\"./data.train=a.tok\" stands in the place of the configuration file"},
    };
    ax_buf out = {0};
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        char command[512];
        snprintf(command, sizeof command, AXONN " %s 2>&1", cases[i].arguments);
        assert_int_equal(shell(command, &out), cases[i].code);
        assert_contains(out.data, cases[i].says);
    }
    ax_buf_fini(&out);
}

/* Errors leave standard output empty, and there is no colour without a terminal. */
static void errors_go_to_stderr_without_colour(void **state)
{
    (void)state;
    ax_buf out = {0};
    assert_int_equal(shell(AXONN " hepl 2>/dev/null", &out), 2);
    assert_int_equal(out.size, 0);
    assert_int_equal(shell(AXONN " --help", &out), 0);
    assert_null(strchr(out.data, '\033'));
    assert_int_equal(shell(AXONN " --help >/dev/full", &out), 4);
    ax_buf_fini(&out);
}

/* Each verb of the list has a help text with its usage. */
static void every_verb_has_help(void **state)
{
    (void)state;
    ax_buf list = {0}, out = {0};
    assert_int_equal(shell(AXONN
                           " --help | sed -n '/^Verbs/,/^$/{s/^  \\([a-z]*\\( [a-z][a-z]*\\)*\\)  .*/\\1/p}'",
                           &list),
                     0);
    int verbs = 0;
    char *save;
    for (char *name = strtok_r(list.data, "\n", &save); name; name = strtok_r(NULL, "\n", &save), verbs++) {
        char command[512], usage[128];
        snprintf(command, sizeof command, AXONN " %s --help", name);
        snprintf(usage, sizeof usage, "Usage\n  axonn %s", name);
        assert_int_equal(shell(command, &out), 0);
        assert_contains(out.data, usage);
        snprintf(command, sizeof command, AXONN " %s --no-such-flag 2>&1", name);
        assert_int_equal(shell(command, &out), 2);
        assert_contains(out.data, "--no-such-flag: unknown flag");
        snprintf(usage, sizeof usage, ".SS \"%s\"", name);
        assert_int_equal(shell(AXONN " help --man", &out), 0);
        assert_contains(out.data, usage);
    }
    assert_true(verbs >= 1);
    ax_buf_fini(&list);
    ax_buf_fini(&out);
}

static void completion_completes_words(void **state)
{
    (void)state;
    static const char script[] = "bash -c 'source " AXONN_BUILD_DIR "/axonn.bash; COMP_WORDS=(axonn %s); "
                                 "COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _axonn; echo ${COMPREPLY[@]}'";
    static const struct {
        const char *words, *reply;
    } cases[] = {{"hel", "help\n"},
                 {"help --ma", "--man\n"},
                 {"help --completion b", "bash\n"},
                 {"--ver", "--version\n"}};
    ax_buf out = {0};
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        char command[1024];
        snprintf(command, sizeof command, script, cases[i].words);
        assert_int_equal(shell(command, &out), 0);
        assert_string_equal(out.data, cases[i].reply);
    }
    ax_buf_fini(&out);
}

/* An installation works after it was moved to another directory. */
static void an_installation_can_be_moved(void **state)
{
    (void)state;
    static const char script[] =
        "set -e; rm -rf cli-install; cmake --install " AXONN_BUILD_DIR
        " --prefix cli-install >/dev/null; cd cli-install; "
        "bin/axonn --version >/dev/null; test -f include/axonn/base.h; test -f share/man/man1/axonn.1; "
        "test -f share/bash-completion/completions/axonn; test -n \"$(echo lib*/libaxonn.so.[0-9])\"; "
        "PKG_CONFIG_PATH=$(dirname $(find . -name axonn.pc)) pkg-config --cflags --libs axonn; cd ..; rm -rf "
        "cli-install";
    ax_buf out = {0};
    assert_int_equal(shell(script, &out), 0);
    assert_contains(out.data, "-laxonn");
    assert_contains(out.data, "include");
    ax_buf_fini(&out);
}

static void an_unknown_log_level_is_refused(void **state)
{
    ax_buf out = {0};
    (void)state;
    assert_int_equal(shell("AXONN_LOG=loud " AXONN " generate nothing 2>&1 >/dev/null", &out), 2);
    assert_contains(out.data, "error: AXONN_LOG: must be error, warn, info, debug or trace, not \"loud\"");
    ax_buf_fini(&out);
}

/* AXONN_ISA chooses the kernels; an instruction set that cannot run is refused before anything is done. */
static void axonn_isa_chooses_the_kernels(void **state)
{
    (void)state;
    ax_buf out = {0};
    assert_int_equal(shell("AXONN_ISA=generic " AXONN " info", &out), 0);
    assert_contains(out.data, "kernels     for generic; this processor can run: ");
    assert_int_equal(shell("AXONN_ISA=generic " AXONN " info --json", &out), 0);
    assert_contains(out.data, "\"kernels\":{\"isa\":\"generic\",\"can_run\":[");
    assert_int_equal(shell("AXONN_ISA=mmx " AXONN " info 2>&1", &out), 2);
    assert_contains(out.data, "AXONN_ISA: must be auto, ");
    assert_contains(out.data, "generic");
    ax_buf_fini(&out);
}

/* Verbs without a configuration take runtime settings as keys, which win over the variables. */
static void runtime_settings_are_arguments(void **state)
{
    (void)state;
    static const struct {
        const char *command;
        int code;
        const char *says;
    } cases[] = {
        {"AXONN_ISA=mmx " AXONN " info runtime.isa=generic", 0, "kernels     for generic;"},
        {AXONN " info runtime.isa=mmx", 2,
         "runtime.isa: must be auto, avx512_amx, avx512_bf16, avx512, avx2 or generic, not \"mmx\""},
        {AXONN " info runtime.iso=generic", 2, "runtime.iso: unknown key; did you mean runtime.isa?"},
        {"AXONN_LOG=loud " AXONN " generate nothing runtime.log=error", 4, "nothing"},
        {AXONN " help help runtime.log=debug", 0, "axonn: debug: version "},
        {AXONN " data check --end-id 3 runtime.log=debug nothing", 4, "axonn: debug: version "},
        {AXONN " tok train --input nothing runtime.log=debug --vocab 300 --out here", 4,
         "axonn: debug: version "},
        {AXONN " eval nothing runtime.pin=off grid.x=1 --data nothing", 4, "nothing"},
        {AXONN " selftest --help", 0, "runtime.NAME=VALUE"},
        {AXONN " train --help", 0, "runtime.ranks_per_node N"},
        {AXONN " info --options", 0, "runtime.isa WORD"},
        {AXONN " info --options", 0, "variable: AXONN_ISA)"},
        {AXONN " info --json --options", 0, "\"variable\":\"AXONN_SHARED_MEMORY\""},
        {AXONN " help --man", 0, ".B AXONN_RANKS_PER_NODE\nThe value of runtime.ranks_per_node"},
        {AXONN " help --completion bash", 0, " runtime.isa="},
    };
    ax_buf out = {0};
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        char command[512];
        snprintf(command, sizeof command, "%s 2>&1", cases[i].command);
        int code = shell(command, &out);
        if (code != cases[i].code)
            fail_msg("%s: exit code %d: %s", command, code, out.data);
        assert_contains(out.data, cases[i].says);
    }
    ax_buf_fini(&out);
}

static void grids_are_drawn(void **state)
{
    (void)state;
    ax_buf out = {0};
    assert_int_equal(shell(AXONN " info --grid x=2,data=2 --ranks-per-node 2", &out), 0);
    assert_contains(out.data, "4 ranks on 2 hosts, numbered x,y,z,pipe,data");
    assert_contains(out.data, "     3  host1               1    0    0    0    1");
    assert_contains(out.data, "one host      {0 1}  {2 3}");
    assert_contains(out.data, "2 hosts       {0 2}  {1 3}");
    assert_int_equal(
        shell(AXONN " info --grid x=2,data=2 --hosts a:3,b --order data,x,y,z,pipe --json", &out), 0);
    json_t *json = json_loads(out.data, 0, NULL), *groups = json_object_get(json, "groups");
    assert_int_equal(json_integer_value(json_object_get(json, "hosts")), 2);
    json_t *last = json_array_get(json_object_get(json, "ranks"), 3);
    assert_string_equal(json_string_value(json_object_get(last, "host")), "b");
    assert_int_equal(json_array_size(groups), 2);
    char *text = json_dumps(groups, JSON_COMPACT | JSON_SORT_KEYS);
    assert_string_equal(text, "[{\"axes\":\"x\",\"groups\":[[0,2],[1,3]],\"hosts\":2,\"size\":2},"
                              "{\"axes\":\"data\",\"groups\":[[0,1],[2,3]],\"hosts\":2,\"size\":2}]");
    free(text);
    json_decref(json);
    assert_int_equal(shell(AXONN " info --grid x=16,data=65536 --ranks-per-node 8", &out), 0);
    assert_contains(out.data, "1048576 ranks on 131072 hosts");
    assert_int_equal(shell(AXONN " info --grid x=2,data=4,expert=2 --ranks-per-node 4", &out), 0);
    assert_contains(out.data, "experts, and rows              one host      {0 2}  {1 3}  {4 6}  {5 7}");
    assert_contains(out.data, "inner width of the MLP, heads  one host      {0 1}");
    assert_int_equal(shell(AXONN " info --grid data=4,expert=3 2>&1", &out), 2);
    assert_contains(out.data, "expert=3 must divide data=4");
    assert_int_equal(shell(AXONN " info --grid w=2 2>&1", &out), 2);
    assert_contains(out.data, "grid.w: unknown key; did you mean grid.x?");
    assert_int_equal(shell(AXONN " info --grid x=4 --hosts a:1,b:2 2>&1", &out), 2);
    assert_contains(out.data, "the hosts have room for 3 ranks, the grid needs 4");
    assert_int_equal(shell(AXONN " info --grid x=4 --order x 2>&1", &out), 2);
    ax_buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exit_codes_and_messages),
        cmocka_unit_test(errors_go_to_stderr_without_colour),
        cmocka_unit_test(an_unknown_log_level_is_refused),
        cmocka_unit_test(every_verb_has_help),
        cmocka_unit_test(completion_completes_words),
        cmocka_unit_test(an_installation_can_be_moved),
        cmocka_unit_test(axonn_isa_chooses_the_kernels),
        cmocka_unit_test(runtime_settings_are_arguments),
        cmocka_unit_test(grids_are_drawn),
    };
    if (chdir(AXONN_BUILD_DIR))
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
