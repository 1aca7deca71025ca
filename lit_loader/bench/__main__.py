"""``python -m lit_loader.apps.bench``."""

from lit_loader.apps.bench.app import main

if __name__ == "__main__":
    main()
