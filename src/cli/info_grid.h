/* axonn info --grid: prints which ranks of a grid communicate in groups, and on which hosts they are. */
#ifndef AX_CLI_INFO_GRID_H
#define AX_CLI_INFO_GRID_H

#include "verb.h"

typedef struct info_grid_args {
    char *grid, *order, *hosts;
    int64_t ranks_per_node;
} info_grid_args;

ax_status info_grid(const info_grid_args *args, bool json);

#endif
