"""The core of federated learning: rounds, nodes, messages, method slots, state.

It knows no paper, no YAML and no disk.
"""
