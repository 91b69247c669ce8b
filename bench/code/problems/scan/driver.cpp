#include "harness.hpp"

void running_maximum(const std::vector<double> &x, std::vector<double> &y);

void drive(Input &in, Output &out)
{
    const std::vector<double> x = in.doubles();
    std::vector<double> y(x.size());
    running_maximum(x, y);
    out.put(y);
}
