"""`hansa check`: what a federation file would do, without training."""
