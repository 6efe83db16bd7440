"""File formats: parsers that turn a file into rows, and annotated rows into entities, mentions and pairs."""
