/* What the files of the interpreter share. Read jinja.h first.
 *
 * All memory of a template, and all memory of one rendering, is in an arena that is released at once. So an
 * error leaves by longjmp (jx_fail) from any depth, and functions return values instead of statuses. */
#ifndef AXONN_TOKEN_JINJA_INNER_H
#define AXONN_TOKEN_JINJA_INNER_H

#include "token/jinja/jinja.h"

#include <setjmp.h>
#include <string.h>

#pragma GCC visibility push(hidden)

typedef struct jx jx;
typedef struct node node;
typedef struct jstr jstr;
typedef struct jlist jlist;
typedef struct jdict jdict;
typedef struct jloop jloop;
typedef struct jmacro jmacro;
typedef struct jmethod jmethod;
typedef struct jargs jargs;
typedef struct scope scope;

/* ---- values -------------------------------------------------------------------------------------- */

typedef enum jkind {
    J_UNDEFINED,
    J_NONE,
    J_BOOL,
    J_INT,
    J_REAL,
    J_STRING,
    J_LIST, /* also tuples, views and generators: jlist.kind */
    J_DICT,
    J_NAMESPACE,
    J_LOOP,
    J_MACRO,
    J_METHOD,
    J_FUNCTION
} jkind;

typedef struct jv jv;
typedef jv (*jfn)(jx *e, jv self, const jargs *a);

struct jv {
    jkind kind : 8;
    uint8_t of;      /* J_UNDEFINED: `what` is the name of something missing, not a sentence */
    uint32_t facets; /* 1 + its number in jx.facets if it depends on the number of messages (facet.c) */
    union {
        int64_t i; /* J_BOOL, J_INT */
        double real;
        jstr *s;
        jlist *list;
        jdict *dict; /* J_DICT, J_NAMESPACE */
        jloop *loop;
        jmacro *macro;
        jmethod *method;
        jfn fn;
        const char *what; /* J_UNDEFINED: what is missing, for messages (undefined_text) */
    };
};

/* A run of bytes from one origin (ax_jinja_part.from). */
typedef struct jrun {
    size_t end;
    int32_t from;
} jrun;

/* An immutable string: bytes, or two strings one after the other, which become bytes when they are needed. */
struct jstr {
    const char *data; /* NULL: left and right */
    size_t n;
    jstr *left, *right;
    int depth;     /* of ropes to the right */
    int32_t from;  /* n_runs 0 and not mixed */
    bool mixed;    /* of several origins: `runs` if data is set */
    uint32_t born; /* jx.now_born then */
    jrun *runs;
    size_t n_runs;
};

typedef enum jlist_kind { L_LIST, L_TUPLE, L_VIEW, L_GENERATOR, L_RANGE } jlist_kind;
struct jlist {
    jv *v;
    size_t n, capacity;
    jlist_kind kind;
    bool spent;   /* a generator that was read */
    bool watched; /* the messages from number `offset` on, or as many numbers (cut.c) */
    size_t offset;
    uint32_t length; /* 1 + the number of the facets of its length in jx.facets; 0: not known */
    jv *back;        /* NULL, or the first n_back elements from the last one on */
    size_t n_back;
};

struct jdict {
    jv *key, *value; /* in the order of insertion */
    size_t n, capacity;
    bool given; /* an object of the context, which never changes */
};

struct jmethod {
    const char *name;
    jv self;
    jfn fn;
};

/* Arguments of a call. */
struct jargs {
    jv *v;
    size_t n;
    const char **names; /* of the named arguments, interned */
    jv *named;
    size_t n_named;
};

struct jloop {
    jlist *items;
    size_t next; /* index of the next candidate; it passes if `peeked` */
    int64_t index;
    jv now, before;
    bool peeked, has_before, busy; /* busy: its condition is evaluated */
    bool wrote;                    /* elements wrote text */
    jv changed;                    /* arguments of the last call of loop.changed; J_UNDEFINED: none */
    const node *node;
    scope *outer;
    int depth;
};

struct jmacro {
    const node *node;
    scope *outer;
};

/* ---- the template -------------------------------------------------------------------------------- */

