/* A stand-in for cuDNN's graph API, for graphs of attention: it keeps and checks descriptors, and runs graphs
 * as plain loops. Virtual tensors are rounded to their type, operands of matmuls to that of the graph. It
 * refuses what the library refuses: attributes of a wrong type, descriptors used before they are finalized,
 * virtual tensors that no operation writes, statistics that are not dense, integers except in causal masks,
 * and rows of heads that are not aligned to 16 bytes. Environment AXONN_EMULATED_CUDNN makes it fail:
 * "absent" as if the library were not there, "uncompiled" as without libnvrtc, "wrong" by wrong results;
 * "9.25": it has that version, whose engine 6 can sum dq in a fixed order if it is asked to. */
#include "cudnn_graph.h"

#include "cuda_runtime.h"

#include "axonn/dev.h"

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

struct cudnnContext {
    cudaStream_t stream;
};

namespace
{

thread_local std::string reason;

cudnnStatus_t refuse(cudnnStatus_t status, const std::string &why)
{
    reason = why;
    return status;
}
cudnnStatus_t bad(const std::string &why) { return refuse(CUDNN_STATUS_BAD_PARAM, why); }
cudnnStatus_t unsupported(const std::string &why) { return refuse(CUDNN_STATUS_NOT_SUPPORTED, why); }

/* ---- descriptors --------------------------------------------------------------------------------- */

enum { MANY = 64, TENSOR = CUDNN_BACKEND_TENSOR_DESCRIPTOR, ANY = -1 };

/* An attribute of a kind of descriptor. `of`: the kind of descriptor that its value must be; ANY: any
 * operation. */
struct rule {
    int kind, name, type, most;
    bool needed;
    int of;
};
#define ATTR(kind, name, type, most, needed, of)                                                             \
    {                                                                                                        \
        CUDNN_BACKEND_##kind##_DESCRIPTOR, CUDNN_ATTR_##name, CUDNN_TYPE_##type, most, needed, of            \
    }
#define ONE(kind, name, type) ATTR(kind, name, type, 1, true, 0)
#define PART(kind, name, needed, of) ATTR(kind, name, BACKEND_DESCRIPTOR, 1, needed, of)
const rule rules[] = {
    ONE(TENSOR, TENSOR_UNIQUE_ID, INT64),
    ONE(TENSOR, TENSOR_DATA_TYPE, DATA_TYPE),
    ONE(TENSOR, TENSOR_BYTE_ALIGNMENT, INT64),
    ATTR(TENSOR, TENSOR_DIMENSIONS, INT64, 8, true, 0),
    ATTR(TENSOR, TENSOR_STRIDES, INT64, 8, true, 0),
    ATTR(TENSOR, TENSOR_IS_VIRTUAL, BOOLEAN, 1, false, 0),
    ATTR(TENSOR, TENSOR_IS_BY_VALUE, BOOLEAN, 1, false, 0),
    ONE(MATMUL, MATMUL_COMP_TYPE, DATA_TYPE),
    ONE(POINTWISE, POINTWISE_MODE, POINTWISE_MODE),
    ONE(POINTWISE, POINTWISE_MATH_PREC, DATA_TYPE),
    ATTR(POINTWISE, POINTWISE_AXIS, INT64, 1, false, 0),
    ONE(REDUCTION, REDUCTION_OPERATOR, REDUCTION_OPERATOR_TYPE),
    ONE(REDUCTION, REDUCTION_COMP_TYPE, DATA_TYPE),
    ATTR(REDUCTION, REDUCTION_IS_DETERMINISTIC, BOOLEAN, 1, false, 0),
    PART(OPERATION_MATMUL, OPERATION_MATMUL_DESC, true, CUDNN_BACKEND_MATMUL_DESCRIPTOR),
    PART(OPERATION_MATMUL, OPERATION_MATMUL_ADESC, true, TENSOR),
    PART(OPERATION_MATMUL, OPERATION_MATMUL_BDESC, true, TENSOR),
    PART(OPERATION_MATMUL, OPERATION_MATMUL_CDESC, true, TENSOR),
    PART(OPERATION_POINTWISE, OPERATION_POINTWISE_PW_DESCRIPTOR, true, CUDNN_BACKEND_POINTWISE_DESCRIPTOR),
    PART(OPERATION_POINTWISE, OPERATION_POINTWISE_XDESC, true, TENSOR),
    PART(OPERATION_POINTWISE, OPERATION_POINTWISE_BDESC, false, TENSOR),
    PART(OPERATION_POINTWISE, OPERATION_POINTWISE_TDESC, false, TENSOR),
    PART(OPERATION_POINTWISE, OPERATION_POINTWISE_YDESC, true, TENSOR),
    PART(OPERATION_REDUCTION, OPERATION_REDUCTION_DESC, true, CUDNN_BACKEND_REDUCTION_DESCRIPTOR),
    PART(OPERATION_REDUCTION, OPERATION_REDUCTION_XDESC, true, TENSOR),
    PART(OPERATION_REDUCTION, OPERATION_REDUCTION_YDESC, true, TENSOR),
    PART(OPERATION_RESHAPE, OPERATION_RESHAPE_XDESC, true, TENSOR),
    PART(OPERATION_RESHAPE, OPERATION_RESHAPE_YDESC, true, TENSOR),
    ATTR(OPERATIONGRAPH, OPERATIONGRAPH_OPS, BACKEND_DESCRIPTOR, MANY, true, ANY),
    ATTR(OPERATIONGRAPH, OPERATIONGRAPH_HANDLE, HANDLE, 1, true, 0),
    PART(ENGINEHEUR, ENGINEHEUR_OPERATION_GRAPH, true, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR),
    ONE(ENGINEHEUR, ENGINEHEUR_MODE, HEUR_MODE),
    PART(ENGINE, ENGINE_OPERATION_GRAPH, true, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR),
    ONE(ENGINE, ENGINE_GLOBAL_INDEX, INT64),
    ONE(KNOB_CHOICE, KNOB_CHOICE_KNOB_TYPE, KNOB_TYPE),
    ONE(KNOB_CHOICE, KNOB_CHOICE_KNOB_VALUE, INT64),
    PART(ENGINECFG, ENGINECFG_ENGINE, true, CUDNN_BACKEND_ENGINE_DESCRIPTOR),
    ATTR(ENGINECFG, ENGINECFG_KNOB_CHOICES, BACKEND_DESCRIPTOR, MANY, true,
         CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR),
    PART(EXECUTION_PLAN, EXECUTION_PLAN_ENGINE_CONFIG, true, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR),
    ONE(EXECUTION_PLAN, EXECUTION_PLAN_HANDLE, HANDLE),
    ATTR(VARIANT_PACK, VARIANT_PACK_UNIQUE_IDS, INT64, MANY, true, 0),
    ATTR(VARIANT_PACK, VARIANT_PACK_DATA_POINTERS, VOID_PTR, MANY, true, 0),
    ONE(VARIANT_PACK, VARIANT_PACK_WORKSPACE, VOID_PTR),
};

size_t size_of(int type)
{
    return type == CUDNN_TYPE_BOOLEAN ? sizeof(bool)
           : type == CUDNN_TYPE_INT64 ? sizeof(int64_t)
           : type == CUDNN_TYPE_HANDLE || type == CUDNN_TYPE_VOID_PTR || type == CUDNN_TYPE_BACKEND_DESCRIPTOR
               ? sizeof(void *)
               : sizeof(int);
}

struct engine {
    const char *why_not; /* plans only: why the plan is refused; NULL: it is accepted */
    int64_t number, workspace;
    bool deterministic;
};

struct descriptor {
    int kind;
    bool finalized;
    std::map<int, std::vector<char>> values;
    engine how; /* engines, engine configurations and plans only: the engine */
    const descriptor *graph;

