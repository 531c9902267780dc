"""Samplers: implementations of `rec_experiments.common.protocols.Sampler`."""
