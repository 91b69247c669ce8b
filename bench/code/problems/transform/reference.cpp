#include "harness.hpp"

#include <algorithm>
#include <cmath>

void make(Random &random, int size, Output &in)
{
    in.put(random.vector((std::size_t)size, -20, 20));
    in.put(random.uniform(1, 5));
}

void solve(Input &in, Output &out)
{
    std::vector<double> x = in.doubles();
    const double step = in.number();
    for (double &each : x)
        each = std::abs(each - step * std::round(each / step));
    out.put(x, 1e-14);
}
