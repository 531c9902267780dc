"""Data sets: each module is one Task, the problems together with their verifier."""
