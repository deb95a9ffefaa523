"""What a test must not leave behind: tasks, sockets, child processes."""

import asyncio
import gc
import os
import time
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc/self")


@dataclass(frozen=True, slots=True)
class Held:
    """Sockets (descriptor and inode) and children (process ids) of this process."""

    sockets: frozenset[str]
    children: frozenset[str]

    def beyond(self, before: "Held") -> list[str]:
        """Returns a line for each thing held now that was not held `before`."""
        return [f"socket left open: {name}" for name in sorted(self.sockets - before.sockets)] + [
            f"child process left running: {describe_process(pid)}"
            for pid in sorted(self.children - before.children)
        ]


def held_now() -> Held:
    """Returns what this process holds. Empty where there is no /proc (then nothing is checked)."""
    if not _PROC.exists():
        return Held(frozenset(), frozenset())
    sockets: set[str] = set()
    for name in os.listdir(_PROC / "fd"):
        try:
            target = os.readlink(_PROC / "fd" / name)
        except OSError:  # the descriptor of the listing itself
            continue
        if target.startswith("socket:"):
            sockets.add(f"fd {name} {target}")
    children: set[str] = set()
    for task in os.listdir(_PROC / "task"):
        try:
            children.update((_PROC / "task" / task / "children").read_text().split())
        except OSError:  # the thread has just ended
            continue
    return Held(frozenset(sockets), frozenset(children))


def describe_process(pid: str) -> str:
    """Returns the process id with its command line, as far as it can be read."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return pid
    return f"{pid} ({command[:120] or 'ended, not waited for'})"


def wait_nothing_beyond(before: Held, timeout_s: float = 1.0) -> list[str]:
    """Returns what is still held beyond `before` once `timeout_s` is over; at once if nothing is."""
    deadline = time.monotonic() + timeout_s
    while True:
        left = held_now().beyond(before)
        if not left or time.monotonic() > deadline:
            return left
        gc.collect()  # an unreferenced socket warns here, and warnings are errors
        time.sleep(0.02)


async def wait_no_tasks_beyond(before: set["asyncio.Task[object]"], timeout_s: float = 1.0) -> list[str]:
    """Returns a line for each task of this loop that is neither in `before` nor ends within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        left = asyncio.all_tasks() - before - {asyncio.current_task()}
        if not left or time.monotonic() > deadline:
            return [f"task left running: {task.get_name()} {task.get_coro()}" for task in left]
        await asyncio.sleep(0.01)
