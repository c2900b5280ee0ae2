"""Servers that a test may kill, what goes wrong on the way to them, and eyes in their data."""
