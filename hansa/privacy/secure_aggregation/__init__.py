"""Secure aggregation: the server learns only the sum of the silos' updates."""
