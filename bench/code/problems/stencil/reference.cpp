#include "harness.hpp"

#include <algorithm>
#include <cmath>

void make(Random &random, int size, Output &in)
{
    const int rows = size, cols = 1 + random.below(20);
    in.put(random.vector((std::size_t)(rows * cols), 0, 1));
    in.put(rows);
    in.put(cols);
}

void solve(Input &in, Output &out)
{
    const std::vector<double> u = in.doubles();
    const int rows = in.integer(), cols = in.integer();
    std::vector<double> v;
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++) {
            const auto at = [&](int r, int c) {
                return r < 0 || r >= rows || c < 0 || c >= cols ? 0 : u[(std::size_t)(r * cols + c)];
            };
            v.push_back((at(i, j) + at(i - 1, j) + at(i + 1, j) + at(i, j - 1) + at(i, j + 1)) / 5);
        }
    out.put(v, 1e-15);
}