    bool has(int name) const { return values.count(name) != 0; }
    int64_t count(int name, int type) const { return (int64_t)(values.at(name).size() / size_of(type)); }
    template <class T> T get(int name, int64_t i = 0) const
    {
        T value;
        memcpy(&value, values.at(name).data() + (size_t)i * sizeof value, sizeof value);
        return value;
    }
    const descriptor *part(int name, int64_t i = 0) const
    {
        return has(name) ? (const descriptor *)get<void *>(name, i) : nullptr;
    }
};

const rule *find_rule(int kind, int name)
{
    for (const rule &r : rules)
        if (r.kind == kind && r.name == name)
            return &r;
    return nullptr;
}

bool is_operation(int kind)
{
    return kind == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR ||
           kind == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR ||
           kind == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR ||
           kind == CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR;
}

/* ---- tensors ------------------------------------------------------------------------------------- */

struct shape {
    int64_t dim[4], stride[4], uid;
    int type;
    bool inside, number;
    explicit shape(const descriptor *d)
    {
        for (int i = 0; i < 4; i++) {
            dim[i] = d->get<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS, i);
            stride[i] = d->get<int64_t>(CUDNN_ATTR_TENSOR_STRIDES, i);
        }
        uid = d->get<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID);
        type = d->get<int>(CUDNN_ATTR_TENSOR_DATA_TYPE);
        inside = d->has(CUDNN_ATTR_TENSOR_IS_VIRTUAL) && d->get<bool>(CUDNN_ATTR_TENSOR_IS_VIRTUAL);
        number = d->has(CUDNN_ATTR_TENSOR_IS_BY_VALUE) && d->get<bool>(CUDNN_ATTR_TENSOR_IS_BY_VALUE);
    }
    int64_t size() const { return dim[0] * dim[1] * dim[2] * dim[3]; }
    bool dense() const
    {
        int64_t next = 1;
        for (int i = 3; i >= 0; next *= dim[i--])
            if (dim[i] != 1 && stride[i] != next)
                return false;
        return true;
    }
    template <class F> void each(F f) const /* calls f(index in row-major order, offset in memory) */
    {
        int64_t at = 0;
        for (int64_t a = 0; a < dim[0]; a++)
            for (int64_t b = 0; b < dim[1]; b++)
                for (int64_t c = 0; c < dim[2]; c++)
                    for (int64_t e = 0; e < dim[3]; e++)
                        f(at++, a * stride[0] + b * stride[1] + c * stride[2] + e * stride[3]);
    }
};

