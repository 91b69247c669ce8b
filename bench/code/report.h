/* Prints build@k and pass@k of the results of judge run. */
#ifndef REPORT_H
#define REPORT_H

#include "axonn/option.h"

#include "lines.h"

/* Prints the scores of results, the lines of the file `path`, by kind, by way, and of all, for each k; as
 * lines of JSON if `json`. Lines may be NULL. AX_ERR_DATA: there is no result, or another line. */
AX_MUST_CHECK ax_status report_scores(const char *path, const lines *results, const ax_ints *k, bool json);

#endif
