"""Black-box parity with ``torch.utils.data.DataLoader``: one set of tests, both loaders.

Every test takes the fixture ``loader_class``, which is torch's class (the *oracle*: it shows that
the test states a fact about torch) and ours. Where the two differ on purpose, the test asks
``is_oracle`` and says what is expected of each.

To keep the suite short, torch's runs with workers of tests that also run in-process, and those of
tests marked ``dear_oracle``, are marked ``slow``: ``pytest -m "" tests/parity`` runs them all.
"""
