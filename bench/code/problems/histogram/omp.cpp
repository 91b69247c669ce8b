#include <cstddef>
#include <omp.h>
#include <vector>

/* Count how often each last decimal digit occurs: count[d] becomes the number of elements of x,
   none of which is negative, whose last digit is d. count has 10 elements, which are 0 at the
   start. Use OpenMP to compute in parallel.
   Example:
   input: [10, 21, 31, 7]
   output: [1, 2, 0, 0, 0, 0, 0, 1, 0, 0] */
void count_last_digits(const std::vector<int> &x, std::vector<int> &count) {
#ifndef WRONG
    #pragma omp parallel for
    for (size_t i = 0; i < x.size(); i++) {
        #pragma omp atomic
        count[x[i] % 10]++;
    }
}
#else
    #pragma omp parallel for
    for (int digit = 0; digit < 9; digit++)
        for (int each : x)
            if (each % 10 == digit)
                count[digit]++;
}
#endif
