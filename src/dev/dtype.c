/* Element types: sizes, names, conversion of bf16 and fp16 bits, and reading and writing one element as a
 * double. */
#include "axonn/dev.h"

#include <math.h>
#include <string.h>

typedef struct dtype_info {
    const char *name;
    size_t size;
} dtype_info;

static const dtype_info dtypes[AX_DTYPE_COUNT] = {
    [AX_F64] = {"f64", 8}, [AX_F32] = {"f32", 4}, [AX_BF16] = {"bf16", 2}, [AX_F16] = {"f16", 2},
    [AX_I32] = {"i32", 4}, [AX_I64] = {"i64", 8}, [AX_U16] = {"u16", 2},   [AX_U8] = {"u8", 1},
};

size_t ax_dtype_size(ax_dtype dtype) { return (unsigned)dtype < AX_DTYPE_COUNT ? dtypes[dtype].size : 0; }

const char *ax_dtype_name(ax_dtype dtype)
{
    return (unsigned)dtype < AX_DTYPE_COUNT ? dtypes[dtype].name : "unknown dtype";
}

ax_dtype ax_dtype_accum(ax_dtype dtype) { return dtype == AX_F64 ? AX_F64 : AX_F32; }

static uint32_t float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float float_of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

uint16_t ax_bf16_from_float(float x)
{
    uint32_t bits = float_bits(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u); /* set the quiet bit: if the NaN's payload were truncated to 0,
                                                  the bits would mean infinity */
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

float ax_bf16_to_float(uint16_t x) { return float_of_bits((uint32_t)x << 16); }

uint16_t ax_f16_from_float(float x)
{
    uint32_t bits = float_bits(x), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    if (magnitude >= 0x477ff000u) /* 65520, halfway between 65504, the largest f16, and 65536: from here on
                                     values round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) { /* below 2^-14, f16 is subnormal: adding 0.5 rounds to a multiple of 2^-24,
                                      the spacing of f16's subnormals */
        float shifted = float_of_bits(magnitude) + 0.5f;
        return (uint16_t)(sign | (float_bits(shifted) - 0x3f000000u));
    }
    return (uint16_t)(sign | (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13);
}

float ax_f16_to_float(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000u) << 16, exponent = x >> 10 & 0x1fu, mantissa = x & 0x3ffu;
    if (exponent == 0x1fu)
        return float_of_bits(sign | 0x7f800000u | mantissa << 13);
    if (exponent == 0) {
        float magnitude = (float)mantissa * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    return float_of_bits(sign | (exponent + 112u) << 23 | mantissa << 13);
}

/* Rounds to float by "round to odd": truncates, and sets the last bit if the result is not exact (Boldo &
 * Melquiond 2008). Rounding the returned float to bf16 or f16 then gives the same bits as rounding the double
 * directly. */
static float float_to_odd(double x)
{
    float near = (float)x;
    if ((double)near == x || isnan(x))
        return near;
    uint32_t bits = float_bits(near);
    if (fabs((double)near) > fabs(x))
        bits--;
    return float_of_bits(bits | 1u);
}

double ax_load(ax_dtype dtype, const void *data, int64_t index)
{
    switch (dtype) {
    case AX_F64:
        return ((const double *)data)[index];
    case AX_F32:
        return (double)((const float *)data)[index];
    case AX_BF16:
        return (double)ax_bf16_to_float(((const uint16_t *)data)[index]);
    case AX_F16:
        return (double)ax_f16_to_float(((const uint16_t *)data)[index]);
    case AX_I32:
        return (double)((const int32_t *)data)[index];
    case AX_I64:
        return (double)((const int64_t *)data)[index];
    case AX_U16:
        return (double)((const uint16_t *)data)[index];
    case AX_U8:
        return (double)((const uint8_t *)data)[index];
    case AX_DTYPE_COUNT:
        break;
    }
    return NAN;
}

void ax_store(ax_dtype dtype, void *data, int64_t index, double value)
{
    switch (dtype) {
    case AX_F64:
        ((double *)data)[index] = value;
        break;
    case AX_F32:
        ((float *)data)[index] = (float)value;
        break;
    case AX_BF16:
        ((uint16_t *)data)[index] = ax_bf16_from_float(float_to_odd(value));
        break;
    case AX_F16:
        ((uint16_t *)data)[index] = ax_f16_from_float(float_to_odd(value));
        break;
    case AX_I32:
        ((int32_t *)data)[index] = (int32_t)value;
        break;
    case AX_I64:
        ((int64_t *)data)[index] = (int64_t)value;
        break;
    case AX_U16:
        ((uint16_t *)data)[index] = (uint16_t)(int64_t)value;
        break;
    case AX_U8:
        ((uint8_t *)data)[index] = (uint8_t)(int64_t)value;
        break;
    case AX_DTYPE_COUNT:
        break;
    }
}
