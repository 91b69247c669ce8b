#include "harness.hpp"

void smooth(const std::vector<double> &u, std::vector<double> &v, int rows, int cols);

void drive(Input &in, Output &out)
{
    const std::vector<double> u = in.doubles();
    const int rows = in.integer(), cols = in.integer();
    std::vector<double> v(u.size());
    smooth(u, v, rows, cols);
    out.put(v);
}
