"""`hansa audit`: what left the silos, what it gives away, and what holding it back costs. One thin command per verb."""

import typer

audit = typer.Typer(no_args_is_help=True, help="Attack what a run released, and price the defences.")


@audit.callback()
def _group() -> None:
    """Attack what a run released, and price the defences."""
