/* trace: histories are read back; SVG and HTML are well-formed whatever the runs hold. */
#include "trace/plot.h"
#include "trace/trace_test.h"
#include "trace/xml_check.h"

#include <math.h>

/* ---- histories ----------------------------------------------------------------------------------- */

static void write_rows(const char *dir, const char *text)
{
    OK(ax_file_write_atomic(in(dir, "metrics.jsonl"), text, strlen(text)));
}

static void a_history_has_the_rows_that_were_written(void **state)
{
    ax_metrics_run run = quiet_run(*state);
    ax_metrics *metrics;
    OK(ax_metrics_open(&run, 0, &metrics));
    add_steps(metrics, 1, 3);
    OK(ax_metrics_eval_add(metrics, 3, 3.5, 1, 1, 1));
    ax_metrics_step bad = a_step(4);
    bad.loss = bad.grad_norm = NAN;
    OK(ax_metrics_step_add(metrics, &bad));
    ax_metrics_close(&metrics);
    char name[300];
    snprintf(name, sizeof name, "%s/.//", (const char *)*state);
    ax_history h;
    OK(ax_history_read(name, &h));
    assert_string_equal(h.title, strrchr(*state, '/') + 1);
    assert_int_equal(h.n, 5);
    for (int i = 0; i < 3; i++) {
        ax_metrics_step s = a_step(i + 1);
        assert_true(h.point[i].step == i + 1 && h.point[i].kind == AX_POINT_STEP &&
                    h.point[i].loss == s.loss);
        assert_true(h.point[i].grad_norm == s.grad_norm && h.point[i].lr == s.lr);
        assert_true(h.point[i].step_ms == s.step_ms && h.point[i].tokens_per_s == 4096 / (s.step_ms * 1e-3));
    }
    assert_true(h.point[3].kind == AX_POINT_EVAL && h.point[3].loss == 3.5 && h.point[3].step == 3 &&
                h.point[3].lr == 0);
    assert_true(isnan(h.point[4].loss) && isnan(h.point[4].grad_norm) && h.point[4].lr == bad.lr);
    ax_history_fini(&h);
    assert_null(h.point);
}

/* Rows about recall are read by source; their page has one chart more, with a curve for each source. */
static void recall_is_read_and_drawn(void **state)
{
    ax_metrics_run run = quiet_run(*state);
    ax_metrics *metrics;
    ax_history h;
    ax_buf html = {0};
    const ax_metrics_recall sources[2][2] = {
        {{"a/\"b\".tok", 8, 2, 3.5, 0.25, 4}, {"<c>", 5, 0, 0, 0.125, NAN}},
        {{"a/\"b\".tok", 8, 6, 40, 0.75, 1}, {"<c>", 5, 1, 2, 0.5, 3}}};
    OK(ax_metrics_open(&run, 0, &metrics));
    add_steps(metrics, 1, 3);
    OK(ax_metrics_recall_add(metrics, 3, sources[0], 2, 0.5));
    add_steps(metrics, 4, 6);
    OK(ax_metrics_recall_add(metrics, 6, sources[1], 2, 0.5));
    ax_metrics_close(&metrics);
    OK(ax_history_read(*state, &h));
    assert_int_equal(h.n, 10);
    assert_int_equal(h.source.count, 2);
    assert_string_equal(h.source.items[0], "a/\"b\".tok");
    static const int at[] = {3, 4, 8, 9};
    static const double share[] = {25, 0, 75, 20};
    for (int i = 0; i < 4; i++) {
        const ax_history_point *p = &h.point[at[i]];
        assert_true(p->kind == AX_POINT_RECALL && p->source == i % 2 && p->step == 3 + i / 2 * 3);
        assert_true(fabs(p->recalled - share[i]) < 1e-12);
    }
    OK(ax_history_html(&h, 1, &html));
    assert_non_null(strstr(html.data, ">documents recalled, %<"));
    assert_non_null(strstr(html.data, ">a/&#34;b&#34;.tok<"));
    assert_non_null(strstr(html.data, ">&#60;c&#62;<"));
    /* Of several runs, the legend names run and source, and the sources of a run differ in their dashes. */
    const ax_history twice[] = {h, h};
    ax_buf_fini(&html);
    OK(ax_history_html(twice, 2, &html));
    const char *solid = strstr(html.data, "stroke=\"#d55e00\" stroke-width=\"2\" stroke-opacity=\"1\" "
                                          "stroke-dasharray=\"none\""),
               *second = strstr(html.data, "stroke=\"#d55e00\" stroke-width=\"2\" stroke-opacity=\"1\" "
                                           "stroke-dasharray=\"8 4\"");
    assert_true(solid && second);
    assert_non_null(strstr(html.data, ", a/&#34;b&#34;.tok<"));
    assert_non_null(strstr(html.data, ", &#60;c&#62;<"));
    ax_buf_fini(&html);
    ax_history_fini(&h);
}

