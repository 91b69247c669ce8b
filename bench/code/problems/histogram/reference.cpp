#include "harness.hpp"

#include <algorithm>
#include <cmath>

void make(Random &random, int size, Output &in)
{
    std::vector<int> x((std::size_t)size);
    for (int &each : x)
        each = random.below(1000);
    in.put(x);
}

void solve(Input &in, Output &out)
{
    std::vector<int> count(10);
    for (int each : in.ints())
        count[(std::size_t)(each % 10)]++;
    out.put(count);
}
