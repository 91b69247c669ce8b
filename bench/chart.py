"""Charts of curves, as SVG."""

import math

COLOURS = ["#c0392b", "#2471a3", "#1e8449", "#b7950b", "#7d3c98"]
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 400, 60, 20, 20, 50


def ticks_of(low, high, log):
    """Round numbers between low and high: on a logarithmic axis one-digit numbers, else about five."""
    if log:
        ticks = [a * 10**b for b in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
                 for a in range(1, 10)]
    else:
        rough = (high - low) / 5
        ten = 10 ** math.floor(math.log10(rough))
        step = ten * min((m for m in (1, 2, 5, 10) if m * ten >= rough), default=10)
        ticks = [step * i for i in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return [t for t in ticks if low <= t <= high]


def panel(curves, label, log, last, ends):
    """Lines of one chart: curves maps names to (points, colour, dashed), points are (x, y), x from 0 to `last`, or, if that
    is a list, at its names, the first of which is at 0; `ends` are the least and the greatest y, as far as they are given."""
    names = last if isinstance(last, list) else None
    last = len(names) - 1 if names else last
    every = [y for points, _colour, _dashed in curves.values() for _x, y in points]
    low, high = (given if given is not None else found for given, found in zip(ends, (min(every), max(every))))
    scale = math.log if log else float
    margin = 0.03 * (scale(high) - scale(low))

    def x_of(x):
        return LEFT + x / last * (WIDTH - LEFT - RIGHT)

    def y_of(y):
        share = (scale(y) - scale(low) + margin) / (scale(high) - scale(low) + 2 * margin)
        return HEIGHT - BOTTOM - min(share, 1) * (HEIGHT - BOTTOM - TOP)
    rise = sum(points[-1][1] - points[0][1] for points, _colour, _dashed in curves.values())
    legend = LEFT + 10 if rise > 0 else WIDTH - 210  # in the upper corner where the curves are not
    out = []
    for t in ticks_of(low, high, log):
        out.append(f'<path d="M{LEFT} {y_of(t):.1f} H{WIDTH - RIGHT}" stroke="#ddd"/><text x="{LEFT - 8}" '
                   f'y="{y_of(t) + 4:.1f}" text-anchor="end">{t:g}</text>')
    for x, name in enumerate(names) if names else ((last * i / 4, f"{last * i / 4:g}") for i in range(5)):
        out.append(f'<text x="{x_of(x):.1f}" y="{HEIGHT - 30}" text-anchor="middle">{name}</text>')
    for i, (name, (points, colour, dashed)) in enumerate(curves.items()):
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        line = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in points)
        y = TOP + 18 * (i + 1)
        out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>'
                   f'<path d="M{legend} {y - 4} h28" stroke="{colour}" stroke-width="2"{dash}/>'
                   f'<text x="{legend + 34}" y="{y}" fill="{colour}">{name}</text>')
    out.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 8}" text-anchor="middle">{label}</text>')
    return out


def chart(*panels):
    """Charts one below the other. A panel is (curves, label, log, last, ends), as panel() takes them."""
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT * len(panels)}" '
           f'font-family="sans-serif" font-size="13"><rect width="{WIDTH}" height="{HEIGHT * len(panels)}" fill="white"/>']
    for i, given in enumerate(panels):
        out += [f'<g transform="translate(0 {i * HEIGHT})">', *panel(*given), "</g>"]
    return "\n".join([*out, "</svg>\n"])
