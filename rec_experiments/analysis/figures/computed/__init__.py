"""Figures without runs, computed with the functions that training uses."""
