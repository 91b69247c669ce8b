/* How `axonn plan` searches for a layout, and prints what it has found. */
#ifndef AXONN_CLI_PLAN_SEARCH_H
#define AXONN_CLI_PLAN_SEARCH_H

#include "axonn/train.h"
#include "launch.h"

typedef struct cli_plan_search {
    const cli_config_args *args; /* of the verb, for the command that runs the best */
    int top;                     /* rows of the table */
    int64_t tokens;              /* --tokens */
    bool explain, json;
} cli_plan_search;

/* Searches and prints. Errors as for ax_search_create. */
ax_status cli_search_layout(ax_config *config, const ax_search_options *options, const cli_plan_search *how);

#endif
