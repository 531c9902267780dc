"""The policy: models, chat templates, and the one forward pass that gives log-probabilities."""