typedef enum node_type {
    /* expressions */
    N_CONST,   /* value */
    N_NAME,    /* name */
    N_LIST,    /* a...: elements */
    N_TUPLE,   /* a...: elements */
    N_DICT,    /* a, b...: keys and values in turns */
    N_ATTR,    /* a . name; value: the name; flag: it is no method's, and does not begin with __; op:
                  loop_number; fn: the method of strings */
    N_ITEM,    /* a [ b ] */
    N_SLICE,   /* a : b : c, each may be NULL; only as b of N_ITEM */
    N_CALL,    /* a ( b...: N_ARG ) */
    N_ARG,     /* a; name: that of a named argument; op '*', 'P' (**) */
    N_FILTER,  /* a | name ( b... ); a NULL: the text of a block; op 'l': the length */
    N_TEST,    /* a is name ( b... ); flag: not; op 'k': asks for the kind of a value alone */
    N_NEG,     /* - a */
    N_POS,     /* + a */
    N_NOT,     /* not a */
    N_AND,     /* a and b */
    N_OR,      /* a or b */
    N_BINARY,  /* a op b */
    N_CONCAT,  /* a...: joined by ~ */
    N_COMPARE, /* a, then b...: N_ARG with op and a */
    N_COND,    /* b if a else c */
    /* statements */
    N_DATA,         /* value */
    N_PRINT,        /* a */
    N_FOR,          /* for a in b if c; body d; other: else; flag: recursive; op 'w': the body can write */
    N_IF,           /* if a: d, else: other */
    N_SET,          /* set a = b */
    N_SET_BLOCK,    /* set a, filters b, body d */
    N_MACRO,        /* name, parameters b...: N_ARG with name and perhaps a; body d */
    N_CALL_BLOCK,   /* call a with the macro c */
    N_FILTER_BLOCK, /* filters a, body d */
    N_WITH,         /* b...: N_ARG, c: target, a: value; body d */
    N_BREAK,
    N_CONTINUE,
    N_GENERATION, /* body d */
    N_NSREF       /* target: name . text */
} node_type;

struct node {
    uint8_t type, op;
    bool flag, keeps; /* keeps: N_FOR: keeps_loop of its body */
    int line;
    node *a, *b, *c, *d, *other, *next;
    const node *until;       /* N_FOR: once this is false, the body has no effect any more; may be NULL */
    const char *name, *text; /* interned */
    jfn fn;                  /* N_FILTER, N_TEST, N_ATTR */
    jv value;
};

typedef struct arena {
    struct chunk *chunks;
    size_t left, used, most;
    char *at;
} arena;

/* Names of a template, each once: equal names have equal addresses. */
typedef struct name_table {
    const char **slot;
    size_t n, capacity; /* capacity: a power of two */
} name_table;

struct ax_jinja {
    arena arena;
    char *where;
    node *body;
    name_table names;
    name_table bound, reads; /* names that it sets itself; that it reads from its context (ax_jinja_reads) */
    const char *loop, *varargs, *kwargs, *caller; /* of `names`; NULL: the template does not have the name */
    const struct token *tokens;                   /* of its text; the last one is T_END */
    bool marks, asks_date;
};

/* Where a run begins: a statement, the length of jx.undo before it, and the text written before it. */
struct start {
    const node *from;
    size_t log;
    jstr *text;
};