/* A run with experts has a chart of their load, and one of dropped choices if they have a capacity. */
static void experts_are_drawn(void **state)
{
    for (int capacity = 0; capacity < 2; capacity++) {
        ax_metrics_run run = quiet_run(*state);
        ax_metrics *metrics;
        ax_history h;
        ax_buf html = {0};
        run.expert_capacity = capacity;
        OK(ax_metrics_open(&run, 0, &metrics));
        for (int i = 1; i < 4; i++) {
            ax_metrics_step s = a_step(i);
            s.expert_load = 1 + i;
            s.expert_dropped = 0.25 * i;
            OK(ax_metrics_step_add(metrics, &s));
        }
        ax_metrics_close(&metrics);
        OK(ax_history_read(*state, &h));
        assert_true(h.point[2].expert_load == 4 && h.point[2].expert_dropped == 0.75 * capacity);
        OK(ax_history_html(&h, 1, &html));
        assert_non_null(strstr(html.data, ">largest load of an expert<"));
        assert_int_equal(strstr(html.data, ">choices without a place, %<") != NULL, capacity);
        ax_buf_fini(&html);
        ax_history_fini(&h);
    }
}

/* Tokens and seconds add up over sessions; an evaluation is where it began, and a recall counts once for all
 * its sources. */
static void axes_are_tokens_and_time(void **state)
{
    static const char rows[] =
        "{\"version\": \"1\"}\n"
        "{\"step\": 1, \"loss\": 9, \"tokens\": 100, \"step_ms\": 1500}\n"
        "{\"step\": 1, \"eval_loss\": 8, \"seconds\": 4}\n"
        "{\"step\": 1, \"recall\": \"a\", \"documents\": 4, \"recalled\": 1, \"seconds\": 2}\n"
        "{\"step\": 1, \"recall\": \"b\", \"documents\": 4, \"recalled\": 1, \"seconds\": 2}\n"
        "{\"version\": \"1\"}\n"
        "{\"step\": 2, \"loss\": 7, \"tokens\": 200, \"step_ms\": 500}\n"
        "{\"step\": 2, \"eval_loss\": 6, \"seconds\": 592}\n";
    static const double seconds[] = {1.5, 1.5, 5.5, 5.5, 8, 8}, tokens[] = {100, 100, 100, 100, 200, 200};
    static const struct {
        ax_history_axis axis;
        const char *label;
    } axes[] = {
        {AX_HISTORY_STEPS, ">step<"}, {AX_HISTORY_TOKENS, ">tokens<"}, {AX_HISTORY_TIME, ">time, s<"}};
    ax_history h;
    write_rows(*state, rows);
    OK(ax_history_read(*state, &h));
    assert_int_equal(h.n, 6);
    for (int i = 0; i < 6; i++) {
        assert_true(h.point[i].tokens == tokens[i]);
        assert_true(fabs(h.point[i].seconds - seconds[i]) < 1e-12);
    }
    for (size_t i = 0; i < AX_COUNT(axes); i++) {
        ax_buf svg = {0};
        OK(ax_history_set_axis(&h, axes[i].axis));
        OK(ax_history_svg(&h, 1, &svg));
        assert_non_null(strstr(svg.data, axes[i].label));
        ax_buf_fini(&svg);
    }
    /* The unit fits the longest run. */
    ax_buf svg = {0};
    h.point[5].seconds = 6000;
    OK(ax_history_svg(&h, 1, &svg));
    assert_non_null(strstr(svg.data, ">time, min<"));
    assert_non_null(strstr(svg.data, "<title>100: 6</title>"));
    ax_buf_fini(&svg);
    ax_history_fini(&h);
}

