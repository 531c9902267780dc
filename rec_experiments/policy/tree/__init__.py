"""The fast CPU path of the tiny model: computation shared over a tree of prefixes."""
