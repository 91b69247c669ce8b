#include "harness.hpp"

#include <algorithm>
#include <cmath>

void make(Random &random, int size, Output &in)
{
    in.put(random.vector((std::size_t)size, 0, 1));
    in.put(1.0);
    in.put(0.5);
    in.put(1 - 1.0 / size);
    in.put(-1.0);
}

void solve(Input &in, Output &out)
{
    const std::vector<double> x = in.doubles();
    for (int k = 0; k < 4; k++) {
        const double limit = in.number();
        const auto found = std::find_if(x.begin(), x.end(), [=](double each) { return each > limit; });
        out.put(found == x.end() ? -1 : (int)(found - x.begin()));
    }
}
