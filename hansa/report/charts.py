"""Small charts as SVG text. Colours are CSS variables of the page, so that a chart follows its light or dark theme."""

import json
from collections.abc import Sequence
from html import escape
from math import ceil, floor, isfinite, isinf, log10

Point = tuple[float, float]
Series = tuple[str, Sequence[Point]]

WIDTH, HEIGHT = 320, 200
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 26, 30


def lines(title: str, series: Sequence[Series], x_label: str, log_y: bool = False) -> str:
    """A line chart with one line per series; empty if there are no points.

    The points are in an attribute, too: the script of the page zooms into them (drag), and shows values (hover).
    """
    points = [p for _, values in series for p in values if isfinite(p[1])]
    ys = [y for _, y in points if y > 0 or not log_y]
    if not ys:
        return ""
    x_low, x_high = min(x for x, _ in points), max(x for x, _ in points)
    ticks = log_ticks(min(ys), max(ys)) if log_y else linear_ticks(min(ys), max(ys))
    y_low, y_high = min(ticks[0], *ys), max(ticks[-1], *ys)

    def place(x: float, y: float) -> tuple[float, float]:
        """The position of a data point in the SVG: x from the left, y from the top."""
        low, high, value = (log10(y_low), log10(y_high), log10(y)) if log_y else (y_low, y_high, y)
        across = (x - x_low) / ((x_high - x_low) or 1)
        up = (value - low) / ((high - low) or 1)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    drawn = [(label, [(x, y) for x, y in values if isfinite(y) and (y > 0 or not log_y)]) for label, values in series]
    data = json.dumps({"log": log_y, "series": [[label, values] for label, values in drawn]}, ensure_ascii=False)
    opening = _open(title).replace("<svg ", f'<svg class="zoom" data-chart="{escape(data, quote=True)}" ', 1)
    parts = [opening, f'<text class="title" x="{LEFT}" y="15">{escape(title)}</text>']
    for tick in ticks:
        _, y = place(x_low, tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick y" x="{LEFT - 5}" y="{y + 3:.1f}" text-anchor="end">{short(tick)}</text>')
    ends = [(x_low, "start"), (x_high, "end")] if x_low < x_high else [(x_low, "start")]
    for x, anchor in ends:
        at, _ = place(x, ticks[0])
        parts.append(f'<text class="tick x" x="{at:.1f}" y="{HEIGHT - 14}" text-anchor="{anchor}">{short(x)}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text class="tick" x="{middle}" y="{HEIGHT - 3}" text-anchor="middle">{escape(x_label)}</text>')
    for number, (label, values) in enumerate(drawn):
        placed = [place(x, y) for x, y in values]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        tip = f"<title>{escape(label)}</title>"
        if len(placed) == 1:
            (x, y) = placed[0]
            parts.append(f'<circle class="s{number % 8} dot" cx="{x:.1f}" cy="{y:.1f}" r="3">{tip}</circle>')
        else:
            parts.append(f'<polyline class="s{number % 8}" points="{path}">{tip}</polyline>')
    return "".join(parts) + "</svg>"


LONGEST_LABEL = 220  # pixels of a bar chart's 560: longer names are cut, and shown in full on hover


def bars(title: str, rows: Sequence[tuple[str, Sequence[float]]], names: Sequence[str], unit: str) -> str:
    """Horizontal bars, one group per row, one bar per name."""
    largest = max((v for _, values in rows for v in values), default=0) or 1
    thick, gap = 11, 7
    step = thick * len(names) + gap
    height = TOP + step * len(rows) + 8
    longest = max((len(label) for label, _ in rows), default=0)
    left, wide = min(LONGEST_LABEL, max(96, 6.5 * longest + 10)), 560
    parts = [
        f'<svg viewBox="0 0 {wide} {height}" role="img" aria-label="{escape(title, quote=True)}">',
        f'<text class="title" x="0" y="15">{escape(title)}</text>',
    ]
    for i, (label, values) in enumerate(rows):
        top = TOP + i * step
        middle = top + thick * len(names) / 2 + 4
        fits = int((LONGEST_LABEL - 10) / 6.5)
        cut = label if len(label) <= fits else label[: fits - 1] + "…"
        name = f"{escape(cut)}<title>{escape(label)}</title>"
        parts.append(f'<text class="tick" x="{left - 6}" y="{middle:.1f}" text-anchor="end">{name}</text>')
        for j, value in enumerate(values):
            length = (wide - left - 90) * value / largest
            y = top + j * thick
            parts.append(f'<rect class="s{j % 8} bar" x="{left}" y="{y}" width="{length:.1f}" height="{thick - 2}"/>')
            text = f"{short(value)}{unit}"
            parts.append(f'<text class="tick" x="{left + length + 5:.1f}" y="{y + thick - 3}">{escape(text)}</text>')
    return "".join(parts) + "</svg>"


def tree(title: str, nodes: Sequence[tuple[int, str, str]]) -> str:
    """A tree of boxes from left to right, a parent beside the middle of its children.

    ``nodes``: (depth, name, caption), parents before their children.
    """
    wide, tall, across = 150, 34, 196
    rows = _rows([depth for depth, _, _ in nodes])
    width = across * max(depth for depth, _, _ in nodes) + wide + 4
    height = TOP + tall * 1.3 * (max(rows) + 1)
    parts = [
        f'<svg viewBox="0 0 {width} {height:.0f}" role="img" aria-label="{escape(title, quote=True)}">',
        f'<text class="title" x="0" y="15">{escape(title)}</text>',
    ]
    parents: list[float] = []
    for (depth, name, text), row in zip(nodes, rows, strict=True):
        x, y = 2 + across * depth, TOP + tall * 1.3 * row
        middle = y + tall / 2
        if depth:
            joint = x - (across - wide) / 2
            path = f"{x - across + wide},{parents[depth - 1]:.1f} {joint},{parents[depth - 1]:.1f} {joint},{middle:.1f}"
            parts.append(f'<polyline class="s7" points="{path} {x},{middle:.1f}"/>')
        parents[depth:] = [middle]
        parts.append(f'<rect class="node" x="{x}" y="{y:.1f}" width="{wide}" height="{tall}" rx="4"/>')
        parts.append(f'<text class="name" x="{x + 8}" y="{y + 14:.1f}">{escape(name)}</text>')
        parts.append(f'<text class="tick" x="{x + 8}" y="{y + 27:.1f}">{escape(text)}</text>')
    return "".join(parts) + "</svg>"


def _rows(depths: Sequence[int]) -> list[float]:
    """The row of each node: leaves one below the other, a parent in the middle of its children."""
    rows: list[float] = [0.0] * len(depths)
    free = 0
    for at in reversed(range(len(depths))):
        below: list[float] = []
        for later in range(at + 1, len(depths)):
            if depths[later] <= depths[at]:
                break
            if depths[later] == depths[at] + 1:
                below.append(rows[later])
        if below:
            rows[at] = (below[0] + below[-1]) / 2
        else:
            rows[at], free = float(free), free + 1
    return [max(rows) - row for row in rows]


def _open(title: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title, quote=True)}">'


