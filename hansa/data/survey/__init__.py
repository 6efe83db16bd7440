"""A silo's side of a survey: counts with a floor, and keyed sketches."""