/* Rows of other programs may have neither tokens nor times: they are drawn over steps. */
static void an_axis_needs_its_numbers(void **state)
{
    ax_history h;
    ax_buf svg = {0};
    write_rows(*state, "{\"step\": 1, \"loss\": 2, \"tokens\": 9, \"step_ms\": 5}\n"
                       "{\"step\": 1, \"eval_loss\": 2}\n{\"step\": 2, \"loss\": 2, \"step_ms\": 5}\n");
    OK(ax_history_read(*state, &h));
    FAILS(AX_ERR_DATA, "metrics.jsonl:3: no number \"tokens\"", ax_history_set_axis(&h, AX_HISTORY_TOKENS));
    FAILS(AX_ERR_DATA, "metrics.jsonl:2: no number \"seconds\"", ax_history_set_axis(&h, AX_HISTORY_TIME));
    assert_int_equal(h.axis, AX_HISTORY_STEPS);
    OK(ax_history_svg(&h, 1, &svg));
    ax_buf_fini(&svg);
    ax_history_fini(&h);
}

static void damaged_histories_are_errors(void **state)
{
    ax_history h;
    FAILS(AX_ERR_DATA, "metrics.jsonl", ax_history_read(*state, &h));
    write_rows(*state, "{\"version\": \"1\"}\n{\"step\": 1, \"loss\": 2}\n{\"step\": 2, \"lo");
    OK(ax_history_read(*state, &h)); /* the run is still writing */
    assert_int_equal(h.n, 1);
    ax_history_fini(&h);
    write_rows(*state, "{\"step\": 1, \"loss\": 2}\n{\"step\": 2, \"loss\": }\n{\"step\": 3, \"loss\": 2}\n");
    FAILS(AX_ERR_DATA, "metrics.jsonl:2: ", ax_history_read(*state, &h));
    assert_null(h.point);
    write_rows(*state, "");
    OK(ax_history_read(*state, &h));
    assert_int_equal(h.n, 0);
    ax_history_fini(&h);
}

/* ---- pictures ------------------------------------------------------------------------------------ */

static void the_xml_check_can_fail(void **state)
{
    (void)state;
    static const char *const bad[] = {"",
                                      "text",
                                      "<a>",
                                      "<a></b>",
                                      "<a></a></a>",
                                      "<a x=1/>",
                                      "<a x=\"1/>",
                                      "<a>&</a>",
                                      "<a>1 < 2</a>",
                                      "<a>\xff</a>",
                                      "<a>\x01</a>",
                                      "<a/><b/>",
                                      "<a x=\"<\"/>",
                                      "<a><b></a></b>"};
    static const char *const good[] = {"<a/>",
                                       "<?xml version=\"1.0\"?>\n<a x=\"1\">t&#38;<b/>\xe2\x80\xa6</a>\n"};
    xml x;
    for (size_t i = 0; i < AX_COUNT(bad); i++)
        if (xml_check(bad[i], &x))
            fail_msg("\"%s\" passes", bad[i]);
    for (size_t i = 0; i < AX_COUNT(good); i++)
        if (!xml_check(good[i], &x))
            fail_msg("%s", x.error);
}