/* What a parser or a rendering has in common. */
struct jx {
    jmp_buf *out;
    arena *arena;
    const char *where;
    int line;      /* of what is parsed or done now */
    int depth;     /* of nested parts */
    int64_t steps; /* left */
    size_t read;   /* about how many bytes and values of the context */
    size_t most_text;
    const ax_jinja *template;
    /* rendering */
    jstr *text; /* what is written */
    struct mark {
        size_t begin, end;
    } * marks;
    size_t n_marks, marks_capacity;
    enum { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE } flow;
    int64_t now;
    int loops; /* depth of recursive loops */
    /* what the template writes for the first messages alone (cut.c) */
    ax_jinja_cuts *cuts; /* NULL: not wanted */
    const jstr **tails;  /* of each cut */
    struct jcase {
        size_t cut;         /* its number in cuts->cut: 2 * messages + whether the prompt is asked for */
        bool lost;          /* it went its own way to a loop, and does not agree there */
        bool agrees;        /* all that was decided by values with facets is decided so in this case */
        struct start start; /* where its own run to the main loop begins */
    } * cases;              /* the cuts that are wanted; the fewest messages first */
    size_t n_cases, open;   /* open: the first one that is still to come */
    size_t now_case;        /* aside: the one that is run */
    bool twin;   /* aside: the case that follows would do the same: all that was read is equal there */
    jv **facets; /* [n_facets][n_cases] */
    size_t n_facets, facets_capacity, facet_room;
    jv *scratch;                   /* [n_cases] */
    struct start statement, first; /* the statement of the template that runs; the first one in which what was
                                      asked has another answer in a case */
    const node *seeks;             /* aside: run up to this loop */
    struct state *state;           /* of the whole conversation at the main loop */
    uint32_t era;                  /* number of side runs: their own scopes need no undo */
    uint32_t now_born, since;      /* number of side runs and rounds of loops; that of the one that runs */
    size_t lasting; /* how often memory was taken that may be needed after a round or side run */
    struct frame {
        const node *next;
        scope *s;
        struct frame *outer;
    } * frame;       /* the statements that follow */
    int inside;      /* in how many loops, and blocks whose text is a value */
    struct numbers { /* the elements of ranges */
        jv *up;      /* 0, 1, ..., n_up - 1 */
        size_t n_up, up_capacity;
        jv *down; /* n_down - 1, ..., 1, 0 */
        size_t n_down;
    } numbers;
    jlist **watched;
    size_t n_watched, watched_capacity;
    size_t need;        /* all that was asked is true for this number of messages, and for more */
    size_t effects;     /* how often an attribute of a namespace was set, or a generator read */
    size_t prompted;    /* 1 + the first case with the prompt whose text is known */
    int64_t side_steps; /* left for what only the cases need; swap_budget */
    struct room {
        char *at;
        size_t left, rest; /* left: bytes at `at`; rest: bytes of further chunks */
    } room;                /* memory for what only the cases need */
    struct undo *undo;
    size_t n_undo, undo_capacity;
    bool captured;     /* in a macro or a block whose text is a value */
    bool own_fault;    /* it failed by jx_fail_own */
    bool lost;         /* a block {% generation %} was there */
    bool aside;        /* in a side run */
    bool reached;      /* aside: the state at the loop that is sought is that of the whole conversation */
    bool twin_reached; /* aside: so it is in the case that follows */
    bool logging;      /* what is changed before the main loop is kept in `undo` */
    bool early;        /* the template asks about the element that follows */
    bool checked;      /* prompts_hold is known */
    bool prompts_hold; /* the whole text goes on as the first one with the prompt does */
};

enum { JX_DEPTH = 400 };

/* Fails with AX_ERR_DATA and "WHERE:LINE: MESSAGE". */
void jx_fail(jx *e, const char *fmt, ...) AX_PRINTF(2, 3) __attribute__((noreturn));
/* The same for what a template does wrong itself, whatever it is given. */
void jx_fail_own(jx *e, const char *fmt, ...) AX_PRINTF(2, 3) __attribute__((noreturn));
void jx_too_long(jx *e) __attribute__((noreturn));
/* Counts work: one step, and one for 64 bytes. */
static inline void jx_charge(jx *e, size_t bytes)
{
    e->steps -= 1 + (int64_t)(bytes / 64);
    if (e->steps < 0)
        jx_too_long(e);
}
/* Counts nesting. */
static inline void jx_enter(jx *e)
{
    if (++e->depth > JX_DEPTH)
        jx_fail_own(e, "more than %d parts inside each other", JX_DEPTH);
}
static inline void jx_leave(jx *e) { e->depth--; }

