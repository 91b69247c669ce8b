#include "harness.hpp"

#include <algorithm>
#include <cmath>

void make(Random &random, int size, Output &in)
{
    std::vector<double> x = random.vector((std::size_t)size, -100, 0);
    for (std::size_t i = 0; i < x.size(); i++)
        x[i] += 0.1 * (double)i;
    in.put(x);
}

void solve(Input &in, Output &out)
{
    std::vector<double> x = in.doubles();
    for (std::size_t i = 1; i < x.size(); i++)
        x[i] = std::max(x[i - 1], x[i]);
    out.put(x);
}