bool is_half(int type) { return type == CUDNN_DATA_BFLOAT16 || type == CUDNN_DATA_HALF; }

cudnnStatus_t check_tensor(const descriptor *d)
{
    if (d->count(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64) != 4 ||
        d->count(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64) != 4)
        return bad("a tensor is not of four dims");
    shape s(d);
    for (int i = 0; i < 4; i++)
        if (s.dim[i] <= 0 || s.stride[i] <= 0)
            return bad("a dim or stride is not positive");
    if (s.inside && s.number)
        return bad("a number is inside");
    if (s.number && s.size() != 1)
        return bad("a number has several elements");
    if (!s.inside && s.type == CUDNN_DATA_INT32)
        return unsupported("the engines take no integers from outside");
    if (!s.inside && s.type == CUDNN_DATA_FLOAT && !s.dense())
        return bad("statistics are not dense"); /* the library accepts them, but its gradients are wrong */
    if (!s.inside && is_half(s.type))
        for (int i = 0; i < 4; i++)
            if (s.stride[i] != 1 && s.dim[i] != 1 && s.stride[i] % 8)
                return unsupported("rows of heads do not start on 16 bytes");
    return CUDNN_STATUS_SUCCESS;
}

/* ---- operations ---------------------------------------------------------------------------------- */

/* The tensors that an operation reads and writes. */
struct wires {
    std::vector<const descriptor *> in;
    const descriptor *out, *how;
    explicit wires(const descriptor *op)
    {
        int names[5] = {};
        switch (op->kind) {
        case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR: {
            int mine[] = {CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_ATTR_OPERATION_MATMUL_BDESC, -1,
                          CUDNN_ATTR_OPERATION_MATMUL_CDESC, CUDNN_ATTR_OPERATION_MATMUL_DESC};
            memcpy(names, mine, sizeof names);
            break;
        }
        case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: {
            int mine[] = {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                          CUDNN_ATTR_OPERATION_POINTWISE_TDESC, CUDNN_ATTR_OPERATION_POINTWISE_YDESC,
                          CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR};
            memcpy(names, mine, sizeof names);
            break;
        }
        case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR: {
            int mine[] = {CUDNN_ATTR_OPERATION_REDUCTION_XDESC, -1, -1, CUDNN_ATTR_OPERATION_REDUCTION_YDESC,
                          CUDNN_ATTR_OPERATION_REDUCTION_DESC};
            memcpy(names, mine, sizeof names);
            break;
        }
        default: {
            int mine[] = {CUDNN_ATTR_OPERATION_RESHAPE_XDESC, -1, -1, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, -1};
            memcpy(names, mine, sizeof names);
        }
        }
        for (int i = 0; i < 3; i++)
            if (names[i] >= 0 && op->has(names[i]))
                in.push_back(op->part(names[i]));
        out = op->part(names[3]);
        how = op->part(names[4]);
    }
    int mode() const { return how->get<int>(CUDNN_ATTR_POINTWISE_MODE); }
};

