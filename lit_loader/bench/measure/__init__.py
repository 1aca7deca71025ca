"""Measuring: rounds of turns, the machine, and what it can do at best."""
