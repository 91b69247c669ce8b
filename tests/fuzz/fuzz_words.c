/* Short texts of the command line: flags of every type, orders of a grid's axes, layouts. Each part is one
 * word. */
#include "axonn/comm.h"
#include "axonn/grid.h"
#include "axonn/option.h"
#include "axonn/tensor.h"
#include "cli/hosts.h"
#include "fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

typedef struct values {
    bool flag;
    int64_t number;
    double real, pair[2];
    ax_quota quota;
    char *text, *path, *word;
    int kind;
    ax_ints ints;
    ax_strings strings;
    ax_paths paths;
} values;

#define AT(field) offsetof(values, field)
static const ax_option table[] = {
    {"flag", AX_OPT_BOOL, AT(flag), "false", .help = "a flag"},
    {"number", AX_OPT_INT, AT(number), "1", .range = "[0, 100)", .choices = "none|full", .help = "a number"},
    {"real", AX_OPT_FLOAT, AT(real), "0.5", .range = "(0, inf)", .help = "a real number"},
    {"pair", AX_OPT_FLOATS, AT(pair), "0, 1", .items = 2, .help = "two real numbers"},
    {"quota", AX_OPT_QUOTA, AT(quota), "2%", .range = "[0, inf)", .help = "a quota"},
    {"text", AX_OPT_STRING, AT(text), .help = "a text"},
    {"path", AX_OPT_PATH, AT(path), .help = "a path"},
    {"word", AX_OPT_STRING, AT(word), "a", .choices = "a|b", .help = "a word"},
    {"kind", AX_OPT_ENUM, AT(kind), "one", .choices = "one|two", .help = "a kind"},
    {"ints", AX_OPT_INTS, AT(ints), "1,2", .range = "[0, 2147483647]", .help = "numbers"},
    {"strings", AX_OPT_STRINGS, AT(strings), .help = "texts"},
    {"PATHS", AX_OPT_PATHS, AT(paths), .help = "paths"},
};

void fuzz_make_seeds(void)
{
    fuzz_seed_texts(
        (const char *[]){"--flag", "--number=7", "--real", "1e-3", "--pair=0.9,0.95", "file", NULL});
    fuzz_seed_texts(
        (const char *[]){"--no-flag", "--quota", "3.5%", "--ints=1,2,3", "--strings", "a", "--", NULL});
    fuzz_seed_texts((const char *[]){"--number", "full", "--kind=two", "--text=x", "--unknown", NULL});
    fuzz_seed_texts(
        (const char *[]){"b@data.z, t, d@y +x", "o@x/z", "y,x,z,pipe,data", "[b@data.z, t, d@y]", NULL});
    fuzz_seed_texts(
        (const char *[]){"d@x.kv.x.rep", "x,y,z,pipe,data,x", "--ints", "9223372036854775808", NULL});
}

static void read_flags(size_t n, char *const *words)
{
    ax_option_set *set;
    values v;
    ax_buf text = {0};
    FUZZ_HOLDS(ax_option_set_create(table, AX_COUNT(table), &v, &set) == AX_OK);
    FUZZ_HOLDS(ax_option_read_flags(set, n, words) == AX_OK);
    if (fuzz_read(ax_option_finish(set))) {
        FUZZ_HOLDS(v.number >= -2 && v.number < 100 && v.real > 0 && v.kind >= 0 && v.kind < 2);
        FUZZ_HOLDS(v.quota.number >= 0 && v.quota.percent >= 0 && v.quota.percent <= 100);
        bool dumped = fuzz_read(ax_option_dump(set, &text)); /* false if a value is not UTF-8 */
        FUZZ_HOLDS(fuzz_read(ax_option_print(set, &text)) == dumped);
    }
    ax_option_set_destroy(&set);
    ax_option_fini(table, AX_COUNT(table), &v);
    ax_buf_fini(&text);
}

static ax_grid *grid(void)
{
    static ax_comm *world;
    static ax_grid *grid;
    if (!grid)
        FUZZ_HOLDS(ax_comm_self_create(&world) == AX_OK &&
                   ax_grid_create(world, (ax_grid_size){{1}}, &grid) == AX_OK);
    return grid;
}

static void read_layout(const char *word)
{
    int ndim;
    ax_layout layout;
    char text[128];
    if (fuzz_read(ax_layout_parse(grid(), word, &ndim, &layout))) {
        FUZZ_HOLDS(ndim >= 0 && ndim <= AX_MAX_DIMS);
        FUZZ_HOLDS(strlen(ax_layout_print(grid(), &layout, ndim, NULL, text)) < sizeof text);
    }
}

static void read_hosts(const char *word)
{
    cli_hosts hosts;
    if (fuzz_read(cli_hosts_read(word, 6, &hosts)))
        for (int i = 0; i < hosts.n; i++)
            FUZZ_HOLDS(*hosts.name[i] && !strpbrk(hosts.name[i], ",:") && hosts.slots[i] > 0);
    cli_hosts_fini(&hosts);
}

static void read_environment(const char *size, const char *rank)
{
    setenv("OMPI_COMM_WORLD_SIZE", size, 1);
    setenv("OMPI_COMM_WORLD_RANK", rank, 1);
    ax_launcher found = ax_launcher_find();
    FUZZ_HOLDS(found.size >= 0 && found.rank >= 0);
    unsetenv("OMPI_COMM_WORLD_SIZE");
    unsetenv("OMPI_COMM_WORLD_RANK");
}

void fuzz_one(const fuzz_part *part, int n)
{
    char *words[FUZZ_PARTS], text[32];
    ax_grid_order order;
    for (int i = 0; i < n; i++) {
        words[i] = part[i].data;
        read_layout(words[i]);
        read_hosts(words[i]);
        read_environment(words[i], words[0]);
        if (fuzz_read(ax_grid_order_parse(words[i], &order)))
            FUZZ_HOLDS(strlen(ax_grid_order_print(&order, text)) < sizeof text);
    }
    read_flags((size_t)n, words);
}