/* Makes room for n bytes at e->arena->at, and returns their place. */
void *jx_chunk(jx *e, size_t n) __attribute__((returns_nonnull));
/* Returns room for n bytes, which hold anything. */
static inline __attribute__((returns_nonnull)) void *jx_room(jx *e, size_t n)
{
    arena *a = e->arena;
    const size_t size = (n + 15) & ~(size_t)15;
    if (size > a->left || !a->at)
        return jx_chunk(e, size);
    void *out = a->at;
    a->at += size;
    a->left -= size;
    return out;
}
/* Returns n bytes of zeros. */
static inline __attribute__((returns_nonnull)) void *jx_alloc(jx *e, size_t n)
{
    return memset(jx_room(e, n), 0, n);
}
void arena_fini(arena *a);
/* Releases what was taken since the arena was as in `before`. */
void arena_rewind(arena *a, const arena *before);
/* Makes room for one more in an array of `n` elements that has room for *capacity. */
void *jx_grow(jx *e, void *array, size_t n, size_t *capacity, size_t size);
const char *jx_intern(jx *e, name_table *names, const char *text, size_t n);
/* Returns the name as interned, or NULL if the template does not have it. */
const char *names_find(const name_table *names, const char *text, size_t n);

/* A text that grows in the arena. */
typedef struct jbuf {
    char *data;
    size_t n, capacity;
} jbuf;
void jbuf_add(jx *e, jbuf *b, const char *text, size_t n);
void jbuf_printf(jx *e, jbuf *b, const char *fmt, ...) AX_PRINTF(3, 4);

/* ---- parse.c, parse_expression.c, lex.c ------------------------------------------------------------ */

typedef enum token_kind {
    T_END,
    T_DATA,
    T_PRINT, /* {{ */
    T_PRINT_END,
    T_BLOCK, /* {% */
    T_BLOCK_END,
    T_NAME,
    T_STRING,
    T_INT,
    T_REAL,
    T_OP
} token_kind;

typedef struct token {
    token_kind kind;
    int line;
    char op; /* T_OP: its character; of two: == E, != N, >= G, <= L, // D, ** P */
    const char *text;
    size_t n;
    int64_t i;
    double real;
} token;

/* Cuts a template into tokens; the last one is T_END. */
token *jx_lex(jx *e, const char *text, size_t n);

typedef struct parser {
    jx *e;
    ax_jinja *out;
    const token *at;
    jbuf missing;     /* filters and tests that are not offered */
    int missing_line; /* of the first one */
    int branches;     /* depth of `if`: what is not offered there fails when it is reached, as in Jinja2 */
} parser;

node *new_node(parser *p, node_type type) __attribute__((returns_nonnull));
void add_node(node ***end, node *more);
void unexpected(parser *p, const char *wanted) __attribute__((noreturn));
bool is_op(const parser *p, char op);
bool is_name(const parser *p, const char *name);
bool skip_op(parser *p, char op);
bool skip_name(parser *p, const char *name);
void expect_op(parser *p, char op);
const char *take_name(parser *p, const char *what);
node *parse_expression(parser *p) __attribute__((returns_nonnull));
/* Parses expressions, which commas make a tuple. `conditional`: each may be `a if b else c`. */
node *parse_tuple(parser *p, bool conditional);
node *parse_primary(parser *p);
node *parse_arguments(parser *p);
/* Parses filters behind `input`; `started`: the first one without its bar. */
node *parse_filters(parser *p, node *input, bool started);

/* ---- body.c --------------------------------------------------------------------------------------- */

/* Returns true if statements can write text. What prints raise_exception(...) does not. */
bool can_write(const node *body);
/* Returns true if something in these nodes can hold on to the loop that they are in, beyond its round. */
bool keeps_loop(const node *body);
/* Returns what ends a search, or NULL: once it is false, the body of the loop does nothing. `inverse`: a node
 * N_NOT that it may use. */
const node *find_until(node *body, const node *target, node *inverse);

/* ---- string.c -------------------------------------------------------------------------------------- */

