"""Algorithms as compositions of small callables; `loss.Algorithm` puts them together.

Each piece is a dataclass that holds its parameters. The class is the schema of its config, and a
call computes a pure function of tensors.
"""
