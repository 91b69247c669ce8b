#include "harness.hpp"

#include <algorithm>
#include <cmath>

void make(Random &random, int size, Output &in)
{
    const int cols = 1 + random.below(50);
    std::vector<int> start{0}, column;
    for (int i = 0; i < size; i++) {
        for (int j = 0; j < cols; j++)
            if (random.below(4) == 0)
                column.push_back(j);
        start.push_back((int)column.size());
    }
    in.put(start);
    in.put(column);
    in.put(random.vector(column.size(), -1, 1));
    in.put(random.vector((std::size_t)cols, -1, 1));
}

void solve(Input &in, Output &out)
{
    const std::vector<int> start = in.ints(), column = in.ints();
    const std::vector<double> value = in.doubles(), x = in.doubles();
    std::vector<double> y(start.size() - 1);
    for (std::size_t i = 0; i < y.size(); i++)
        for (std::size_t j = (std::size_t)start[i]; j < (std::size_t)start[i + 1]; j++)
            y[i] += value[j] * x[(std::size_t)column[j]];
    out.put(y, 4.5e-16 * (double)(x.size() * x.size()));
}
