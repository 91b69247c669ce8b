/* The program `axonn`: finds the verb, reads its options and runs it. The resulting ax_status is the exit
 * code. */
#include "axonn/runtime.h"
#include "axonn/train.h"
#include "launch.h"
#include "process.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The words of the command line after the program's name; --ranks starts the same command again on the
 * ranks. */
static struct {
    size_t n;
    char *const *words;
} command;

static bool wants_help(size_t n, char *const *words)
{
    for (size_t i = 0; i < n && strcmp(words[i], "--") != 0; i++)
        if (!strcmp(words[i], "--help") || !strcmp(words[i], "-h"))
            return true;
    return false;
}

/* Runs the verb in this process. With --ranks, starts the verb on that number of ranks instead. */
static ax_status start_verb(const cli_verb *verb, const void *args)
{
    bool launch = false;
    if (!verb->keys) /* all runtime settings are known here, and are checked. A verb with configuration keys
                        checks them later, because its configuration file may set more of them */
        AX_TRY(cli_process_settings());
    if (verb->launches)
        AX_TRY(cli_launch_wanted(args, &launch));
    return launch ? cli_launch_run(args, verb, command.n, command.words) : verb->run(args);
}

/* Reads the words of the command line into `set`. For a verb without configuration keys, also sets the
 * runtime settings (key=value) among the words. */
static ax_status read_words(const cli_verb *verb, size_t n, char *const *words, ax_option_set *set)
{
    ax_runtime_values values;
    ax_option_set *keys;
    size_t synonyms;
    const ax_option_synonym *others = ax_config_synonyms(&synonyms);
    ax_option_take_synonyms(set, others, synonyms);
    AX_TRY(ax_option_set_create(ax_runtime_options, AX_RUNTIME_COUNT, &values, &keys));
    if (!verb->keys)
        ax_option_take_keys(set, keys);
    ax_status status = ax_option_read_flags(set, n, words);
    if (status == AX_OK)
        status = ax_option_finish(set);
    if (status == AX_OK)
        status = ax_option_finish(keys);
    if (status == AX_OK)
        status = ax_runtime_set_given(keys);
    ax_option_set_destroy(&keys);
    ax_option_fini(ax_runtime_options, AX_RUNTIME_COUNT, &values);
    return status;
}

static ax_status run_verb(const cli_verb *verb, size_t n, char *const *words)
{
    void *args;
    ax_option_set *set;
    AX_TRY(ax_calloc(1, verb->args_size, &args));
    ax_status status = ax_option_set_create(verb->options, verb->option_count, args, &set);
    if (status == AX_OK) {
        status = read_words(verb, n, words, set);
        if (status == AX_ERR_USAGE)
            (void)ax_fail(status, "%s\nSee 'axonn %s --help'.", ax_error_message(), verb->name);
        ax_option_set_destroy(&set);
        if (status == AX_OK)
            status = start_verb(verb, args);
        cli_stop_die();
        ax_option_fini(verb->options, verb->option_count, args);
    }
    free(args);
    return status;
}

/* Prints the help that the words ask for: of the program, of a group of verbs, or of one verb. */
static ax_status print_help(size_t n, char *const *words)
{
    ax_buf out = {0};
    size_t used;
    const cli_verb *verb = cli_verb_find(n, words, &used);
    bool colour = cli_colour(stdout);
    ax_status status;
    if (verb)
        status = cli_help_verb(verb, colour, &out);
    else if (n && cli_verb_is_group(words[0]) && (n == 1 || words[1][0] == '-'))
        status = cli_help_group(words[0], colour, &out);
    else if (n && words[0][0] != '-')
        status = cli_verb_unknown(n, words);
    else
        status = cli_help_program(colour, &out);
    if (status == AX_OK)
        status = cli_print(out.data, out.size);
    ax_buf_fini(&out);
    return status;
}

static ax_status run(size_t n, char *const *words)
{
    if (wants_help(n, words))
        return print_help(n, words);
    if (n && (!strcmp(words[0], "--version") || !strcmp(words[0], "-V"))) {
        printf("axonn %s (%s)\n", ax_version(), ax_commit());
        return AX_OK;
    }
    AX_CHECK(n, AX_ERR_USAGE, "a verb is missing, such as train or generate\nSee 'axonn --help'.");
    AX_CHECK(words[0][0] != '-', AX_ERR_USAGE,
             "%.60s: a verb, such as train, must come first\nSee 'axonn --help'.", words[0]);
    size_t used;
    const cli_verb *verb = cli_verb_find(n, words, &used);
    if (!verb) {
        ax_status status = cli_verb_unknown(n, words);
        const char *group = cli_verb_is_group(words[0]) ? words[0] : "";
        return ax_fail(status, "%s\nSee 'axonn %s%s--help'.", ax_error_message(), group, *group ? " " : "");
    }
    return run_verb(verb, n - used, words + used);
}

/* Opens the note of the process that started this rank. If the verb saves when a signal stops it, installs
 * the signal handlers already now, so that a signal during start-up is not lost. */
static void catch_signals(void)
{
    size_t used;
    const cli_verb *verb = cli_verb_find(command.n, command.words, &used);
    cli_starter_find();
    if (verb && verb->stop)
        ax_signals_catch(cli_starter_note_signal);
}

int main(int argc, char **argv)
{
    cli_process_begin();
    command.n = argc > 0 ? (size_t)argc - 1 : 0;
    command.words = argv + 1;
    catch_signals();
    ax_status status = run(command.n, command.words);
    if ((fflush(stdout) || ferror(stdout)) && status == AX_OK)
        status =
            ax_fail(AX_ERR_DATA,
                    "standard output could not be written completely; if it is a file, its disk may be full");
    cli_print_error(status);
    return (int)status;
}
