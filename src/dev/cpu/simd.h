/* The vector type of the cpu backend's kernels: `vf`, W floats, with the operations that the kernels need.
 *
 * This header is compiled once per instruction set: a file isa_*.c sets AX_SIMD (512, 256 or 0), switches the
 * compiler to that instruction set for the whole file, and includes the kernels, which are written once on
 * `vf`. Everything here is static and inlined, so no code for one instruction set leaks into another object
 * file. The operators + - * / work on vf directly (GCC and clang vector types). vfma(a, b, c) is a·b + c and
 * vnfma(a, b, c) is c - a·b; only these two fuse multiply and add, if the instruction set can.
 *
 * Functions with suffix _n access the first n lanes only (1 <= n <= W). Loads set the other lanes to 0 and do
 * not touch their memory; stores leave the other elements unchanged. Suffix _b: bf16. Suffix _h: fp16.
 * Conversions to bf16 and fp16 round to nearest even and keep NaN, as ax_bf16_from_float and
 * ax_f16_from_float do. Stores of bf16 may flush subnormals to 0, as the processor's instruction does; stores
 * with suffix _exact keep them.
 *
 * vstream stores one vector, and vstream_exact two vectors rounded to 16 bits, by non-temporal stores where
 * the instruction set has these; p must be aligned to the number of bytes stored. Call vstreamed before
 * another thread reads the stored values. vlows (vhighs) returns the lower (upper) half of x followed by that
 * of y, vevens (vodds) the lanes of x with even (odd) numbers followed by those of y. vsum returns the sum of
 * all lanes, vhmax their maximum. vsum4 sums the lanes of each of four vectors, all in the same order, and
 * returns the four sums in the first four lanes. */
#ifndef AX_DEV_CPU_SIMD_H
#define AX_DEV_CPU_SIMD_H

#include <stdbool.h>

#include <math.h>
#include <stdint.h>
#include <string.h>

#if AX_SIMD
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

/* Nothing is forced inline or unrolled under sanitizers, which instrument each copy of the code, so that
 * builds would be large and slow to compile; nor in the sets that this machine does not prefer, if only the
 * preferred ones are to be fast (CMakeLists.txt, AXONN_ISA). */
#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || __has_feature(address_sanitizer) ||     \
    __has_feature(thread_sanitizer) || defined(AX_ISA_SMALL)
#define INLINE static __attribute__((unused))
#define UNROLL
#else
#define INLINE static inline __attribute__((always_inline, unused))
#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#endif

