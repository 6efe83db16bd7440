"""Corpora for demonstrations and experiments: generated clinical notes and phrases, and downloaded disease names."""