/* Does not copy. */
static inline jstr *js_new(jx *e, const char *data, size_t n, int32_t from)
{
    jstr *s = jx_alloc(e, sizeof *s);
    s->data = data ? data : "";
    s->n = n;
    s->from = from;
    s->born = e->now_born;
    return s;
}
/* Returns a text of the template. */
static inline jstr *js_text(jx *e, const char *text)
{
    return js_new(e, text, strlen(text), AX_JINJA_TEMPLATE);
}
jstr *js_cat(jx *e, jstr *a, jstr *b);
const char *js_data(jx *e, jstr *s);
jstr *js_sub(jx *e, jstr *s, size_t at, size_t n);
int32_t js_from(const jstr *s); /* of a string made anew from `s` */
int32_t from_both(int32_t a, int32_t b);
bool js_is(jx *e, jstr *s, const char *text);
int js_compare(jx *e, jstr *a, jstr *b);
size_t js_length(jx *e, jstr *s);           /* in code points */
size_t js_offset(jx *e, jstr *s, size_t n); /* in bytes, of code point n */
/* Returns the place of `find` in `s` from byte `at` on, or SIZE_MAX. */
size_t js_find(jx *e, jstr *s, jstr *find, size_t at);
/* Strips white space, or characters of `set` (NULL: white space). */
jstr *js_strip(jx *e, jstr *s, jstr *set, bool left, bool right);
jstr *js_replace(jx *e, jstr *s, jstr *old, jstr *new, int64_t most);
/* Changes letters: 'u' all to upper, 'l' to lower, 'c' capitalized, 't' each word (str.title), 'T' each word
 * (the filter), 's' swapped. Fails for letters whose other case is several letters. */
jstr *js_case(jx *e, jstr *s, char how);

/* ---- value.c --------------------------------------------------------------------------------------- */

static inline jv jv_int(int64_t i) { return (jv){.kind = J_INT, .i = i}; }
static inline jv jv_bool(bool b) { return (jv){.kind = J_BOOL, .i = b}; }
static inline jv jv_real(double x) { return (jv){.kind = J_REAL, .real = x}; }
static inline jv jv_str(jstr *s) { return (jv){.kind = J_STRING, .s = s}; }
static inline jv jv_none(void) { return (jv){.kind = J_NONE}; }
/* `what`: of a static text, or of the arena. */
static inline jv jv_undefined(const char *what) { return (jv){.kind = J_UNDEFINED, .what = what}; }
static inline jv jv_list(jlist *list) { return (jv){.kind = J_LIST, .list = list}; }
static inline jv jv_dict(jdict *dict) { return (jv){.kind = J_DICT, .dict = dict}; }
/* Returns true if a value takes no memory that was taken since the first round or side run. */
static inline bool is_first(jv v)
{
    return (v.kind >= J_NONE && v.kind <= J_REAL) || (v.kind == J_STRING && !v.s->born);
}
/* Returns true if values are the same number, or the same thing in memory. */
static inline bool is_identical(jv a, jv b) { return a.kind == b.kind && a.of == b.of && a.i == b.i; }
static inline bool is_integer(jv v) { return v.kind == J_INT || v.kind == J_BOOL; }
static inline bool is_number(jv v) { return is_integer(v) || v.kind == J_REAL; }
static inline double to_real(jv v) { return v.kind == J_REAL ? v.real : (double)v.i; }

const char *kind_name(jv v); /* as Python calls the type */
/* An undefined variable, or attribute of a value of some kind. `name` must last. */
jv jv_no_variable(const char *name);
jv jv_no_attribute(jv of, const char *name);
const char *undefined_text(jx *e, jv v);
jlist *list_new(jx *e, jlist_kind kind);
void list_add(jx *e, jlist *list, jv v);
/* Returns a list of the elements from the last one on. */
jlist *list_back(jx *e, jlist *list, jlist_kind kind);
jdict *dict_new(jx *e);
void dict_set(jx *e, jdict *d, jv key, jv value);
bool dict_get(jx *e, const jdict *d, jv key, jv *value);
bool dict_find(jx *e, const jdict *d, const jstr *key, jv *value); /* key: bytes, no rope */
bool is_true(jx *e, jv v);
bool is_equal(jx *e, jv a, jv b);
int compare(jx *e, jv a, jv b); /* fails for values without an order */
bool contains(jx *e, jv in, jv v);
int64_t length_of(jx *e, jv v);
/* Returns the elements of what `for` may run over. */
jlist *elements(jx *e, jv v);
jstr *to_string(jx *e, jv v);
void put_repr(jx *e, jv v, jbuf *out, int32_t *from);
jv from_json(jx *e, const struct json_t *value, int32_t from);
/* Appends a real as Python prints it. */
void put_real(jx *e, double value, jbuf *out);

