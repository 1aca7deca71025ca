"""A Python process that has imported torch, and of which the programs of tests are forked.

``tests/support/programs.py`` starts it and asks it. A fork goes on below as if Python had been
started with the program's file: its own session, working directory, environment and output, its
module as ``__main__``, and the end that Python gives to any program.
"""

import importlib
import json
import os
import socket
import sys
import types
from pathlib import Path
from typing import Any


def serve(requests: socket.socket) -> dict[str, Any]:
    """Answer requests; returns in each fork, with what it is to be."""
    while True:
        data, files, _, _ = socket.recv_fds(requests, 1 << 20, 3)
        if not data:
            os._exit(0)
        request = json.loads(data)
        if "reap" in request:
            _, status = os.waitpid(request["reap"], 0)
            requests.send(str(status).encode())
            continue
        pid = os.fork()
        if pid == 0:
            requests.close()
            for number, file in enumerate(files):
                os.dup2(file, number)
                os.close(file)
            return request
        for file in files:
            os.close(file)
        requests.send(str(pid).encode())


def become(request: dict[str, Any]) -> types.ModuleType:
    """Take over what a program is given by whoever starts it."""
    if request["session"]:
        os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv[:] = request["argv"]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    sys.excepthook = without_this_file
    program = types.ModuleType("__main__")
    program.__file__ = sys.argv[0]
    sys.modules["__main__"] = program
    return program


def without_this_file(kind: Any, error: Any, trace: Any) -> None:
    """Print an exception that has left the program."""
    trace = trace.tb_next or trace
    sys.__excepthook__(kind, error.with_traceback(trace), trace)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        importlib.import_module(name)
    sys.argv = ["program"]
    with socket.socket(fileno=0) as requests:
        given = serve(requests)
    main = become(given)
    exec(compile(Path(main.__file__ or "").read_bytes(), main.__file__ or "", "exec"), vars(main))
