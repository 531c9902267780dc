"""Samplers: draw responses from a policy, as `rec_experiments.types.Sampler` promises."""
