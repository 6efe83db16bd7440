"""Data of the silos: file formats, splits, tokenised samples, de-identification, import of raw text, corpora."""
