"""Data sets: each module is one Dataset, the problems together with their verifier."""