/* ---- access.c, method.c ------------------------------------------------------------------------------ */

jv get_attribute(jx *e, jv object, const char *name);
jv get_item(jx *e, jv object, jv key);
jv get_slice(jx *e, jv object, const jv *low, const jv *high, const jv *step);
/* Follows a path of attributes such as "function.name" (filters). */
jv get_path(jx *e, jv object, jv path);
bool find_method(jx *e, jv object, const char *name, jv *method);
bool names_method(const char *name); /* of any value */
jfn string_method(const char *name); /* NULL: there is none */
jv bind_method(jx *e, jv object, const char *name, jfn fn);

/* ---- call.c ------------------------------------------------------------------------------------------ */

/* Returns argument `at` or that of this name; NULL: not given. */
const jv *get_argument(jx *e, const jargs *a, size_t at, const char *name);
jstr *string_argument(jx *e, const jargs *a, size_t at, const char *name); /* NULL: not given or none */
int64_t int_argument(jx *e, const jargs *a, size_t at, const char *name, int64_t other);
bool bool_argument(jx *e, const jargs *a, size_t at, const char *name, bool other);
/* Fails if there are more than `most` arguments. */
void check_arguments(jx *e, const jargs *a, size_t most);
/* Returns the arguments from the n-th on. */
jargs arguments_from(const jargs *a, size_t n);
jv call_value(jx *e, jv callee, const jargs *a);
void set_globals(jx *e, scope *root);
bool is_range(jv callee);

/* ---- filters and tests --------------------------------------------------------------------------------- */

typedef struct jbuiltin {
    const char *name;
    jfn fn;
} jbuiltin;
extern const jbuiltin jinja_text_filters[], jinja_list_filters[], jinja_tests[], jinja_functions[];
jfn find_builtin(const jbuiltin *table, const char *name); /* NULL: not there */
jfn find_filter(const char *name);
jv filter_tojson(jx *e, jv self, const jargs *a);
jv percent_format(jx *e, jstr *format, jv values);

/* ---- eval.c, run.c ------------------------------------------------------------------------------------- */

struct scope {
    scope *parent;
    uint32_t era;
    struct binding {
        const char *name;
        jv value;
        struct binding *next;
    } * first;
};
scope *scope_new(jx *e, scope *parent);
void scope_set(jx *e, scope *s, const char *name, jv value);
bool scope_get(jx *e, const scope *s, const char *name, jv *value);
/* Returns the variable of this name in a scope itself; NULL: it has none. */
struct binding *find_binding(const scope *s, const char *name);
jv eval(jx *e, scope *s, const node *n);
jv binary(jx *e, char op, jv a, jv b);
void run(jx *e, scope *s, const node *body);
/* Runs the body of a loop for what is next. */
void run_next(jx *e, jloop *loop, const char *name);
/* Runs a body and returns what it writes. */
jstr *capture(jx *e, scope *s, const node *body);
/* Assigns to a name, to names of a tuple, or to an attribute of a namespace. */
void assign(jx *e, scope *s, const node *target, jv value);
jv run_loop(jx *e, scope *s, const node *n, jv items, int depth);
bool loop_peek(jx *e, jloop *loop);
/* Returns the number of an attribute of loops; one that is not offered has the last one. From LOOP_CYCLE on
 * they are methods. */
enum { LOOP_CYCLE = 11 };
size_t loop_number(const char *name);
jv loop_attribute(jx *e, jloop *loop, size_t number);
jv call_macro(jx *e, const jmacro *m, const jargs *a);
/* As eval, for one who reads no more of a list of messages than is noted by `asked`. */
jv eval_unasked(jx *e, scope *s, const node *n);

