"""What `Federation.check` returns: the preview, as text, as HTML in a notebook, and as values."""

from dataclasses import dataclass
from io import StringIO
from typing import Any

from rich.console import Console

from hansa.preview.preview import Preview
from hansa.report.preview_text import print_preview


@dataclass(frozen=True)
class Check:
    """What a run would do and release, before it begins."""

    preview: Preview

    @property
    def warnings(self) -> list[str]:
        """What is allowed but unwise."""
        return self.preview.warnings

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values, as ``hansa check --format json`` prints it."""
        return self.preview.as_dict()

    def __str__(self) -> str:
        console = Console(file=StringIO(), width=160, soft_wrap=True)
        print_preview(console, self.preview)
        assert isinstance(console.file, StringIO)
        return console.file.getvalue()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        console = Console(file=StringIO(), width=140, soft_wrap=True, record=True, force_jupyter=False)
        print_preview(console, self.preview)
        return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")
