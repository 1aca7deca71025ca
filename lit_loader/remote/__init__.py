"""Workers on other machines: the relay that stands for them in a pool, the engine."""
