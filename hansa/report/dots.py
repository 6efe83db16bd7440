"""A dot chart as SVG text: several models side by side for every silo. Colours are CSS variables of the page."""

from collections.abc import Mapping, Sequence
from html import escape

from hansa.report.charts import linear_ticks, short

WIDE, TOP, STEP, RIGHT = 680, 58, 26, 20


def dots(title: str, rows: Sequence[tuple[str, Mapping[str, float]]], line: tuple[str, str], unit: str) -> str:
    """One line for every (label, name → value) row, a dot for every name; the names of ``line`` are connected.

    Both names of ``line`` have large dots, and the chart shows the difference between them at the right.
    """
    names = list(rows[0][1])
    values = [value for _, found in rows for value in found.values()]
    ticks = linear_ticks(min(0.0, *values), max(values), 6)
    left = max(96.0, 6.6 * max(len(label) for label, _ in rows) + 12)
    right, height = WIDE - RIGHT - 56, TOP + STEP * len(rows) + 26

    def across(value: float) -> float:
        """The horizontal position of a value in the SVG."""
        return left + (value - ticks[0]) / ((ticks[-1] - ticks[0]) or 1) * (right - left)

    parts = [
        f'<svg viewBox="0 0 {WIDE} {height}" role="img" aria-label="{escape(title, quote=True)}">',
        f'<text class="title" x="0" y="15">{escape(title)}</text>',
    ]
    place = 0.0
    order = [*line, *(name for name in names if name not in line)]
    for number, name in enumerate(order):
        parts.append(f'<circle class="s{number % 8} dot" cx="{place + 5:.1f}" cy="32" r="{_size(name, line)}"/>')
        parts.append(f'<text class="tick" x="{place + 14:.1f}" y="35">{escape(name)}</text>')
        place += 14 + 6.2 * len(name) + 18
    bottom = TOP + STEP * len(rows) - STEP / 2 + 6
    for tick in ticks:
        x = f"{across(tick):.1f}"
        parts.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{TOP - 10}" y2="{bottom}"/>')
        text = escape(f"{short(tick)}{unit}")
        parts.append(f'<text class="tick" x="{x}" y="{bottom + 14}" text-anchor="middle">{text}</text>')
    for row, (label, found) in enumerate(rows):
        y = TOP + row * STEP + 4
        first, second = found[line[0]], found[line[1]]
        parts.append(f'<text class="name" x="{left - 10:.1f}" y="{y + 3}" text-anchor="end">{escape(label)}</text>')
        ends = f"{across(first):.1f},{y} {across(second):.1f},{y}"
        parts.append(f'<polyline class="s1" stroke-opacity=".45" points="{ends}"/>')
        for number, name in reversed(list(enumerate(order))):  # the names of ``line`` lie above the others
            tip = f"<title>{escape(f'{label}: {name} {found[name]:.1f}{unit}')}</title>"
            at = f'cx="{across(found[name]):.1f}" cy="{y}" r="{_size(name, line)}"'
            parts.append(f'<circle class="s{number % 8} dot" {at}>{tip}</circle>')
        gain = f"{second - first:+.1f}".replace("-", "−").replace("+0.0", "0.0")
        parts.append(f'<text class="name" x="{WIDE - RIGHT}" y="{y + 3}" text-anchor="end">{gain}</text>')
    parts.append(f'<text class="tick" x="{WIDE - RIGHT}" y="{TOP - 14}" text-anchor="end">gain</text>')
    return "".join(parts) + "</svg>"


def _size(name: str, line: tuple[str, str]) -> float:
    return 5.5 if name in line else 3.2
