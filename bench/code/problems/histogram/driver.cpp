#include "harness.hpp"

void count_last_digits(const std::vector<int> &x, std::vector<int> &count);

void drive(Input &in, Output &out)
{
    const std::vector<int> x = in.ints();
    std::vector<int> count(10);
    count_last_digits(x, count);
    out.put(count);
}