/* Numbers in attributes are finite, and the page loads no resource and runs no script. */
static void check_text(const char *text)
{
    static const char *const never[] = {"=\"nan",  "=\"-nan", "=\"inf", " nan", " inf",  " -inf",
                                        "<script", "src=",    "href=",  "url(", "onload"};
    for (size_t i = 0; i < AX_COUNT(never); i++)
        if (strstr(text, never[i]))
            fail_msg("%s in the picture", never[i]);
}

/* Draws the runs as SVG and as HTML, and checks both; returns the size of the SVG. */
static size_t check_pictures(const ax_history *runs, int n)
{
    static const char doctype[] = "<!DOCTYPE html>\n";
    ax_buf svg = {0}, html = {0};
    xml x;
    OK(ax_history_svg(runs, n, &svg));
    OK(ax_history_html(runs, n, &html));
    if (!xml_check(svg.data, &x))
        fail_msg("SVG: %s", x.error);
    check_text(svg.data);
    assert_non_null(strstr(svg.data, "width=\"800\" height=\"480\""));
    assert_memory_equal(html.data, doctype, strlen(doctype));
    if (!xml_check(html.data + strlen(doctype), &x))
        fail_msg("HTML: %s", x.error);
    check_text(html.data);
    int pictures = 0;
    for (const char *at = html.data; (at = strstr(at, "xmlns=")); at++)
        pictures++;
    bool recalls = false;
    for (int i = 0; i < n; i++)
        recalls = recalls || runs[i].source.count;
    assert_int_equal(pictures, recalls ? 5 : 4);
    size_t size = svg.size;
    ax_buf_fini(&svg);
    ax_buf_fini(&html);
    return size;
}

/* Returns a run with losses f(1) to f(n), and an evaluation after every `each`-th step. */
static ax_history make_run(const char *title, int n, int each, double (*f)(int))
{
    ax_history h = {.title = strdup(title), .point = calloc((size_t)n * 2 + 1, sizeof *h.point)};
    for (int i = 0; i < n; i++) {
        double y = f(i);
        h.point[h.n++] = (ax_history_point){
            .step = i + 1, .loss = y, .grad_norm = y, .lr = y, .step_ms = y, .tokens_per_s = y};
        if (each && i % each == each - 1)
            h.point[h.n++] = (ax_history_point){.step = i + 1, .loss = y, .kind = AX_POINT_EVAL};
    }
    return h;
}

static double falling(int i) { return 2 + 8 / (1 + 0.01 * i); }
static double zero(int i) { return 0 * i; }
static double constant(int i) { return 2.5 + 0 * i; }
static double not_a_number(int i) { return i < 0 ? 0 : NAN; }
static double mixed(int i) { return i % 3 == 0 ? NAN : i % 3 == 1 ? INFINITY : i; }
static double huge(int i) { return i % 2 ? 1e308 : -1e308; }
static double large(int i) { return (i % 2 ? 1e99 : -1e99) * i; }
static double tiny(int i) { return 1e-300 * i; }
static double close_by(int i) { return 1e16 + 2.0 * i; }

static void degenerate_runs_are_drawn(void **state)
{
    (void)state;
    static double (*const shapes[])(int) = {falling, zero,  constant, not_a_number, mixed,
                                            huge,    large, tiny,     close_by};
    static const int counts[] = {0, 1, 2, 3, 39, 40, 41, 300};
    check_pictures(NULL, 0);
    for (size_t s = 0; s < AX_COUNT(shapes); s++)
        for (size_t c = 0; c < AX_COUNT(counts); c++) {
            const int each = (int)(s + c) % 3; /* each with each shape and each count */
            ax_history runs[2] = {make_run("a", counts[c], each, shapes[s]), make_run("b", 5, 1, falling)};
            check_pictures(runs, 1);
            check_pictures(runs, 2);
            ax_history_fini(&runs[0]);
            ax_history_fini(&runs[1]);
        }
}

