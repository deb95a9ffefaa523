"""The first moments of a program, while it imports itself: Ctrl-C is clean then too.

Importing a whole program takes a few tenths of a second, and an interrupt inside of it shows a traceback of
whatever module was just read. So the entry points import this module alone, and it imports next to nothing.
"""

import os
import signal
import sys
from importlib import import_module

# As `exit_codes.ExitCode.INTERRUPTED`, which is not worth its imports here.
_INTERRUPTED = 130


def start(program: str) -> None:
    """Imports the module `program` and ends the process with what its `run_command(arguments)` returns.

    Ctrl-C ends the process with 130 while the program is imported; from then on it is the program's.
    """
    # Ignored from outside (nohup, a shell's background job) stays ignored.
    is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    try:
        if is_ours:
            # Nothing is open yet. Raising instead could be swallowed by an `except` of a module being imported.
            signal.signal(signal.SIGINT, lambda *_: os._exit(_INTERRUPTED))
        run_command = import_module(program).run_command
        if is_ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        code: int = run_command(sys.argv[1:])
    except KeyboardInterrupt:
        code = _INTERRUPTED  # between the two
    sys.exit(code)