/* ---- facet.c ------------------------------------------------------------------------------------------- */

/* Notes a list of the messages from number `offset` on. */
void watch(jx *e, jlist *list, size_t offset);
/* Notes that a list, which may be one of messages, was asked for its first n elements; ALL_MESSAGES, or more
 * than it has: for its end. */
enum { ALL_MESSAGES = -1 };
void asked(jx *e, const jlist *list, int64_t n);
/* Returns the value in a case. */
static inline jv facet_of(const jx *e, jv v, size_t i) { return v.facets ? e->facets[v.facets - 1][i] : v; }
/* Returns the value in the case that is run aside. */
jv facet_aside(jx *e, jv v);
/* Returns the value without its facets, for one who may do anything with it. */
jv settle_facets(jx *e, jv v);
static inline jv settle(jx *e, jv v)
{
    if (v.facets)
        return settle_facets(e, v);
    if (v.kind == J_LIST && v.list->watched)
        asked(e, v.list, ALL_MESSAGES);
    return v;
}
/* As is_true, for a value that may have facets. */
bool settle_true(jx *e, jv v);
/* Returns what `how` makes of the values, in all cases: a constant. It may not fail; where it cannot tell, it
 * returns a value of the kind NO_FACET. */
#define NO_FACET J_LOOP
typedef jv facet_fn(jx *e, jv a, jv b, const void *with);
jv map_facets(jx *e, jv a, jv b, facet_fn *how, const void *with);
/* Returns a number: plus * (messages in `list`) + add. */
jv count_facets(jx *e, const jlist *list, int64_t plus, int64_t add);
/* Returns the number of elements. */
jv length_facets(jx *e, jlist *list);
/* Returns true if a range from `first` to a number with facets has an element for each message from number
 * *offset on, in each case. */
bool follows_messages(jx *e, int64_t first, jv last, size_t *offset);
/* Returns element i < 0 of a list of messages, counted from its end. */
jv last_message(jx *e, const jlist *list, int64_t i);
/* Returns true if two values are the same, with the same origins. */
bool same_contents(jx *e, jv a, jv b);
static inline bool same_value(jx *e, jv a, jv b) { return is_identical(a, b) || same_contents(e, a, b); }
/* Returns true if a value never changes: it is a number, a string, or a list or map of such values alone. It
 * holds no list of messages, which ends earlier in side runs, and nothing whose identity can be asked for but
 * lists and maps (cannot_tell). */
bool is_constant(jx *e, jv v);
/* Notes that a case goes its own way. */
void disagree(jx *e, size_t i);
/* What was asked cannot be told of any case. */
void cannot_tell(jx *e);
/* Does what only the cases need, with steps and memory of their own. Returns false where these do not
 * suffice; the cases that are still to come are given up, then. */
typedef void side_fn(jx *e, void *with);
bool on_the_side(jx *e, side_fn *work, void *with);
/* Changes between the steps and memory of the rendering and those of the cases. */
void swap_budget(jx *e);
/* Lists the cuts that are wanted. */
void make_cases(jx *e);
/* Returns add_generation_prompt in all cases. */
jv prompt_facets(jx *e, jv whole);
/* Returns the first case of n messages or more. */
size_t first_case(const jx *e, size_t n);
static inline size_t messages_of(const jx *e, size_t i) { return e->cases[i].cut / 2; }

/* ---- cut.c --------------------------------------------------------------------------------------------- */

/* Keeps what is at `place` before it is changed, to be restored after a side run. */
void jx_keep(jx *e, void *place, size_t size);
/* Returns true if side runs can follow elements of this loop. */
bool starts_watch(jx *e, scope *s, const jloop *loop);
/* Behind a loop over messages that writes nothing: what a case has there lies in e->undo, so the cases can
 * agree again without being run. */
void leave_loop(jx *e, scope *s, const jloop *loop);
/* Runs them before the next element. */
void watch_next(jx *e, jloop *loop, const char *name);
/* A side run has come to the loop that it seeks. */
void reach(jx *e, scope *s, jlist *items) __attribute__((noreturn));

#pragma GCC visibility pop

#endif
