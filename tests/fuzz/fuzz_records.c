/* Objects of the files that `axonn generate --prompts` and `axonn eval --pairs` read: lines, or a JSON array.
 */
#include "cli/records.h"
#include "fuzz/fuzz.h"

#include <jansson.h>
#include <string.h>

static const char *const reads[] = {"prompt", "tokens", NULL};
static const char *const writes[] = {"text", NULL};

void fuzz_make_seeds(void)
{
    fuzz_seed_texts(
        (const char *[]){"{\"id\": 1, \"prompt\": \"a\", \"big\": 123456789012345678901234567890, "
                         "\"real\": 1.50}\n\n{\"id\": \"b\", \"tokens\": [1, 2]}\r\n{\"id\": 1}",
                         NULL});
    fuzz_seed_texts((const char *[]){"[{\"id\": 1, \"prompt\": \"5\\\" [{,}] \\\\\"}, [1, {\"a\": \"]\"}],\n"
                                     "{\"id\": 2, \"text\": \"\\u00e9\\ud83d\\ude00\"} , null]\n",
                                     NULL});
    fuzz_seed_texts((const char *[]){" \n[ ]", NULL});
    fuzz_seed_texts((const char *[]){"{\"id\": 1} x\n{\"id\": }\n{\"id\": 2, \"id\": 3}\n[1]", NULL});
}

/* Checks the ids and the texts of what was read. */
static void check_records(const cli_records *r, bool ids)
{
    for (size_t i = 0; i < r->n; i++) {
        const cli_record *one = &r->record[i];
        FUZZ_HOLDS(json_is_object(one->object) && one->line > 0 && (!i || one->line >= one[-1].line));
        FUZZ_HOLDS(!one->rest || !*one->rest || *one->rest == ',');
        FUZZ_HOLDS(ids ? !one->id || cli_records_find(r, one->id) : !one->id);
    }
    FUZZ_HOLDS(r->with_id <= r->n && (r->fault_count || !ids || r->with_id == r->n));
}

void fuzz_one(const fuzz_part *part, int n)
{
    (void)n;
    for (int ids = 0; ids < 2; ids++) {
        cli_records r;
        const char *path = fuzz_file("records", part[0].data, part[0].size);
        if (fuzz_read(cli_records_read(path, ids, reads, writes, &r))) {
            check_records(&r, ids);
            FUZZ_HOLDS(fuzz_read(cli_records_check(&r)) == !r.fault_count);
        }
        cli_records_fini(&r);
    }
}
