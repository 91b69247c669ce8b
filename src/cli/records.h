/* Objects with ids in a file of JSONL, or of one JSON array: the requests of verbs that answer many. */
#ifndef AX_CLI_RECORDS_H
#define AX_CLI_RECORDS_H

#include "verb.h"

typedef struct cli_record {
    json_t *object;
    int64_t line; /* in the file, from 1 */
    char *id;     /* JSON text of the id, a string or an integer; NULL: it has none, or none is needed */
    char *rest;   /* JSON text of the members that the verb does not read, each after a comma */
} cli_record;

typedef struct cli_records {
    const char *path;
    bool ids;           /* each object has an id of its own; else "id" is a member like others */
    cli_record *record; /* [n] */
    size_t n;
    cli_record **by_id; /* [with_id]: sorted */
    size_t with_id;
    ax_buf faults; /* lines "PATH:LINE: what is wrong" */
    size_t fault_count;
} cli_records;

/* Reads the objects of a file, and records faults of its lines and, if `ids`, of ids that are missing or
 * there twice. `reads` are the members that the verb reads besides "id", `writes` those that its answers
 * have, which no object may bring itself unless the verb reads them; both end with NULL. A member whose name
 * differs in case or by one byte from one that the verb reads is a fault, too. AX_ERR_DATA if the
 * file cannot be read. The caller releases *out with cli_records_fini, also after an error. */
ax_status cli_records_read(const char *path, bool ids, const char *const *reads, const char *const *writes,
                           cli_records *out);
void cli_records_fini(cli_records *records);

/* Records what is wrong in a line. */
ax_status cli_records_fault(cli_records *records, int64_t line, const char *fmt, ...) AX_PRINTF(3, 4);
/* Fails with AX_ERR_DATA, and a message with all faults, if there are any. */
ax_status cli_records_check(const cli_records *records);

/* Returns the record whose id has this JSON text, or NULL. */
const cli_record *cli_records_find(const cli_records *records, const char *id);
/* Sets *out to the JSON text of an id; NULL if the value is neither a string that is not empty nor an
 * integer. */
ax_status cli_record_id(const json_t *value, char **out);

#endif
