"""``python -m lit_loader.bench``."""

from lit_loader.bench.app import main

if __name__ == "__main__":
    main()
