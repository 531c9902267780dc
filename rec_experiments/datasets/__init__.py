"""Data sets. Each module defines one kind of Dataset: problems together with their verifier."""
