"""Algorithms as compositions of small callables; `surrogate.Algorithm` puts them together.

Each piece is a dataclass that holds its parameters: it is the schema of its config, and, called,
a pure function of tensors.
"""
