"""The daemon's garbage collector: what it passes over, and that it still collects."""

import subprocess
import sys

PROGRAM = """
import gc, weakref
from iop_shared.aio.garbage import calm_garbage_collector

class Node: pass

before = len(gc.get_objects())
calm_garbage_collector()
after = len(gc.get_objects())
one = Node(); one.itself = one
seen = weakref.ref(one); del one
for _ in range(30_000):
    kept = [Node() for _ in range(1)]; kept[0].itself = kept[0]
print(before > 1000, after < 100, seen() is None)
"""


def test_what_was_imported_is_passed_over_and_new_cycles_still_go() -> None:
    # In a process of its own: freezing would change what other tests find.
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=30)

    assert (done.returncode, done.stdout, done.stderr) == (0, "True True True\n", "")
