"""``python -m lit_loader.top``."""

from lit_loader.top.app import command

if __name__ == "__main__":
    command()
