"""Black-box parity with ``torch.utils.data.DataLoader``: one set of tests, both loaders.

Every test takes the fixture ``loader_class``, which is torch's class (the *oracle*: it shows that
the test states a fact about torch) and ours. Where the two differ on purpose, the test asks
``is_oracle`` and says what is expected of each.

Torch's own runs are marked ``slow``: ``pytest -m "" tests/parity`` runs both.
"""
