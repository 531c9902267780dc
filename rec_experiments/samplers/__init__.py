"""Samplers: implementations of `rec_experiments.types.Sampler`."""
