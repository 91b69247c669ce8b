#include "harness.hpp"

#include <algorithm>
#include <cmath>

void make(Random &random, int size, Output &in)
{
    in.put(random.vector((std::size_t)size, 0, 100));
    in.put(random.vector((std::size_t)size, 0, 100));
}

void solve(Input &in, Output &out)
{
    const std::vector<double> x = in.doubles(), y = in.doubles();
    double least = -1;
    for (std::size_t i = 0; i < x.size(); i++)
        for (std::size_t j = 0; j < i; j++) {
            const double distance = std::hypot(x[i] - x[j], y[i] - y[j]);
            least = least < 0 ? distance : std::min(least, distance);
        }
    out.put(least, 1e-13);
}