cudnnStatus_t check_product(const shape &a, const shape &b, const shape &c)
{
    bool fits = a.dim[0] == b.dim[0] && a.dim[0] == c.dim[0] && a.dim[1] == c.dim[1] &&
                a.dim[1] % b.dim[1] == 0 && a.dim[2] == c.dim[2] && a.dim[3] == b.dim[2] &&
                b.dim[3] == c.dim[3];
    return fits ? CUDNN_STATUS_SUCCESS : bad("shapes of a product");
}

cudnnStatus_t check_pointwise(const wires &w)
{
    static const std::map<int, size_t> inputs = {
        {CUDNN_POINTWISE_ADD, 2},     {CUDNN_POINTWISE_MUL, 2},           {CUDNN_POINTWISE_DIV, 2},
        {CUDNN_POINTWISE_SUB, 2},     {CUDNN_POINTWISE_EXP, 1},           {CUDNN_POINTWISE_LOG, 1},
        {CUDNN_POINTWISE_CMP_GE, 2},  {CUDNN_POINTWISE_BINARY_SELECT, 3}, {CUDNN_POINTWISE_GEN_INDEX, 1},
        {CUDNN_POINTWISE_IDENTITY, 1}};
    if (!inputs.count(w.mode()) || inputs.at(w.mode()) != w.in.size())
        return bad("operands of a pointwise operation");
    if ((w.mode() == CUDNN_POINTWISE_GEN_INDEX) != w.how->has(CUDNN_ATTR_POINTWISE_AXIS))
        return bad("an axis");
    shape y(w.out);
    for (const descriptor *d : w.in) {
        shape x(d);
        for (int i = 0; i < 4; i++)
            if (x.dim[i] != y.dim[i] && x.dim[i] != 1)
                return bad("shapes of a pointwise operation");
    }
    bool compares = w.mode() == CUDNN_POINTWISE_CMP_GE;
    if (compares != (y.type == CUDNN_DATA_BOOLEAN) ||
        (compares && shape(w.in[0]).type != shape(w.in[1]).type) ||
        (w.mode() == CUDNN_POINTWISE_BINARY_SELECT && shape(w.in[2]).type != CUDNN_DATA_BOOLEAN))
        return bad("types of a comparison");
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t check_operation(const descriptor *op)
{
    wires w(op);
    shape x(w.in[0]), y(w.out);
    if (y.number)
        return bad("an operation makes a number of the host");
    if (op->kind == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)
        return check_product(x, shape(w.in[1]), y);
    if (op->kind == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
        return check_pointwise(w);
    if (op->kind == CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR)
        return x.size() == y.size() ? CUDNN_STATUS_SUCCESS : bad("shapes of a reshape");
    for (int i = 0; i < 4; i++)
        if (x.dim[i] % y.dim[i])
            return bad("shapes of a reduction");
    return CUDNN_STATUS_SUCCESS;
}

std::vector<const descriptor *> operations_of(const descriptor *graph)
{
    std::vector<const descriptor *> all;
    int64_t n = graph->count(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR);
    for (int64_t i = 0; i < n; i++)
        all.push_back(graph->part(CUDNN_ATTR_OPERATIONGRAPH_OPS, i));
    return all;
}

/* Checks that each virtual tensor is written once, before it is read, and that no two tensors have the same
 * id. */
cudnnStatus_t check_graph(const descriptor *graph)
{
    std::map<int64_t, const descriptor *> known;
    std::map<const descriptor *, bool> made;
    for (const descriptor *op : operations_of(graph)) {
        wires w(op);
        std::vector<const descriptor *> all = w.in;
        all.push_back(w.out);
        for (const descriptor *d : all)
            if (known.emplace(shape(d).uid, d).first->second != d)
                return bad("two tensors have the same number");
        for (const descriptor *d : w.in)
            if (shape(d).inside && !made[d])
                return bad("nothing makes a tensor that is read");
        if (made[w.out])
            return bad("a tensor is made twice");
        made[w.out] = true;
    }
    return CUDNN_STATUS_SUCCESS;
}

/* ---- engines ------------------------------------------------------------------------------------- */

bool has_pointwise(const descriptor *graph, int mode)
{
    for (const descriptor *op : operations_of(graph))
        if (op->kind == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR && wires(op).mode() == mode)
            return true;
    return false;
}

/* Returns the engines that the heuristic proposes for a graph. The plugin must not take the first two: one is
 * not deterministic, the other has no kernel. Forward needs the softmax statistics. Backward needs workspace,
 * because its gradients come from matmuls with a stored matrix dS. */
std::vector<engine> engines_for(const descriptor *graph)
{
    int64_t products = 0, scores = 0, width = 0;
    for (const descriptor *op : operations_of(graph)) {
        wires w(op);
        if (op->kind != CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)
            continue;
        if (!products++) {
            shape c(w.out);
            int64_t tiled = (c.dim[2] + 127) / 128 * 128;
            scores = c.dim[0] * c.dim[1] * tiled * tiled;
            width = shape(w.in[0]).dim[3];
        }
    }
    bool forward = products == 2 && has_pointwise(graph, CUDNN_POINTWISE_LOG);
    if (width % 8 || width > 256 || (!forward && products != 5))
        return {};
    return {{nullptr, 1, 0, false},
            {"no kernel of this configuration fits", 2, 0, true},
            {nullptr, forward ? 2 : 6, 256 + (forward ? 0 : 2 * scores), true}};
}

/* Sets the engine of a configuration that the plugin made itself: engine 6 of version 9.25, which sums dq in
 * a fixed order with exactly these knobs. */
cudnnStatus_t configure(descriptor *config)
{
    static const std::map<int, int64_t> wanted = {
        {CUDNN_KNOB_TYPE_TILE_M, 2},   {CUDNN_KNOB_TYPE_TILE_N, 1},     {CUDNN_KNOB_TYPE_KERNEL_CFG, 2},
        {CUDNN_KNOB_TYPE_STREAM_K, 0}, {CUDNN_KNOB_TYPE_TILE_CGA_M, 0}, {CUDNN_KNOB_TYPE_STAGES, 4}};
    const descriptor *engine = config->part(CUDNN_ATTR_ENGINECFG_ENGINE);
    std::map<int, int64_t> knobs;
    for (int64_t i = 0; i < config->count(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR);
         i++) {
        const descriptor *choice = config->part(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, i);
        knobs[choice->get<int>(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE)] =
            choice->get<int64_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE);
    }
    config->graph = engine->part(CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
    if (cudnnGetVersion() < 92500 || engine->get<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX) != 6 ||
        knobs != wanted || !has_pointwise(config->graph, CUDNN_POINTWISE_IDENTITY))
        return unsupported("no engine has this configuration");
    config->how = {nullptr, 6, 256, true};
    return CUDNN_STATUS_SUCCESS;
}

/* ---- running ------------------------------------------------------------------------------------- */

typedef std::vector<float> array; /* dense, row-major */

ax_dtype dtype_of(int type)
{
    return type == CUDNN_DATA_BFLOAT16 ? AX_BF16 : type == CUDNN_DATA_HALF ? AX_F16 : AX_F32;
}

float rounded(float x, int type)
{
    return type == CUDNN_DATA_BFLOAT16  ? ax_bf16_to_float(ax_bf16_from_float(x))
           : type == CUDNN_DATA_HALF    ? ax_f16_to_float(ax_f16_from_float(x))
           : type == CUDNN_DATA_BOOLEAN ? (float)(x != 0)
                                        : x;
}

/* Maps an index into y to the element of x that is broadcast to it. */
struct spread {
    int64_t step[4], dim[4];
    spread(const shape &x, const shape &y)
    {
        int64_t next = 1;
        for (int i = 3; i >= 0; i--) {
            step[i] = x.dim[i] == 1 ? 0 : next;
            next *= x.dim[i];
            dim[i] = y.dim[i];
        }
    }
    int64_t of(int64_t at) const
    {
        int64_t out = 0;
        for (int i = 3; i >= 0; i--) {
            out += at % dim[i] * step[i];
            at /= dim[i];
        }
        return out;
    }
};

struct runner {
    std::map<int64_t, void *> outside;
    std::map<int64_t, float> numbers;
    std::map<const descriptor *, array> inside;

    array read(const descriptor *d)
    {
        shape s(d);
        if (s.number)
            return {numbers.at(s.uid)};
        if (s.inside)
            return inside.at(d);
        array out((size_t)s.size());
        const void *from = outside.at(s.uid);
        ax_dtype dtype = dtype_of(s.type);
        s.each([&](int64_t at, int64_t offset) { out[(size_t)at] = (float)ax_load(dtype, from, offset); });
        return out;
    }

    void write(const descriptor *d, array value)
    {
        shape s(d);
        for (float &x : value)
            x = rounded(x, s.type);
        if (s.inside) {
            inside[d] = std::move(value);
            return;
        }
        void *to = outside.at(s.uid);
        ax_dtype dtype = dtype_of(s.type);
        s.each([&](int64_t at, int64_t offset) { ax_store(dtype, to, offset, value[(size_t)at]); });
    }

    array product(const wires &w)
    {
        shape sa(w.in[0]), sb(w.in[1]), sc(w.out);
        array a = read(w.in[0]), b = read(w.in[1]), c((size_t)sc.size());
        const int64_t m = sa.dim[2], k = sa.dim[3], n = sb.dim[3], group = sa.dim[1] / sb.dim[1];
        const int type = is_half(sa.type) ? sa.type : sb.type;
        std::vector<double> sum((size_t)n);
        for (float &x : a)
            x = rounded(x, type);
        for (float &x : b)
            x = rounded(x, type);
        for (int64_t z = 0; z < sa.dim[0] * sa.dim[1]; z++) {
            const float *left = a.data() + z * m * k,
                        *right = b.data() + (z / sa.dim[1] * sb.dim[1] + z % sa.dim[1] / group) * k * n;
            for (int64_t i = 0; i < m; i++) {
                std::fill(sum.begin(), sum.end(), 0.0);
                for (int64_t p = 0; p < k; p++)
                    for (int64_t j = 0; j < n; j++)
                        sum[(size_t)j] += (double)left[i * k + p] * right[p * n + j];
                for (int64_t j = 0; j < n; j++)
                    c[(size_t)((z * m + i) * n + j)] = (float)sum[(size_t)j];
            }
        }
        return c;
    }

    static float apply(int mode, float x, float b, float t)
    {
        switch (mode) {
        case CUDNN_POINTWISE_ADD:
            return x + b;
        case CUDNN_POINTWISE_SUB:
            return x - b;
        case CUDNN_POINTWISE_MUL:
            return x * b;
        case CUDNN_POINTWISE_DIV:
            return x / b;
        case CUDNN_POINTWISE_EXP:
            return expf(x);
        case CUDNN_POINTWISE_LOG:
            return logf(x);
        case CUDNN_POINTWISE_CMP_GE:
            return x >= b;
        case CUDNN_POINTWISE_IDENTITY:
            return x;
        default: /* CUDNN_POINTWISE_BINARY_SELECT */
            return t != 0 ? x : b;
        }
    }

    array pointwise(const wires &w)
    {
        shape y(w.out);
        array out((size_t)y.size());
        if (w.mode() == CUDNN_POINTWISE_GEN_INDEX) {
            int64_t axis = w.how->get<int64_t>(CUDNN_ATTR_POINTWISE_AXIS), inner = 1;
            for (int64_t i = 3; i > axis; i--)
                inner *= y.dim[i];
            for (int64_t at = 0; at < y.size(); at++)
                out[(size_t)at] = (float)(at / inner % y.dim[axis]);
            return out;
        }
        array in[3];
        std::vector<spread> from;
        for (size_t i = 0; i < w.in.size(); i++) {
            in[i] = read(w.in[i]);
            from.emplace_back(shape(w.in[i]), y);
        }
        for (int64_t at = 0; at < y.size(); at++) {
            float v[3] = {};
            for (size_t i = 0; i < w.in.size(); i++)
                v[i] = in[i][(size_t)from[i].of(at)];
            out[(size_t)at] = apply(w.mode(), v[0], v[1], v[2]);
        }
        return out;
    }

    array reduction(const wires &w)
    {
        shape x(w.in[0]), y(w.out);
        bool adds = w.how->get<int>(CUDNN_ATTR_REDUCTION_OPERATOR) == CUDNN_REDUCE_TENSOR_ADD;
        array in = read(w.in[0]);
        std::vector<double> sum((size_t)y.size(), adds ? 0 : -INFINITY);
        for (int64_t at = 0; at < x.size(); at++) {
            int64_t rest = at, to = 0, next = 1;
            for (int i = 3; i >= 0; i--) { /* adjacent elements are summed, as the heads of a group are */
                to += rest % x.dim[i] / (x.dim[i] / y.dim[i]) * next;
                rest /= x.dim[i];
                next *= y.dim[i];
            }
            double value = in[(size_t)at], &s = sum[(size_t)to];
            s = adds ? s + value : value > s ? value : s;
        }
        return array(sum.begin(), sum.end());
    }

    /* Returns the same memory with other strides. */
    array reshape(const wires &w)
    {
        shape x(w.in[0]), y(w.out);
        array in = read(w.in[0]), out((size_t)y.size());
        int64_t last = 0;
        for (int i = 0; i < 4; i++)
            last += (x.dim[i] - 1) * x.stride[i];
        array memory((size_t)last + 1);
        x.each([&](int64_t at, int64_t offset) { memory[(size_t)offset] = in[(size_t)at]; });
        y.each([&](int64_t at, int64_t offset) { out[(size_t)at] = memory[(size_t)offset]; });
        return out;
    }

    void run(const std::vector<const descriptor *> &operations)
    {
        for (const descriptor *op : operations) {
            wires w(op);
            write(w.out, op->kind == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR      ? product(w)
                         : op->kind == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR ? pointwise(w)
                         : op->kind == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR ? reduction(w)
                                                                                    : reshape(w));
        }
    }
};

/* Returns the tensors for which a variant pack must have pointers. */
std::map<int64_t, const descriptor *> operands_of(const descriptor *graph)
{
    std::map<int64_t, const descriptor *> out;
    for (const descriptor *op : operations_of(graph)) {
        wires w(op);
        w.in.push_back(w.out);
        for (const descriptor *d : w.in)
            if (!shape(d).inside)
                out[shape(d).uid] = d;
    }
    return out;
}

std::atomic<long> opened, executed;

} // namespace