def linear_ticks(low: float, high: float, about: int = 4) -> list[float]:
    """About so many round numbers that cover the interval from ``low`` to ``high``."""
    span = (high - low) or abs(high) or 1.0
    step = 10 ** floor(log10(span / about))
    step *= next((m for m in (1, 2, 5, 10) if span / (step * m) <= about), 10)
    first, last = floor(low / step), ceil(high / step)
    return [i * step for i in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten, and their multiples by 2 and 5 where there is space, inside an interval of positive numbers."""
    every = [m * 10.0**e for e in range(floor(log10(low)), ceil(log10(high)) + 1) for m in (1, 2, 5)]
    inside = [t for t in every if low <= t <= high]
    if len(inside) > 6:
        inside = [t for t in inside if f"{t:e}".startswith("1")]
    return inside if len(inside) >= 2 else [low, high]


def short(value: float) -> str:
    """A number with about three significant digits: 12,000 · 264 · 5.63 · 0.0021."""
    if value == 0 or isinf(value):
        return "∞" if value else "0"
    if abs(value) >= 1e9:
        return f"{value:.1e}"
    if abs(value) >= 1e6:
        return f"{value / 1e6:.3g}M"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def scatter(title: str, points: Sequence[tuple[str, float, float]], x_label: str) -> str:
    """A scatter plot of (name, x, y) over a logarithmic x axis; names are moved apart where they would overlap."""
    wide, high, left, right = 560, 300, 52, 90
    xs, ys = [log10(x) for _, x, _ in points], [y for *_, y in points]
    ticks, x_ticks = linear_ticks(min(ys), max(ys)), log_ticks(10 ** min(xs), 10 ** max(xs))
    x_low, x_span = min(xs), (max(xs) - min(xs)) or 1
    y_low, y_span = ticks[0], (ticks[-1] - ticks[0]) or 1

    def across(x: float) -> float:
        """The horizontal position of a value on the logarithmic axis."""
        return left + (log10(x) - x_low) / x_span * (wide - left - right)

    def up(y: float) -> float:
        """The vertical position of a value on the linear axis."""
        return high - BOTTOM - (y - y_low) / y_span * (high - TOP - BOTTOM - 8)

    parts = [
        f'<svg viewBox="0 0 {wide} {high}" role="img" aria-label="{escape(title, quote=True)}">',
        f'<text class="title" x="{left}" y="15">{escape(title)}</text>',
    ]
    for tick in ticks:
        parts.append(f'<line class="grid" x1="{left}" x2="{wide - right}" y1="{up(tick):.1f}" y2="{up(tick):.1f}"/>')
        parts.append(f'<text class="tick" x="{left - 5}" y="{up(tick) + 3:.1f}" text-anchor="end">{short(tick)}</text>')
    for tick in x_ticks:
        text = f'<text class="tick" x="{across(tick):.1f}" y="{high - 14}" text-anchor="middle">{short(tick)}</text>'
        parts.append(text)
    middle = (left + wide - right) / 2
    parts.append(f'<text class="tick" x="{middle}" y="{high - 3}" text-anchor="middle">{escape(x_label)}</text>')
    taken: list[Point] = []
    for number, (label, x, y) in enumerate(points):
        at, height = across(x), up(y)
        parts.append(f'<circle class="s{number % 8} dot" cx="{at:.1f}" cy="{height:.1f}" r="4"/>')
        place = height + 3
        while any(abs(place - other) < 10 and abs(at - there) < 70 for there, other in taken):
            place -= 10
        taken.append((at, place))
        parts.append(f'<text x="{at + 7:.1f}" y="{place:.1f}">{escape(label)}</text>')
    return "".join(parts) + "</svg>"


def histogram(title: str, series: Sequence[tuple[str, Sequence[float]]], bins: int = 12) -> str:
    """A histogram of each series over a logarithmic axis; empty if no value is positive.

    The axis spans at most three decades; smaller values are counted in the first bin.
    """
    values = [v for _, some in series for v in some if v > 0]
    if not values:
        return ""
    high = log10(max(values))
    low = max(log10(min(values)), high - 3)
    step = (high - low) / bins or 1.0

    def bin_of(value: float) -> int:
        """The number of the bin that counts a value; 0 for values that are not positive."""
        return min(bins - 1, max(0, int((log10(value) - low) / step))) if value > 0 else 0

    counts = [[sum(bin_of(v) == i for v in some) for i in range(bins)] for _, some in series]
    most = max(c for some in counts for c in some)
    parts = [_open(title), f'<text class="title" x="{LEFT}" y="15">{escape(title)}</text>']
    floor_y, room, wide = HEIGHT - BOTTOM, HEIGHT - TOP - BOTTOM, (WIDTH - LEFT - RIGHT) / bins
    for tick in (t for t in linear_ticks(0, most) if t <= most and t == int(t)):
        y = floor_y - room * tick / most
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 5}" y="{y + 3:.1f}" text-anchor="end">{short(tick)}</text>')
    thick = (wide - 2) / len(series)
    for number, ((label, _), some) in enumerate(zip(series, counts, strict=True)):
        for i, count in enumerate(some):
            tall, x = room * count / most, LEFT + i * wide + number * thick
            box = f'x="{x:.1f}" y="{floor_y - tall:.1f}" width="{thick:.1f}" height="{tall:.1f}"'
            if count:
                parts.append(f'<rect class="s{number % 8} bar" {box}><title>{escape(label)}: {count}</title></rect>')
    for value, x, anchor in ((low, LEFT, "start"), (high, WIDTH - RIGHT, "end")):
        text = f'<text class="tick" x="{x}" y="{HEIGHT - 14}" text-anchor="{anchor}">{short(10**value)}</text>'
        parts.append(text)
    parts.append(f'<text class="tick" x="{WIDTH / 2}" y="{HEIGHT - 3}" text-anchor="middle">movement</text>')
    return "".join(parts) + "</svg>"
