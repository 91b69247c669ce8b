#include "harness.hpp"

#include <algorithm>
#include <cmath>

void make(Random &random, int size, Output &in)
{
    in.put(random.vector((std::size_t)size, -1e3, 1e3));
}

void solve(Input &in, Output &out)
{
    std::vector<double> x = in.doubles();
    std::sort(x.begin(), x.end(), [](double a, double b) { return std::abs(a) < std::abs(b); });
    out.put(x);
}
