"""``python -m lit_loader.top``."""

import sys

from lit_loader.top.app import main

if __name__ == "__main__":
    sys.exit(main())
