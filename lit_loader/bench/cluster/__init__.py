"""Remote workers beside Ray Data and bare ``ray.get``: ``python -m lit_loader.bench.cluster``."""
