"""Workers on other machines: lanes that stand for them in a pool, the relay, the engine."""