#if AX_SIMD == 512
enum { W = 16 };
typedef __m512 vf;
typedef __m512i vi;
INLINE __mmask16 lanes(int64_t n) { return (__mmask16)((1u << n) - 1); }
INLINE vf vset(float x) { return _mm512_set1_ps(x); }
INLINE vf vload(const float *p) { return _mm512_loadu_ps(p); }
INLINE vf vload_n(const float *p, int64_t n) { return _mm512_maskz_loadu_ps(lanes(n), p); }
INLINE void vstore(float *p, vf x) { _mm512_storeu_ps(p, x); }
INLINE void vstore_n(float *p, vf x, int64_t n) { _mm512_mask_storeu_ps(p, lanes(n), x); }
INLINE vf vfma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
INLINE vf vnfma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); }
/* vmax and vmin return the second operand if one of the two is NaN, as x86's instructions do. */
INLINE vf vmax(vf a, vf b) { return _mm512_max_ps(a, b); }
INLINE vf vmin(vf a, vf b) { return _mm512_min_ps(a, b); }
INLINE vf vsqrt(vf a) { return _mm512_sqrt_ps(a); }
/* Returns 1/a with a relative error below 2^-14. */
INLINE vf vrough_inverse(vf a) { return _mm512_rcp14_ps(a); }
/* Returns 1/a with a relative error below 2^-22 if a and 1/a are normal numbers. */
INLINE vf vinverse(vf a)
{
    vf x = _mm512_rcp14_ps(a);
    return _mm512_fmadd_ps(_mm512_fnmadd_ps(a, x, _mm512_set1_ps(1)), x, x);
}
INLINE vf vround(vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE vf vabs(vf a) { return _mm512_abs_ps(a); }
/* Returns a·2^n for integral n of any size. */
INLINE vf vldexp(vf a, vf n) { return _mm512_scalef_ps(a, n); }
/* Returns a < b ? x : y, lane by lane. */
INLINE vf vless(vf a, vf b, vf x, vf y)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}
/* Returns x in the lanes whose bits are 1, y in the others. */
INLINE vf vbits(uint32_t bits, vf x, vf y) { return _mm512_mask_blend_ps((__mmask16)bits, y, x); }
/* Returns a bit for each of the W integers from p on: whether it is `least` or more. */
INLINE uint32_t vreach(const int32_t *p, int32_t least)
{
    return _mm512_cmpge_epi32_mask(_mm512_loadu_si512(p), _mm512_set1_epi32(least));
}
INLINE float vsum(vf a) { return _mm512_reduce_add_ps(a); }
INLINE __m256 halves_added(vf a)
{
    return _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
}
INLINE vf vsum4(const vf x[4])
{
    __m256 ab = _mm256_hadd_ps(halves_added(x[0]), halves_added(x[1]));
    __m256 cd = _mm256_hadd_ps(halves_added(x[2]), halves_added(x[3]));
    __m256 s = _mm256_hadd_ps(ab, cd);
    return _mm512_zextps128_ps512(_mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1)));
}
INLINE float vhmax(vf a) { return _mm512_reduce_max_ps(a); }
INLINE vf widen(__m256i h) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16)); }
INLINE __m256i narrow(vf x)
{
    vi bits = _mm512_castps_si512(x),
       odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    vi rounded =
        _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    vi quiet = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, nan, quiet));
}
INLINE vf vload_b(const uint16_t *p) { return widen(_mm256_loadu_si256((const __m256i *)(const void *)p)); }
INLINE vf vload_b_n(const uint16_t *p, int64_t n) { return widen(_mm256_maskz_loadu_epi16(lanes(n), p)); }
#ifdef AX_SIMD_BF16
INLINE __m256i narrow_quickly(vf x) { return (__m256i)_mm512_cvtneps_pbh(x); }
#else
INLINE __m256i narrow_quickly(vf x) { return narrow(x); }
#endif
INLINE vf vround_b(vf x) { return widen(narrow_quickly(x)); }
INLINE void vstore_b(uint16_t *p, vf x) { _mm256_storeu_si256((__m256i *)(void *)p, narrow_quickly(x)); }
INLINE void vstore_b_n(uint16_t *p, vf x, int64_t n)
{
    _mm256_mask_storeu_epi16(p, lanes(n), narrow_quickly(x));
}
INLINE void vstore_exact(uint16_t *p, vf x, int64_t n)
{
    _mm256_mask_storeu_epi16(p, n >= W ? (__mmask16)~0u : lanes(n), narrow(x));
}
INLINE __m256i narrow_h(vf x) { return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE vf vload_h(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
INLINE vf vload_h_n(const uint16_t *p, int64_t n)
{
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes(n), p));
}
INLINE vf vround_h(vf x) { return _mm512_cvtph_ps(narrow_h(x)); }
INLINE void vstore_h(uint16_t *p, vf x) { _mm256_storeu_si256((__m256i *)(void *)p, narrow_h(x)); }
INLINE void vstore_h_n(uint16_t *p, vf x, int64_t n) { _mm256_mask_storeu_epi16(p, lanes(n), narrow_h(x)); }
INLINE void vstream(float *p, vf x) { _mm512_stream_ps(p, x); }
INLINE void vstream_exact(uint16_t *p, vf a, vf b, vtype type)
{
    __m256i lo = type == VF16 ? narrow_h(a) : narrow(a), hi = type == VF16 ? narrow_h(b) : narrow(b);
    _mm512_stream_si512((__m512i *)(void *)p, _mm512_inserti64x4(_mm512_castsi256_si512(lo), hi, 1));
}
INLINE vf vlows(vf x, vf y) { return _mm512_shuffle_f32x4(x, y, 0x44); }
INLINE vf vhighs(vf x, vf y) { return _mm512_shuffle_f32x4(x, y, 0xee); }
INLINE vf vevens(vf x, vf y)
{
    vi of = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    return _mm512_permutex2var_ps(x, of, y);
}
INLINE vf vodds(vf x, vf y)
{
    vi of = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    return _mm512_permutex2var_ps(x, of, y);
}
/* Transposes 16 vectors: lane j of r[i] becomes lane i of r[j]. Interleaves pairs of lanes, then quads, then
 * 128-bit blocks. */
