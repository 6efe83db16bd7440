"""Small charts as SVG text. Colours are CSS variables of the page, so one chart serves light and dark."""

from collections.abc import Sequence
from html import escape
from math import ceil, floor, log10

Point = tuple[float, float]
Series = tuple[str, Sequence[Point]]

WIDTH, HEIGHT = 320, 200
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 26, 30


def lines(title: str, series: Sequence[Series], x_label: str, log_y: bool = False) -> str:
    """One panel with a line per series."""
    points = [p for _, values in series for p in values]
    if not points:
        return ""
    x_low, x_high = min(x for x, _ in points), max(x for x, _ in points)
    ys = [y for _, y in points if y > 0 or not log_y]
    ticks = log_ticks(min(ys), max(ys)) if log_y else linear_ticks(min(ys), max(ys))
    y_low, y_high = min(ticks[0], *ys), max(ticks[-1], *ys)

    def place(x: float, y: float) -> tuple[float, float]:
        low, high, value = (log10(y_low), log10(y_high), log10(y)) if log_y else (y_low, y_high, y)
        across = (x - x_low) / ((x_high - x_low) or 1)
        up = (value - low) / ((high - low) or 1)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    parts = [_open(title), f'<text class="title" x="{LEFT}" y="15">{escape(title)}</text>']
    for tick in ticks:
        _, y = place(x_low, tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 5}" y="{y + 3:.1f}" text-anchor="end">{short(tick)}</text>')
    for x, anchor in ((x_low, "start"), (x_high, "end")):
        at, _ = place(x, ticks[0])
        parts.append(f'<text class="tick" x="{at:.1f}" y="{HEIGHT - 14}" text-anchor="{anchor}">{short(x)}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text class="tick" x="{middle}" y="{HEIGHT - 3}" text-anchor="middle">{escape(x_label)}</text>')
    for number, (label, values) in enumerate(series):
        placed = [place(x, y) for x, y in values if y > 0 or not log_y]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        tip = f"<title>{escape(label)}</title>"
        if len(placed) == 1:
            (x, y) = placed[0]
            parts.append(f'<circle class="s{number % 8} dot" cx="{x:.1f}" cy="{y:.1f}" r="3">{tip}</circle>')
        else:
            parts.append(f'<polyline class="s{number % 8}" points="{path}">{tip}</polyline>')
    return "".join(parts) + "</svg>"


def bars(title: str, rows: Sequence[tuple[str, Sequence[float]]], names: Sequence[str], unit: str) -> str:
    """Horizontal bars, one group per row, one bar per name."""
    largest = max((v for _, values in rows for v in values), default=0) or 1
    thick, gap = 11, 7
    step = thick * len(names) + gap
    height = TOP + step * len(rows) + 8
    left, wide = 96, 560
    parts = [
        f'<svg viewBox="0 0 {wide} {height}" role="img" aria-label="{escape(title, quote=True)}">',
        f'<text class="title" x="0" y="15">{escape(title)}</text>',
    ]
    for i, (label, values) in enumerate(rows):
        top = TOP + i * step
        middle = top + thick * len(names) / 2 + 4
        parts.append(f'<text class="tick" x="{left - 6}" y="{middle:.1f}" text-anchor="end">{escape(label)}</text>')
        for j, value in enumerate(values):
            length = (wide - left - 90) * value / largest
            y = top + j * thick
            parts.append(f'<rect class="s{j % 8} bar" x="{left}" y="{y}" width="{length:.1f}" height="{thick - 2}"/>')
            text = f"{short(value)}{unit}"
            parts.append(f'<text class="tick" x="{left + length + 5:.1f}" y="{y + thick - 3}">{escape(text)}</text>')
    return "".join(parts) + "</svg>"


def _open(title: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title, quote=True)}">'


def linear_ticks(low: float, high: float, about: int = 4) -> list[float]:
    span = (high - low) or abs(high) or 1.0
    step = 10 ** floor(log10(span / about))
    step *= next((m for m in (1, 2, 5, 10) if span / (step * m) <= about), 10)
    first, last = floor(low / step), ceil(high / step)
    return [i * step for i in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    every = [m * 10.0**e for e in range(floor(log10(low)), ceil(log10(high)) + 1) for m in (1, 2, 5)]
    inside = [t for t in every if low <= t <= high]
    if len(inside) > 6:
        inside = [t for t in inside if f"{t:e}".startswith("1")]
    return inside if len(inside) >= 2 else [low, high]


def short(value: float) -> str:
    """A number as people write it: 12,000 · 264 · 5.63 · 0.0021."""
    if value == 0:
        return "0"
    if abs(value) >= 1e6:
        return f"{value / 1e6:.3g}M"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
