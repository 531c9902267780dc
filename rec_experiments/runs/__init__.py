"""One run, from a typed experiment to a finished run folder, and reading it back."""
