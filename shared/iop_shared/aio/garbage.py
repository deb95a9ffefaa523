"""When a daemon's garbage collector works. Nearly everything here is freed by its count, so it rarely has to."""

import gc
from typing import Final

YOUNG_OBJECTS: Final = 10_000
"""New objects before a look at the young ones; CPython's own number is 700. Measured on an edge that relayed
38,400 tokens: collections took 320 ms with a longest stop of 100 ms, and 30 ms and 5 ms with this."""


def calm_garbage_collector() -> None:
    """Makes collections rarer, and lets them pass over what exists now. Call once, when all is imported.

    A full collection stops the loop while it walks everything that is alive; the 50,000 objects that imports
    leave behind are never garbage. What was frozen is not freed later, should it become garbage.
    """
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 10, 10)
