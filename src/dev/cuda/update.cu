/* Optimizer updates of one flat array. Scalars are rounded to A once, on the host. */
#include "dev/cuda/kernels.cuh"

namespace
{

template <class A> struct adamw {
    A lr, beta1, beta2, one_minus_beta1, one_minus_beta2, eps, decay, correction1, correction2, grad_scale;
    void *w, *m, *v;
    const void *g;
};

template <class A> adamw<A> adamw_of(const ax_adamw_args *a)
{
    adamw<A> s;
    s.lr = (A)a->lr;
    s.beta1 = (A)a->beta1;
    s.beta2 = (A)a->beta2;
    s.one_minus_beta1 = (A)(1 - a->beta1);
    s.one_minus_beta2 = (A)(1 - a->beta2);
    s.eps = (A)a->eps;
    s.decay = (A)(a->lr * a->decay);
    s.correction1 = (A)(1 / a->correction1);
    s.correction2 = (A)(1 / sqrt(a->correction2));
    s.grad_scale = (A)a->grad_scale;
    s.w = a->w;
    s.m = a->m;
    s.v = a->v;
    s.g = a->g;
    return s;
}

/* The weights in the type that kernels compute with: C is void where there is no copy. */
template <class A, class C> struct copy_of {
    template <int N> __device__ static void store_copy(void *copy, int64_t at, const pack<A, N> &w)
    {
        write<C, A, N>(copy, at, w);
    }
};
template <class A> struct copy_of<A, void> {
    template <int N> __device__ static void store_copy(void *, int64_t, const pack<A, N> &) {}
};

template <class A, class C> struct adamw_step {
    adamw<A> s;
    void *copy;
    template <int N> __device__ void run(int64_t at) const
    {
        pack<A, N> w = load<A, N>(s.w, at), m = load<A, N>(s.m, at), v = load<A, N>(s.v, at),
                   g = load<A, N>(s.g, at);
#pragma unroll
        for (int i = 0; i < N; i++) {
            A grad = s.grad_scale * g.v[i];
            m.v[i] = s.beta1 * m.v[i] + s.one_minus_beta1 * grad;
            v.v[i] = s.beta2 * v.v[i] + s.one_minus_beta2 * grad * grad;
            w.v[i] -= s.decay * w.v[i];
            w.v[i] -= s.lr * (m.v[i] * s.correction1) / (root(v.v[i]) * s.correction2 + s.eps);
        }
        store<A, N>(s.w, at, w);
        store<A, N>(s.m, at, m);
        store<A, N>(s.v, at, v);
        copy_of<A, C>::template store_copy<N>(copy, at, w);
    }
};

template <class A> struct sgd {
    A lr, momentum, decay, grad_scale;
    void *w, *m;
    const void *g;
};

template <class A, class C> struct sgd_step {
    sgd<A> s;
    void *copy;
    template <int N> __device__ void run(int64_t at) const
    {
        pack<A, N> w = load<A, N>(s.w, at), m = {}, g = load<A, N>(s.g, at);
        if (s.m)
            m = load<A, N>(s.m, at);
#pragma unroll
        for (int i = 0; i < N; i++) {
            m.v[i] = s.momentum * m.v[i] + (s.grad_scale * g.v[i] + s.decay * w.v[i]);
            w.v[i] -= s.lr * m.v[i];
        }
        store<A, N>(s.w, at, w);
        if (s.m)
            store<A, N>(s.m, at, m);
        copy_of<A, C>::template store_copy<N>(copy, at, w);
    }
};

/* Step<A, C> made of `s` for the element type of the copy. */
template <template <class, class> class Step, class A, class S>
ax_status update(ax_stream *stream, int64_t n, bool wide, const S &s, void *copy, ax_dtype copy_dtype)
{
    if (!copy)
        return each<width<A>::value>(stream, n, wide, Step<A, void>{s, NULL});
    return by_activation(copy_dtype, [&](auto c) {
        const int N = 16 / (sizeof(A) > sizeof(c) ? sizeof(A) : sizeof(c));
        return each<N>(stream, n, wide && aligned({copy}), Step<A, decltype(c)>{s, copy});
    });
}

} // namespace

ax_status ax_cuda_adamw(ax_stream *stream, const void *args)
{
    const ax_adamw_args *a = (const ax_adamw_args *)args;
    bool wide = aligned({a->w, a->m, a->v, a->g});
    return by_accum(a->dtype, [&](auto t) {
        typedef decltype(t) A;
        return update<adamw_step, A>(stream, a->n, wide, adamw_of<A>(a), a->copy, a->copy_dtype);
    });
}

ax_status ax_cuda_sgd(ax_stream *stream, const void *args)
{
    const ax_sgd_args *a = (const ax_sgd_args *)args;
    bool wide = aligned({a->w, a->m, a->g});
    return by_accum(a->dtype, [&](auto t) {
        typedef decltype(t) A;
        sgd<A> s = {(A)a->lr, (A)a->momentum, (A)a->decay, (A)a->grad_scale, a->w, a->m, a->g};
        return update<sgd_step, A>(stream, a->n, wide, s, a->copy, a->copy_dtype);
    });
}
