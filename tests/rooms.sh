#!/usr/bin/env bash
# Plants offences against the order of the rooms in a small tree, and checks that scripts/check-rooms.sh finds each of them,
# and nothing else.
# Usage: rooms.sh SOURCE BUILD
set -euo pipefail
check=$1/scripts/check-rooms.sh
tree=$(mktemp -d "$2/rooms.XXXXXX")
trap 'rm -rf "$tree"' EXIT
mkdir -p "$tree/include/axonn" "$tree/src/grid" "$tree/src/nn" "$tree/examples"
cd "$tree"

cat >include/axonn/grid.h <<'END'
/* A comment may say struct ax_cache, /* and
 * struct ax_cache again. */
typedef struct ax_grid ax_grid; // and struct ax_cache
struct ax_cache;
typedef struct ax_layer ax_layer;
void ax_grid_use(ax_grid *grid, struct ax_cache *cache /* struct ax_layer */);
void ax_grid_know(const struct ax_strategy *strategy);
END
cat >src/grid/grid.c <<'END'
#include "axonn/grid.h"
#include "axonn/nn.h"
struct ax_grid {
    struct ax_cache *cache;
    struct ax_unknown *unknown;
};
END
cat >include/axonn/parallel.h <<'END'
typedef struct ax_strategy {
    int n;
} ax_strategy;
END
cat >include/axonn/nn.h <<'END'
#include "axonn/grid.h"
typedef struct ax_layer ax_layer;
typedef struct ax_cache ax_cache;
void ax_nn_use(struct ax_grid *grid);
END
cat >src/nn/cache.c <<'END'
#include "axonn/nn.h"
struct ax_cache {
    struct ax_grid *grid;
};
struct ax_layer {
    struct ax_cache *cache;
};
END

expected="include/axonn/grid.h:4 include/axonn/grid.h:5 include/axonn/grid.h:6 src/grid/grid.c:2 src/grid/grid.c:4"
if "$check" "$tree" >out; then
  echo "the check found nothing"
  exit 1
fi
found=$(sed -n 's/^\([^:]*:[0-9]*\): .*/\1/p' out | sort -t: -k1,1 -k2n | tr '\n' ' ')
if [[ "$found" != "$expected " ]]; then
  echo "found $found"
  echo "expected $expected"
  cat out
  exit 1
fi
grep -q '^include/axonn/grid.h:4: room grid may not name struct ax_cache of room nn (src/nn/cache.c; ' out
