"""Samplers: draw responses from a policy. `Sampler` in `rec_experiments.types` says what each does."""
