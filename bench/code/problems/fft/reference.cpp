#include "harness.hpp"

#include <algorithm>
#include <cmath>

void make(Random &random, int size, Output &in)
{
    std::size_t n = 1;
    while (n * 2 <= (std::size_t)size)
        n *= 2;
    in.put(random.vector(n, -1, 1));
    in.put(random.vector(n, -1, 1));
}

void solve(Input &in, Output &out)
{
    const std::vector<double> re = in.doubles(), im = in.doubles();
    const std::size_t n = re.size();
    std::vector<double> parts;
    for (std::size_t k = 0; k < n; k++) {
        std::complex<double> sum = 0;
        for (std::size_t j = 0; j < n; j++)
            sum += std::complex<double>(re[j], im[j]) *
                   std::polar(1.0, -2 * M_PI * (double)(j * k % n) / (double)n);
        parts.push_back(sum.real());
        parts.push_back(sum.imag());
    }
    out.put(parts, 1e-14 * (double)n);
}
