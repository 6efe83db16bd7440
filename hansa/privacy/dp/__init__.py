"""Differential privacy: mechanisms with their prices, and the accounting of ε."""