INLINE void vtranspose(vf r[W])
{
    vf s[W];
    UNROLL
    for (int i = 0; i < W; i += 4) {
        vf a = _mm512_unpacklo_ps(r[i], r[i + 1]), b = _mm512_unpackhi_ps(r[i], r[i + 1]);
        vf c = _mm512_unpacklo_ps(r[i + 2], r[i + 3]), d = _mm512_unpackhi_ps(r[i + 2], r[i + 3]);
        s[i] = _mm512_shuffle_ps(a, c, 0x44);
        s[i + 1] = _mm512_shuffle_ps(a, c, 0xee);
        s[i + 2] = _mm512_shuffle_ps(b, d, 0x44);
        s[i + 3] = _mm512_shuffle_ps(b, d, 0xee);
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        vf a = _mm512_shuffle_f32x4(s[i], s[i + 4], 0x88),
           b = _mm512_shuffle_f32x4(s[i + 8], s[i + 12], 0x88);
        vf c = _mm512_shuffle_f32x4(s[i], s[i + 4], 0xdd),
           d = _mm512_shuffle_f32x4(s[i + 8], s[i + 12], 0xdd);
        r[i] = _mm512_shuffle_f32x4(a, b, 0x88);
        r[i + 8] = _mm512_shuffle_f32x4(a, b, 0xdd);
        r[i + 4] = _mm512_shuffle_f32x4(c, d, 0x88);
        r[i + 12] = _mm512_shuffle_f32x4(c, d, 0xdd);
    }
}

