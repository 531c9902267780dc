"""The training loop, what an update is made of, and what is measured of it."""