/* For tests: the number of handles created in this process, and of plans run. */
extern "C" __attribute__((visibility("default"))) long ax_emulated_cudnn_opened() { return opened; }
extern "C" __attribute__((visibility("default"))) long ax_emulated_cudnn_executed() { return executed; }

/* ---- the interface ------------------------------------------------------------------------------- */

size_t cudnnGetVersion(void)
{
    const char *how = getenv("AXONN_EMULATED_CUDNN");
    return how && !strcmp(how, "9.25") ? 92500 : 91900;
}
const char *cudnnGetErrorString(cudnnStatus_t status)
{
    return status == CUDNN_STATUS_NOT_SUPPORTED ? "not supported" : "refused by the stand-in";
}
void cudnnGetLastErrorString(char *message, size_t size) { snprintf(message, size, "%s", reason.c_str()); }

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    const char *how = getenv("AXONN_EMULATED_CUDNN");
    opened++;
    if (how && !strcmp(how, "absent"))
        return refuse(CUDNN_STATUS_NOT_INITIALIZED, "the library is not there");
    *handle = new cudnnContext{nullptr};
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    delete handle;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *out)
{
    *out = new descriptor{type, false, {}, {nullptr, 0, 0, true}, nullptr};
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t d)
{
    delete (descriptor *)d;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t to, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    descriptor *d = (descriptor *)to;
    const rule *r = find_rule(d->kind, name);
    if (d->finalized)
        return bad("it is finalized");
    if (!r)
        return bad("a descriptor of this kind has no such attribute");
    if (r->type != type || count < 1 || count > r->most || !values)
        return bad("type or count of an attribute");
    for (int64_t i = 0; type == CUDNN_TYPE_BACKEND_DESCRIPTOR && i < count; i++) {
        const descriptor *part = ((descriptor *const *)values)[i];
        if (!part || !part->finalized)
            return bad("what it refers to is not finalized");
        if (r->of == ANY ? !is_operation(part->kind) : part->kind != r->of)
            return bad("what it refers to is something else");
    }
    d->values[name].assign((const char *)values, (const char *)values + (size_t)count * size_of(type));
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t of)
{
    descriptor *d = (descriptor *)of;
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    if (d->finalized)
        return bad("it is finalized");
    for (const rule &r : rules)
        if (r.kind == d->kind && r.needed && !d->has(r.name))
            return bad("attribute " + std::to_string(r.name) + " is missing");
    if (d->kind == TENSOR) {
        status = check_tensor(d);
    } else if (is_operation(d->kind)) {
        status = check_operation(d);
    } else if (d->kind == CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR) {
        status = check_graph(d);
    } else if (d->kind == CUDNN_BACKEND_ENGINECFG_DESCRIPTOR) {
        status = configure(d);
    } else if (d->kind == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
        const descriptor *config = d->part(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
        d->how = config->how;
        d->graph = config->graph;
        const char *how = getenv("AXONN_EMULATED_CUDNN");
        if (d->how.why_not)
            status = unsupported(d->how.why_not);
        else if (how && !strcmp(how, "uncompiled"))
            status = unsupported("runtime kernel compilation failure");
    } else if (d->kind == CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR) {
        if (d->count(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64) !=
            d->count(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR))
            status = bad("a pack has other numbers than addresses");
    }
    d->finalized = status == CUDNN_STATUS_SUCCESS;
    return status;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t of, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t, int64_t most, int64_t *count,
                                       void *values)
{
    const descriptor *d = (const descriptor *)of;
    *count = 1;
    if (!d->finalized)
        return bad("it is not finalized");
    if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS && d->kind == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR) {
        const descriptor *graph = d->part(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
        std::vector<engine> found = engines_for(graph);
        *count = (int64_t)found.size();
        for (int64_t i = 0; i < *count && i < most; i++) {
            descriptor *config = ((descriptor **)values)[i];
            config->how = found[(size_t)i];
            config->graph = graph;
            config->finalized = true;
        }
        return CUDNN_STATUS_SUCCESS;
    }
    if (name == CUDNN_ATTR_ENGINECFG_ENGINE && d->kind == CUDNN_BACKEND_ENGINECFG_DESCRIPTOR) {
        descriptor *engine = *(descriptor **)values;
        engine->how = d->how;
        engine->finalized = true;
    } else if (name == CUDNN_ATTR_ENGINE_GLOBAL_INDEX) {
        memcpy(values, &d->how.number, sizeof d->how.number);
    } else if (name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE) {
        const cudnnBackendNumericalNote_t notes[] = {CUDNN_NUMERICAL_NOTE_TENSOR_CORE,
                                                     CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC};
        *count = d->how.deterministic ? 1 : 2;
        memcpy(values, notes, (size_t)(*count < most ? *count : most) * sizeof *notes);
    } else if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) {
        memcpy(values, &d->how.workspace, sizeof d->how.workspace);
    } else {
        return bad("there is no such attribute to be had");
    }
    return CUDNN_STATUS_SUCCESS;
}