static void titles_are_escaped(void **state)
{
    (void)state;
    static const char *const titles[] = {
        "",
        "</text><script>",
        "a & b \"c\" 'd'",
        "\xff\xfe \xc3",
        "\x01\x1f\x7f",
        "\xef\xbf\xbf",
        "gr\xc3\xb6\xc3\x9f"
        "er",
        "a very long name of a run that goes on and on, and does not end before it "
        "has said all that there is to be said of learning rates and of seeds"};
    for (size_t i = 0; i < AX_COUNT(titles); i++) {
        ax_history runs[2] = {make_run(titles[i], 10, 2, falling), make_run(titles[i], 10, 0, falling)};
        check_pictures(runs, 1);
        check_pictures(runs, 2);
        ax_history_fini(&runs[0]);
        ax_history_fini(&runs[1]);
    }
    ax_buf text = {0};
    OK(ax_xml_text("a<b\xff"
                   "gr\xc3\xbc\xc3\x9f"
                   "e",
                   6, &text));
    assert_string_equal(text.data, "a&#60;b\xef\xbf\xbdgr\xe2\x80\xa6");
    ax_buf_fini(&text);
}

/* The size of an SVG in bytes is bounded by its width, whatever the number of steps. */
static void pictures_of_long_runs_stay_small(void **state)
{
    (void)state;
    ax_history big = make_run("big", 100000, 100, falling), runs[50];
    double start = ax_cpu_now();
    assert_in_range(check_pictures(&big, 1), 10000, 100000);
    if (ax_cpu_now() - start > 2)
        fail_msg("%.1f s", ax_cpu_now() - start);
    ax_history_fini(&big);
    for (int i = 0; i < 50; i++)
        runs[i] = make_run("r", 50, 10, falling);
    check_pictures(runs, 50);
    for (int i = 0; i < 50; i++)
        ax_history_fini(&runs[i]);
}

/* The line of a falling loss goes down from the left edge to the right edge, and the axes have labels. */
static void curves_have_the_right_coordinates(void **state)
{
    (void)state;
    ax_history run = make_run("name of the run", 30, 0, falling);
    ax_buf svg = {0};
    OK(ax_history_svg(&run, 1, &svg));
    static const char *const labels[] = {
        ">name of the run<", ">loss<", ">step<", ">training<", ">0<", ">30<", ">9<"};
    for (size_t i = 0; i < AX_COUNT(labels); i++)
        if (!strstr(svg.data, labels[i]))
            fail_msg("%s is missing", labels[i]);
    char *at = strstr(svg.data, "d=\"M0 0M");
    assert_non_null(at);
    double x, y, last_x = 0, last_y = 0;
    int points = 0;
    for (at += 7; *at == 'M' || *at == 'L'; points++) {
        char *end;
        x = strtod(at + 1, &end);
        y = strtod(end, &at);
        assert_true(x > last_x && y > last_y && y < 480);
        if (!points)
            assert_true(x > 64 && x < 100); /* step 1 on an axis from 0 to 30 */
        last_x = x;
        last_y = y;
    }
    assert_int_equal(points, 30);
    assert_true(last_x > 775 && last_x < 785);
    ax_buf_fini(&svg);
    ax_history_fini(&run);
}

static double number_after(const char *text, const char *what)
{
    const char *at = strstr(text, what);
    assert_non_null(at);
    return strtod(at + strlen(what), NULL);
}

