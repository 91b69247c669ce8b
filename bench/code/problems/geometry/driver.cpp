#include "harness.hpp"

double closest_distance(const std::vector<double> &x, const std::vector<double> &y);

void drive(Input &in, Output &out)
{
    const std::vector<double> x = in.doubles(), y = in.doubles();
    out.put(closest_distance(x, y));
}
