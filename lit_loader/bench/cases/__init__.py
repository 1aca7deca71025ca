"""The cases: each file has ``rows(settings)``, the rows that it plans."""