#elif AX_SIMD == 256
enum { W = 8 };
typedef __m256 vf;
typedef __m256i vi;
INLINE vi lanes(int64_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
INLINE vf vset(float x) { return _mm256_set1_ps(x); }
INLINE vf vload(const float *p) { return _mm256_loadu_ps(p); }
INLINE vf vload_n(const float *p, int64_t n) { return _mm256_maskload_ps(p, lanes(n)); }
INLINE void vstore(float *p, vf x) { _mm256_storeu_ps(p, x); }
INLINE void vstore_n(float *p, vf x, int64_t n) { _mm256_maskstore_ps(p, lanes(n), x); }
INLINE vf vfma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
INLINE vf vnfma(vf a, vf b, vf c) { return _mm256_fnmadd_ps(a, b, c); }
INLINE vf vmax(vf a, vf b) { return _mm256_max_ps(a, b); }
INLINE vf vmin(vf a, vf b) { return _mm256_min_ps(a, b); }
INLINE vf vsqrt(vf a) { return _mm256_sqrt_ps(a); }
INLINE vf vround(vf a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE vf vabs(vf a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
INLINE vf power_of_two(vi n)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
/* Returns a·2^n for integral n, |n| <= 252. Multiplies by two powers of two, so that n = 128 and subnormal
 * results are right. */
INLINE vf vldexp(vf a, vf n)
{
    vi whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
    return a * power_of_two(half) * power_of_two(_mm256_sub_epi32(whole, half));
}
INLINE vf vless(vf a, vf b, vf x, vf y) { return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ)); }
INLINE vf vbits(uint32_t bits, vf x, vf y)
{
    const vi lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128),
             on = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int)bits), lane), lane);
    return _mm256_blendv_ps(y, x, _mm256_castsi256_ps(on));
}
INLINE uint32_t vreach(const int32_t *p, int32_t least)
{
    const vi below =
        _mm256_cmpgt_epi32(_mm256_set1_epi32(least), _mm256_loadu_si256((const __m256i *)(const void *)p));
    return ~(uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(below)) & 0xff;
}
INLINE float vsum(vf a)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
INLINE vf vsum4(const vf x[4])
{
    vf s = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
    return _mm256_zextps128_ps256(_mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1)));
}
INLINE float vhmax(vf a)
{
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}
INLINE vf widen(__m128i h) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16)); }
INLINE __m128i narrow(vf x)
{
    vi bits = _mm256_castps_si256(x), top = _mm256_srli_epi32(bits, 16);
    vi odd = _mm256_and_si256(top, _mm256_set1_epi32(1));
    vi rounded =
        _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    vi quiet = _mm256_or_si256(top, _mm256_set1_epi32(0x40));
    vi nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    vi r = _mm256_blendv_epi8(rounded, quiet, nan);
    return _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
}
INLINE vf vload_b(const uint16_t *p) { return widen(_mm_loadu_si128((const __m128i *)(const void *)p)); }
INLINE vf vload_b_n(const uint16_t *p, int64_t n)
{
    uint16_t part[W] = {0};
    memcpy(part, p, (size_t)n * 2);
    return vload_b(part);
}
INLINE vf vround_b(vf x) { return widen(narrow(x)); }
INLINE void vstore_b(uint16_t *p, vf x) { _mm_storeu_si128((__m128i *)(void *)p, narrow(x)); }
INLINE void vstore_b_n(uint16_t *p, vf x, int64_t n)
{
    uint16_t part[W];
    vstore_b(part, x);
    memcpy(p, part, (size_t)n * 2);
}
INLINE __m128i narrow_h(vf x) { return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE vf vload_h(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
INLINE vf vload_h_n(const uint16_t *p, int64_t n)
{
    uint16_t part[W] = {0};
    memcpy(part, p, (size_t)n * 2);
    return vload_h(part);
}
INLINE vf vround_h(vf x) { return _mm256_cvtph_ps(narrow_h(x)); }
INLINE void vstream(float *p, vf x) { _mm256_stream_ps(p, x); }
INLINE void vstream_exact(uint16_t *p, vf a, vf b, vtype type)
{
    __m128i lo = type == VF16 ? narrow_h(a) : narrow(a), hi = type == VF16 ? narrow_h(b) : narrow(b);
    _mm256_stream_si256((__m256i *)(void *)p, _mm256_set_m128i(hi, lo));
}
INLINE void vstore_h(uint16_t *p, vf x) { _mm_storeu_si128((__m128i *)(void *)p, narrow_h(x)); }
INLINE void vstore_h_n(uint16_t *p, vf x, int64_t n)
{
    uint16_t part[W];
    vstore_h(part, x);
    memcpy(p, part, (size_t)n * 2);
}
INLINE vf vlows(vf x, vf y) { return _mm256_permute2f128_ps(x, y, 0x20); }
INLINE vf vhighs(vf x, vf y) { return _mm256_permute2f128_ps(x, y, 0x31); }
INLINE vf in_order(vf x) /* permutes the four pairs of lanes to the order 0, 2, 1, 3 */
{
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(x), 0xd8));
}
INLINE vf vevens(vf x, vf y) { return in_order(_mm256_shuffle_ps(x, y, 0x88)); }
INLINE vf vodds(vf x, vf y) { return in_order(_mm256_shuffle_ps(x, y, 0xdd)); }
INLINE void vtranspose(vf r[W])
{
    vf s[W];
    UNROLL
    for (int i = 0; i < W; i += 4) {
        vf a = _mm256_unpacklo_ps(r[i], r[i + 1]), b = _mm256_unpackhi_ps(r[i], r[i + 1]);
        vf c = _mm256_unpacklo_ps(r[i + 2], r[i + 3]), d = _mm256_unpackhi_ps(r[i + 2], r[i + 3]);
        s[i] = _mm256_shuffle_ps(a, c, 0x44);
        s[i + 1] = _mm256_shuffle_ps(a, c, 0xee);
        s[i + 2] = _mm256_shuffle_ps(b, d, 0x44);
        s[i + 3] = _mm256_shuffle_ps(b, d, 0xee);
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2f128_ps(s[i], s[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(s[i], s[i + 4], 0x31);
    }
}

#else /* for any processor: vectors of four floats, as the compiler implements them */
enum { W = 4 };
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
INLINE vf vset(float x) { return (vf){x, x, x, x}; }
INLINE vf vload(const float *p)
{
    vf x;
    memcpy(&x, p, sizeof x);
    return x;
}
INLINE vf vload_n(const float *p, int64_t n)
{
    vf x = {0};
    for (int64_t i = 0; i < n; i++)
        x[i] = p[i];
    return x;
}
INLINE void vstore(float *p, vf x) { memcpy(p, &x, sizeof x); }
INLINE void vstore_n(float *p, vf x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        p[i] = x[i];
}
#ifdef __aarch64__
INLINE vf vfma(vf a, vf b, vf c) { return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
INLINE vf vnfma(vf a, vf b, vf c) { return (vf)vfmsq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
#else
INLINE vf vfma(vf a, vf b, vf c) { return a * b + c; }
INLINE vf vnfma(vf a, vf b, vf c) { return c - a * b; }
#endif
INLINE vf vselect(vi mask, vf x, vf y) { return (vf)((mask & (vi)x) | (~mask & (vi)y)); }
INLINE vf vmax(vf a, vf b) { return vselect(a > b, a, b); }
INLINE vf vmin(vf a, vf b) { return vselect(a < b, a, b); }
INLINE vf vsqrt(vf a) { return (vf){sqrtf(a[0]), sqrtf(a[1]), sqrtf(a[2]), sqrtf(a[3])}; }
INLINE vf vround(vf a) { return (a + vset(0x1.8p23f)) - vset(0x1.8p23f); } /* only for |a| < 2^22 */
INLINE vf vabs(vf a) { return (vf)((vi)a & 0x7fffffff); }
INLINE vf vldexp(vf a, vf n)
{
    vi whole = __builtin_convertvector(n, vi), half = whole >> 1;
    return a * (vf)((half + 127) << 23) * (vf)((whole - half + 127) << 23);
}
INLINE vf vless(vf a, vf b, vf x, vf y) { return vselect(a < b, x, y); }
INLINE vf vbits(uint32_t bits, vf x, vf y)
{
    const int32_t b = (int32_t)bits;
    return vselect(((vi){b, b, b, b} & (vi){1, 2, 4, 8}) != 0, x, y);
}
INLINE uint32_t vreach(const int32_t *p, int32_t least)
{
    uint32_t bits = 0;
    for (int i = 0; i < W; i++)
        bits |= (uint32_t)(p[i] >= least) << i;
    return bits;
}
INLINE float vsum(vf a) { return (a[0] + a[2]) + (a[1] + a[3]); }
INLINE vf vsum4(const vf x[4]) { return (vf){vsum(x[0]), vsum(x[1]), vsum(x[2]), vsum(x[3])}; }
INLINE float vhmax(vf a) { return fmaxf(fmaxf(a[0], a[2]), fmaxf(a[1], a[3])); }
INLINE vf vload_b(const uint16_t *p)
{
    uint16_t half __attribute__((vector_size(4 * sizeof *p)));
    memcpy(&half, p, sizeof half);
    return (vf)(__builtin_convertvector(half, vi) << 16);
}
INLINE vf vload_b_n(const uint16_t *p, int64_t n)
{
    vi x = {0};
    for (int64_t i = 0; i < n; i++)
        x[i] = p[i];
    return (vf)(x << 16);
}
INLINE void vstore_b_n(uint16_t *p, vf x, int64_t n)
{
    vi bits = (vi)x, top = (bits >> 16) & 0xffff;
    vi rounded = (vi)(((vi)(bits + 0x7fff + (top & 1))) >> 16), nan = x != x;
    vi r = (nan & (top | 0x40)) | (~nan & rounded);
    for (int64_t i = 0; i < n; i++)
        p[i] = (uint16_t)r[i];
}
INLINE void vstore_b(uint16_t *p, vf x) { vstore_b_n(p, x, W); }
INLINE vf vround_b(vf x)
{
    uint16_t part[W];
    vstore_b(part, x);
    return vload_b(part);
}
INLINE vf vload_h_n(const uint16_t *p, int64_t n)
{
    vf x = {0};
    for (int64_t i = 0; i < n; i++)
        x[i] = ax_f16_to_float(p[i]);
    return x;
}
INLINE vf vload_h(const uint16_t *p) { return vload_h_n(p, W); }
INLINE void vstore_h_n(uint16_t *p, vf x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        p[i] = ax_f16_from_float(x[i]);
}
INLINE void vstore_h(uint16_t *p, vf x) { vstore_h_n(p, x, W); }
INLINE vf vround_h(vf x)
{
    uint16_t part[W];
    vstore_h(part, x);
    return vload_h(part);
}
INLINE vf vlows(vf x, vf y) { return (vf){x[0], x[1], y[0], y[1]}; }
INLINE vf vhighs(vf x, vf y) { return (vf){x[2], x[3], y[2], y[3]}; }
INLINE vf vevens(vf x, vf y) { return (vf){x[0], x[2], y[0], y[2]}; }
INLINE vf vodds(vf x, vf y) { return (vf){x[1], x[3], y[1], y[3]}; }
INLINE void vtranspose(vf r[W])
{
    for (int i = 0; i < W; i++)
        for (int j = 0; j < i; j++) {
            float t = r[i][j];
            r[i][j] = r[j][i];
            r[j][i] = t;
        }
}
#endif

/* Calls function(…, type), where `type` is a constant that corresponds to `dtype`, so that the function is
 * compiled for each type. */
#define BY_VTYPE(function, dtype, ...)                                                                       \
    do {                                                                                                     \
        if ((dtype) == AX_BF16)                                                                              \
            function(__VA_ARGS__, VBF16);                                                                    \
        else if ((dtype) == AX_F16)                                                                          \
            function(__VA_ARGS__, VF16);                                                                     \
        else                                                                                                 \
            function(__VA_ARGS__, VF32);                                                                     \
    } while (0)

/* vget loads elements i … i + min(W, n) - 1 of an array of `type` and sets the other lanes to 0; vput stores
 * as many elements. `type` is a compile-time constant. */
INLINE vf vget(const void *p, int64_t i, int64_t n, vtype type)
{
    if (type == VBF16)
        return n >= W ? vload_b((const uint16_t *)p + i) : vload_b_n((const uint16_t *)p + i, n);
    if (type == VF16)
        return n >= W ? vload_h((const uint16_t *)p + i) : vload_h_n((const uint16_t *)p + i, n);
    return n >= W ? vload((const float *)p + i) : vload_n((const float *)p + i, n);
}
#if AX_SIMD != 512
INLINE vf vrough_inverse(vf a) { return vset(1) / a; }
INLINE vf vinverse(vf a) { return vset(1) / a; }
INLINE void vstore_exact(uint16_t *p, vf x, int64_t n)
{
    if (n >= W)
        vstore_b(p, x);
    else
        vstore_b_n(p, x, n);
}
#endif
#if AX_SIMD
INLINE void vstreamed(void) { _mm_sfence(); }
#endif
INLINE void vput(void *p, int64_t i, int64_t n, vtype type, vf x)
{
    if (type == VBF16 && n >= W)
        vstore_b((uint16_t *)p + i, x);
    else if (type == VBF16)
        vstore_b_n((uint16_t *)p + i, x, n);
    else if (type == VF16 && n >= W)
        vstore_h((uint16_t *)p + i, x);
    else if (type == VF16)
        vstore_h_n((uint16_t *)p + i, x, n);
    else if (n >= W)
        vstore((float *)p + i, x);
    else
        vstore_n((float *)p + i, x, n);
}

/* Stores as vput, but keeps bf16 subnormals. */
INLINE void vput_exact(void *p, int64_t i, int64_t n, vtype type, vf x)
{
    if (type == VBF16)
        vstore_exact((uint16_t *)p + i, x, n);
    else
        vput(p, i, n, type, x);
}
#if !AX_SIMD
INLINE void vstream_exact(uint16_t *p, vf a, vf b, vtype type)
{
    vput_exact(p, 0, W, type, a);
    vput_exact(p, W, W, type, b);
}
INLINE void vstream(float *p, vf x) { vstore(p, x); }
INLINE void vstreamed(void) {}
#endif

/* Rounds x to `type`, as vput followed by vget would. */
INLINE vf vrounded(vf x, vtype type) { return type == VBF16 ? vround_b(x) : type == VF16 ? vround_h(x) : x; }

INLINE float vget_one(const void *p, int64_t i, vtype type)
{
    if (type == VF32)
        return ((const float *)p)[i];
    uint16_t half = ((const uint16_t *)p)[i];
#if AX_SIMD
    return type == VBF16 ? ax_bf16_to_float(half) : _cvtsh_ss(half);
#else
    return type == VBF16 ? ax_bf16_to_float(half) : ax_f16_to_float(half);
#endif
}

/* The functions below apply each operation to `count` <= AT_ONCE vectors (`count` is a compile-time constant)
 * before the next operation. The operations on one vector depend on each other, and a processor finds
 * independent instructions only within the next few hundred instructions. */
enum { AT_ONCE = AX_SIMD == 512 ? 8 : 4 };
#define EACH(v, count)                                                                                       \
    UNROLL                                                                                                   \
    for (int v = 0; v < (count); v++)

/* Return a vector whose lane v is the maximum, or the sum, of the lanes of x[v]. `count` is a power of two,
 * at most W; the lanes after these repeat. The vectors x are overwritten. */
INLINE vf vmax_each(vf *x, int count)
{
    UNROLL
    for (int n = count; n > 1; n /= 2)
        EACH(v, n / 2) x[v] = vmax(vevens(x[2 * v], x[2 * v + 1]), vodds(x[2 * v], x[2 * v + 1]));
    UNROLL
    for (int n = count; n < W; n *= 2)
        x[0] = vmax(vevens(x[0], x[0]), vodds(x[0], x[0]));
    return x[0];
}
INLINE vf vsum_each(vf *x, int count)
{
    UNROLL
    for (int n = count; n > 1; n /= 2)
        EACH(v, n / 2) x[v] = vevens(x[2 * v], x[2 * v + 1]) + vodds(x[2 * v], x[2 * v + 1]);
    UNROLL
    for (int n = count; n < W; n *= 2)
        x[0] = vevens(x[0], x[0]) + vodds(x[0], x[0]);
    return x[0];
}

/* Replaces each x by exp(x), within 1.5 ulp. Computes 2^n · e^r with |r| <= ln2/2, and e^r as its Taylor sum
 * to r^7 (remainder below 2^-27). x is clamped to a range outside of which exp overflows fp32 or is 0. NaN
 * stays NaN, because x is the second operand of vmax and vmin. */
INLINE void vexp_each(vf *x, int count)
{
    static const float taylor[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
    vf n[AT_ONCE], r[AT_ONCE];
    EACH(v, count) x[v] = vmin(vset(89.0f), vmax(vset(-104.0f), x[v]));
    EACH(v, count) n[v] = vround(x[v] * vset(1.44269504f));
    EACH(v, count) r[v] = vnfma(n[v], vset(0.693359375f), x[v]);
    EACH(v, count) r[v] = vnfma(n[v], vset(-2.12194440e-4f), r[v]);
    EACH(v, count) x[v] = vset(1.0f / 5040);
    UNROLL
    for (int i = 0; i < 7; i++)
        EACH(v, count) x[v] = vfma(x[v], r[v], vset(taylor[i]));
    EACH(v, count) x[v] = vldexp(x[v], n[v]);
}

INLINE vf vexp(vf x)
{
    vexp_each(&x, 1);
    return x;
}

#define LOG2E 1.44269504088896341

/* Replaces each x <= 128 by 2^x; the result is 0 for x far below the range of fp32, and for -inf. x = n + r
 * with |r| <= 1/2, and 2^r is approximated by the minimax polynomial (in relative error) among polynomials
 * that are 1 at r = 0. The relative error is 2.9e-6 if `roughly`, for results that are rounded to 16 bits,
 * else 1.1e-7. */
INLINE void vexp2_each(vf *x, int count, bool roughly)
{
    static const float least[2][6] = {
        {1.32647273e-3f, 9.67151299e-3f, 5.55073358e-2f, 2.40222424e-1f, 6.93147004e-1f, 1.0f},
        {9.58285294e-3f, 5.59064262e-2f, 2.40240991e-1f, 6.93124175e-1f, 1.0f}};
    const int terms = roughly ? 5 : 6;
    vf n[AT_ONCE], r[AT_ONCE];
    EACH(v, count) x[v] = vmax(vset(-160.0f), x[v]);
    EACH(v, count) n[v] = vround(x[v]);
    EACH(v, count) r[v] = x[v] - n[v];
    EACH(v, count) x[v] = vset(least[roughly][0]);
    UNROLL
    for (int i = 1; i < terms; i++)
        EACH(v, count) x[v] = vfma(x[v], r[v], vset(least[roughly][i]));
    EACH(v, count) x[v] = vldexp(x[v], n[v]);
}

INLINE vf vexp2(vf x, bool roughly)
{
    vexp2_each(&x, 1, roughly);
    return x;
}

#endif
