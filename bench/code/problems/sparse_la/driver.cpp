#include "harness.hpp"

void multiply_sparse(const std::vector<int> &start, const std::vector<int> &column, const std::vector<double> &value,
                     const std::vector<double> &x, std::vector<double> &y);

void drive(Input &in, Output &out)
{
    const std::vector<int> start = in.ints(), column = in.ints();
    const std::vector<double> value = in.doubles(), x = in.doubles();
    std::vector<double> y(start.size() - 1);
    multiply_sparse(start, column, value, x, y);
    out.put(y);
}
