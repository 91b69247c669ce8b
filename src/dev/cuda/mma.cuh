/* Wrappers of PTX instructions: multiplication of bf16 or fp16 tiles on tensor cores by a warp (mma.sync
 * m16n8k16), the loads of its operands (ldmatrix), and asynchronous copies from global to shared memory
 * (cp.async). On an emulated GPU (tests), emulator.cpp implements them as the PTX manual describes.
 *
 * In this file and its users, a, b and c are the operands of c += a·b, T is bf16 or fp16, and for a lane of a
 * warp g = lane / 4 and t = lane % 4. A lane holds these elements (row, column) of
 *   a, 16 x 16:   (g, 2t) (g+8, 2t) (g, 2t+8) (g+8, 2t+8), and the right neighbour of each
 *   b, 16 x 8:    (2t, g) (2t+8, g), and the element below each
 *   c, 16 x 8:    (g, 2t) (g, 2t+1) (g+8, 2t) (g+8, 2t+1) */
#ifndef AXONN_DEV_CUDA_MMA_CUH
#define AXONN_DEV_CUDA_MMA_CUH

#include "dev/cuda/kernels.cuh"

#include <type_traits>

namespace
{

struct fragment_a {
    uint32_t r[4];
};
struct fragment_b {
    uint32_t r[2];
};
struct fragment_c {
    float v[4];
};

#ifdef __CUDACC__
__device__ inline uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

/* Computes c += a·b for tiles of the given element type. */
#define AX_MMA(type)                                                                                         \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0,%1,%2,%3}, "               \
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                                                    \
                 : "+f"(c.v[0]), "+f"(c.v[1]), "+f"(c.v[2]), "+f"(c.v[3])                                    \
                 : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b.r[0]), "r"(b.r[1]))
template <class T>
__device__ inline void multiply_add(fragment_c &c, const fragment_a &a, const fragment_b &b)
{
    if constexpr (std::is_same<T, bf16>::value)
        AX_MMA("bf16");
    else
        AX_MMA("f16");
}
#undef AX_MMA

/* Load four 8 x 8 matrices of 16-bit elements from shared memory. Lane 8i+j passes the address of row j of
 * matrix i, a multiple of 16 bytes. With g = lane / 4 and t = lane % 4, load_matrices gives a lane the
 * elements (g, 2t) and (g, 2t+1) of each matrix, load_transposed (2t, g) and (2t+1, g). */
__device__ inline void load_matrices(uint32_t (&r)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}
__device__ inline void load_transposed(uint32_t (&r)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/* Starts an asynchronous copy of 16 bytes from global to shared memory; if `there` is false, the copy writes
 * zeros and does not read. The copy is complete after wait_copies. */
__device__ inline void copy_async(void *to, const void *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(shared_address(to)), "l"(from), "r"(there ? 16 : 0)
                 : "memory");
}
/* Starts an asynchronous copy of 4 bytes from global to shared memory; if `there` is false, the copy writes
 * zeros and does not read. The copy is complete after wait_copies. */
__device__ inline void copy_word_async(void *to, const void *from, bool there)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                 :
                 : "r"(shared_address(to)), "l"(from), "r"(there ? 4 : 0)
                 : "memory");
}
/* commit_copies makes one group of all copies that this thread has started since it last called
 * commit_copies. wait_copies waits until at most `left` groups of this thread are in flight. */
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int left> __device__ inline void wait_copies()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}
#else
template <class T>
__device__ inline void multiply_add(fragment_c &c, const fragment_a &a, const fragment_b &b)
{
    ax_emulated_mma(c.v, a.r, b.r, std::is_same<T, f16>::value);
}
__device__ inline void load_matrices(uint32_t (&r)[4], const void *row)
{
    ax_emulated_ldmatrix(r, row, false);
}
__device__ inline void load_transposed(uint32_t (&r)[4], const void *row)
{
    ax_emulated_ldmatrix(r, row, true);
}
__device__ inline void copy_async(void *to, const void *from, bool there)
{
    ax_emulated_copy_async(to, from, there ? 16 : 0);
}
__device__ inline void copy_word_async(void *to, const void *from, bool there)
{
    ax_emulated_copy_async(to, from, there ? 4 : 0, 4);
}
__device__ inline void commit_copies() { ax_emulated_commit_copies(); }
template <int left> __device__ inline void wait_copies() { ax_emulated_wait_copies(left); }
#endif

/* Loads operand a (16 x 16) of a multiplication from the first 16 rows and columns of a tile in shared
 * memory, whose rows are `stride` elements apart. */
template <class T> __device__ inline void load_a(fragment_a &a, const T *tile, int stride)
{
    int lane = threadIdx.x % WARP;
    load_matrices(a.r, tile + (lane % 16) * stride + lane / 16 * 8);
}

/* Loads two operands b (16 x 8 each) that lie side by side, from a tile that holds them transposed: the
 * tile's rows are the columns of b. */
template <class T> __device__ inline void load_b(fragment_b (&b)[2], const T *tile, int stride)
{
    int lane = threadIdx.x % WARP;
    uint32_t r[4];
    load_matrices(r, tile + (lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 8);
    b[0] = {{r[0], r[1]}};
    b[1] = {{r[2], r[3]}};
}
/* Loads two operands b (16 x 8 each) that lie side by side, from a tile whose rows are the rows of b. */
template <class T> __device__ inline void load_b_rows(fragment_b (&b)[2], const T *tile, int stride)
{
    int lane = threadIdx.x % WARP;
    uint32_t r[4];
    load_transposed(r, tile + (lane % 16) * stride + lane / 16 * 8);
    b[0] = {{r[0], r[1]}};
    b[1] = {{r[2], r[3]}};
}

/* Converts two numbers to type T and packs them into one register, x in the low half. */
template <class T> __device__ inline uint32_t packed(float x, float y)
{
    pack<T, 2> both = {{narrow<T, float>::of(x), narrow<T, float>::of(y)}};
    uint32_t out;
    memcpy(&out, &both, sizeof out);
    return out;
}

/* Converts two results c (16 x 8 each) that lie side by side to an operand a (16 x 16) of type T. */
template <class T> __device__ inline fragment_a as_a(const fragment_c &left, const fragment_c &right)
{
    return {{packed<T>(left.v[0], left.v[1]), packed<T>(left.v[2], left.v[3]),
             packed<T>(right.v[0], right.v[1]), packed<T>(right.v[2], right.v[3])}};
}

} // namespace

#endif
