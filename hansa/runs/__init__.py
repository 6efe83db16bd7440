"""Runs: the loop over rounds, the run directory, the ledger, results and models."""
