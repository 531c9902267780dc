"""Configuration: the typed experiment, the classes of each config group, and composing them."""