/* Of many runs the legend stands beside the frame, explains dots, names all, and no two lines look alike. */
static void legends_of_many_runs_hide_no_curve(void **state)
{
    (void)state;
    enum { RUNS = 18 };
    ax_history runs[RUNS];
    ax_buf svg = {0};
    char name[RUNS][16], line[RUNS][128], *at;
    for (int i = 0; i < RUNS; i++) {
        snprintf(name[i], sizeof name[i], "run-%d", i);
        runs[i] = make_run(name[i], 30, 10, falling);
    }
    OK(ax_history_svg(runs, RUNS, &svg));
    const double frame = number_after(svg.data, "V432H"),
                 legend = number_after(svg.data, "</svg>\n<rect x=\"");
    assert_true(frame > 400 && legend > frame && legend < 800);
    assert_non_null(strstr(svg.data, ">evaluation<"));
    for (int i = 0; i < RUNS; i++) {
        char text[32];
        snprintf(text, sizeof text, ">%s<", name[i]);
        assert_non_null(at = strstr(svg.data, text));
        while (strncmp(at, "stroke=", 7))
            at--;
        snprintf(line[i], sizeof line[i], "%.*s", (int)strcspn(at, "/"), at);
        for (int k = 0; k < i; k++)
            assert_string_not_equal(line[i], line[k]);
    }
    ax_buf_fini(&svg);
    OK(ax_history_svg(runs, 3, &svg)); /* few: inside, where the frame takes the whole width */
    assert_non_null(strstr(svg.data, "V432H780.0"));
    ax_buf_fini(&svg);
    for (int i = 0; i < RUNS; i++)
        ax_history_fini(&runs[i]);
}

static void values_that_are_not_finite_leave_gaps(void **state)
{
    (void)state;
    ax_history run = make_run("gap", 30, 0, falling);
    run.point[10].loss = NAN;
    run.point[20].loss = INFINITY;
    ax_buf svg = {0};
    OK(ax_history_svg(&run, 1, &svg));
    const char *path = strstr(svg.data, "d=\"M0 0M"), *end = strchr(path + 3, '"');
    int starts = 0;
    for (const char *at = path + 7; at < end; at++)
        starts += *at == 'M';
    assert_int_equal(starts, 3);
    ax_buf_fini(&svg);
    ax_history_fini(&run);
}

static void smoothed_values_are_centred_and_without_spikes(void **state)
{
    (void)state;
    enum { N = 5000, PLACES = 500 };
    double *x = calloc(N, sizeof *x), *y = calloc(N, sizeof *y), at[PLACES], mean[PLACES];
    for (int i = 0; i < N; i++) {
        x[i] = i;
        y[i] = 1;
    }
    y[2500] = 1e9; /* one spike */
    y[3000] = NAN;
    ax_smooth(x, y, N, 200, PLACES, at, mean);
    for (int i = 0; i < PLACES; i++)
        assert_true(fabs(mean[i] - 1) < 1e-12);
    assert_true(at[0] == 0 && at[PLACES - 1] == N - 1);
    for (int i = 0; i < N; i++)
        y[i] = 3 * i;
    ax_smooth(x, y, N, 200, PLACES, at, mean);
    for (int i = 0; i < PLACES; i++)
        if (at[i] < N - 101)
            assert_true(fabs(mean[i] - 3 * at[i]) <= 1e-9 * N); /* centred */
    ax_smooth(x, y, 1, 5, 1, at, mean);
    assert_true(mean[0] == 0);
    free(x);
    free(y);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_setup, scratch_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_history_has_the_rows_that_were_written),
        TEST(recall_is_read_and_drawn),
        TEST(experts_are_drawn),
        TEST(axes_are_tokens_and_time),
        TEST(an_axis_needs_its_numbers),
        TEST(damaged_histories_are_errors),
        cmocka_unit_test(the_xml_check_can_fail),
        cmocka_unit_test(degenerate_runs_are_drawn),
        cmocka_unit_test(titles_are_escaped),
        cmocka_unit_test(pictures_of_long_runs_stay_small),
        cmocka_unit_test(curves_have_the_right_coordinates),
        cmocka_unit_test(legends_of_many_runs_hide_no_curve),
        cmocka_unit_test(values_that_are_not_finite_leave_gaps),
        cmocka_unit_test(smoothed_values_are_centred_and_without_spikes),
    };
    return cmocka_run_group_tests_name("pictures", tests, NULL, NULL);
}
