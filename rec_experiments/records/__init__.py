"""What a run leaves behind: its folder, its identity, where it came from, and trackers."""
