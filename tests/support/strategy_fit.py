"""Run as a script: ``strategy_fit.py FOLDER STRATEGY METHODS [KILLED RANK]``.

METHODS are the workers' start methods, with commas between. All else is in `strategy_runs`, which a
spawned worker, that imports this file again, has no need of.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    from tests.support.strategy_runs import main

    main(Path(sys.argv[1]), *sys.argv[2:])
