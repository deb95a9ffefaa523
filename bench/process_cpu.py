"""CPU time and memory of another process, exactly. Linux only: the figures come from the kernel's own books.

CPU time is read from the process's CPU-time clock (nanoseconds, all threads, ended ones included).
"""

import time
from dataclasses import dataclass
from pathlib import Path

_CPUCLOCK_SCHED = 2  # include/linux/posix-timers.h: the low bits of a process's clock id


@dataclass(frozen=True, slots=True)
class CpuMark:
    """How much CPU a process had used at a moment. Both in nanoseconds; `at_ns` is monotonic."""

    at_ns: int
    used_ns: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of memory. `pss_bytes` counts a page shared by n processes as 1/n; `rss_bytes` counts it whole."""

    pss_bytes: int
    rss_bytes: int


class WatchedProcess:
    """CPU and memory of `pid` and, where `with_children`, of the children it has now."""

    def __init__(self, pid: int, *, with_children: bool = False) -> None:
        self._pids = (pid, *(_children_of(pid) if with_children else ()))

    def mark(self) -> CpuMark:
        """Returns what the process has used until now.

        Raises:
            ProcessLookupError: it has ended.
        """
        return CpuMark(time.monotonic_ns(), sum(_used_ns(pid) for pid in self._pids))

    def memory(self) -> Memory:
        """Returns the memory it holds now.

        Raises:
            ProcessLookupError: it has ended.
        """
        pss = rss = 0
        for pid in self._pids:
            for line in _read(pid, "smaps_rollup").splitlines():
                if line.startswith("Pss:"):
                    pss += int(line.split()[1]) * 1024
                elif line.startswith("Rss:"):
                    rss += int(line.split()[1]) * 1024
        return Memory(pss, rss)


def idle_share(before: CpuMark, after: CpuMark) -> float:
    """Returns the share of one core used between two marks: what an idle process costs, for `used_between`."""
    return (after.used_ns - before.used_ns) / max(1, after.at_ns - before.at_ns)


def used_between(before: CpuMark, after: CpuMark, idle: float) -> float:
    """Returns nanoseconds of CPU between two marks without the share `idle` that would have been used anyway."""
    return max(0.0, after.used_ns - before.used_ns - idle * (after.at_ns - before.at_ns))


def _used_ns(pid: int) -> int:
    try:
        return time.clock_gettime_ns((~pid << 3) | _CPUCLOCK_SCHED)
    except OSError:
        raise ProcessLookupError(f"process {pid} has ended (or this is not Linux)") from None


def _read(pid: int, name: str) -> str:
    try:
        return Path("/proc", str(pid), name).read_text()
    except OSError:
        raise ProcessLookupError(f"process {pid} has ended: /proc/{pid}/{name} cannot be read") from None


def _children_of(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_text()
            except OSError:  # ended while we looked
                continue
            # The name stands in parentheses and may hold spaces; the parent is the second field after it.
            if int(text.rpartition(")")[2].split()[1]) == pid:
                found.append(int(entry.name))
    return found
