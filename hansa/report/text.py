"""Tables and the preview of a run as text, for terminals and notebooks."""

from rich.table import Table


def number(value: float | None) -> str:
    """A figure for people: few digits, thousands separated; a dash for None."""
    if value is None:
        return "–"
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.4f}"


def table(columns: list[str], rows: list[list[str]], title: str, figures: bool = True, fold: bool = False) -> Table:
    """``figures``: all but the first column are numbers; ``fold``: the last column has texts of several lines."""
    built = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2), pad_edge=False)
    for index, column in enumerate(columns):
        folded = fold and index == len(columns) - 1
        built.add_column(
            column,
            justify="right" if index and figures else "left",
            no_wrap=not folded,
            min_width=40 if folded else None,
        )
    for row in rows:
        built.add_row(*row)
    return built
