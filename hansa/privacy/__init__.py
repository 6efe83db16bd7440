"""Privacy: differential privacy, secure aggregation, the silos' policies, and attacks that audit them."""
