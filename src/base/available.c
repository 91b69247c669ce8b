/* Finds how much memory this process can still allocate: the memory that the machine has available, within
 * the limits of the process's control groups and address space. */
#include "axonn/base.h"
#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* Returns the number that follows `key` in file dir/name, in the first line that begins with `key` and a
 * number. With `key` "", the line need only begin with a number. Returns -1 if the file has no such line (the
 * file of a limit holds "max" if there is no limit), or if it cannot be read. */
static int64_t read_number(const char *dir, const char *name, const char *key)
{
    char path[4400], line[256], *end;
    int64_t found = -1;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "r");
    while (file && found < 0 && fgets(line, sizeof line, file))
        if (!strncmp(line, key, strlen(key))) {
            int64_t value = strtoll(line + strlen(key), &end, 10);
            found = end == line + strlen(key) ? -1 : value;
        }
    if (file)
        fclose(file);
    return found;
}

/* Returns how many bytes the control group with the folder `dir` can still allocate: its limit minus its
 * usage, which are in the files `limit` and `usage` of the folder. Cached pages of files that were not used
 * lately do not count as used: `cached` is the key of their size in the file memory.stat. Returns INT64_MAX
 * if the group has no limit, or if `limit` or `usage` cannot be read. */
static int64_t room_in_group(const char *dir, const char *limit, const char *usage, const char *cached)
{
    int64_t most = read_number(dir, limit, ""), used = read_number(dir, usage, "");
    if (most < 0 || used < 0)
        return INT64_MAX;
    used -= ax_max(read_number(dir, "memory.stat", cached), 0);
    return ax_max(most - ax_max(used, 0), 0);
}

/* Returns the minimum of room_in_group over a control group and its ancestors. The folder of the group is
 * `root` followed by `group`; the last ancestor is `root` itself. Overwrites `group`. */
static int64_t room_in_ancestors(const char *root, char *group, const char *limit, const char *usage,
                                 const char *cached)
{
    char dir[4200];
    int64_t least = room_in_group(root, limit, usage, cached);
    for (char *end; (end = strrchr(group, '/')); *end = 0) {
        snprintf(dir, sizeof dir, "%s%s", root, group);
        least = ax_min(least, room_in_group(dir, limit, usage, cached));
    }
    return least;
}

/* Returns how many bytes the control groups of the process can still allocate: the minimum over all these
 * groups and their ancestors. A line of /proc/self/cgroup is "0::/group" (cgroup version 2) or
 * "N:controllers:/group" (version 1). */
static int64_t room_of_groups(void)
{
    char line[4096];
    int64_t least = INT64_MAX;
    FILE *file = fopen("/proc/self/cgroup", "r");
    while (file && fgets(line, sizeof line, file)) {
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = 0;
        group[strcspn(group, "\n")] = 0;
        if (!strcmp(controllers, ":"))
            least = ax_min(least, room_in_ancestors("/sys/fs/cgroup", group, "memory.max", "memory.current",
                                                    "inactive_file "));
        else if (strstr(controllers, "memory"))
            least = ax_min(least, room_in_ancestors("/sys/fs/cgroup/memory", group, "memory.limit_in_bytes",
                                                    "memory.usage_in_bytes", "total_inactive_file "));
    }
    if (file)
        fclose(file);
    return least;
}

static int64_t room_of_address_space(void)
{
    struct rlimit limit;
    int64_t used = base_proc_bytes("/proc/self/status", "VmSize:");
    if (getrlimit(RLIMIT_AS, &limit) || limit.rlim_cur == RLIM_INFINITY || used < 0)
        return INT64_MAX;
    return ax_max((int64_t)limit.rlim_cur - used, 0);
}

int64_t ax_memory_available(void)
{
    int64_t machine = base_proc_bytes("/proc/meminfo", "MemAvailable:"),
            allowed = ax_min(room_of_groups(), room_of_address_space());
    return machine < 0 && allowed == INT64_MAX ? -1 : ax_min(machine < 0 ? INT64_MAX : machine, allowed);
}
