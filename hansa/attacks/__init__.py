"""Attacks on released knowledge and updates, which measure how much text can be reconstructed from them."""