/* Like the library, reads scalars in host memory now, and device memory when the stream reaches the call.
 * Descriptors must live until then. All of the workspace is overwritten, so that other data there are
 * lost. */
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack)
{
    const descriptor *p = (const descriptor *)plan, *given = (const descriptor *)pack;
    if (p->kind != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR || !p->finalized || !given->finalized ||
        given->kind != CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)
        return bad("no plan and pack");
    std::map<int64_t, const descriptor *> wanted = operands_of(p->graph);
    const char *how = getenv("AXONN_EMULATED_CUDNN");
    const float factor = how && !strcmp(how, "wrong") ? 2 : 1;
    runner r;
    int64_t n = given->count(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64);
    if (n != (int64_t)wanted.size())
        return bad("a pack has too few or too many operands");
    for (int64_t i = 0; i < n; i++) {
        int64_t uid = given->get<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, i);
        void *at = given->get<void *>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, i);
        if (!wanted.count(uid) || !at)
            return bad("an operand of no tensor, or of no memory");
        const descriptor *d = wanted.at(uid);
        if (shape(d).number)
            r.numbers[uid] = factor * *(const float *)at;
        else if ((uintptr_t)at % (uintptr_t)d->get<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT))
            return bad("an operand is not aligned as it was said to be");
        r.outside[uid] = at;
    }
    executed++;
    void *workspace = given->get<void *>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
    if (p->how.workspace && !workspace)
        return bad("no workspace");
    size_t bytes = (size_t)p->how.workspace;
    std::vector<const descriptor *> operations = operations_of(p->graph);
    ax_emulated_enqueue(handle->stream, [=]() mutable {
        memset(workspace, 0xff, bytes);
        r.run(operations);
    });
    return CUDNN_STATUS_SUCCESS;
}
