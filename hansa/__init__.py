"""Hansa trains language models across organisations while the text stays where it is."""

__all__ = ["__version__"]

__version__: str


def __getattr__(name: str) -> str:
    """Look the version up when it is asked for: reading the package's metadata takes a third of `hansa --help`."""
    if name == "__version__":
        from importlib.metadata import version

        return version("hansa")
    raise AttributeError(f"module 'hansa' has no attribute '{name}'")
