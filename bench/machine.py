"""Where and with what a bench ran: facts that belong beside every figure."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

_PACKAGES: Final = (
    "iop-platform",
    "uvloop",
    "protobuf",
    "httptools",
    "uvicorn",
    "httpx",
    "httpx-aiohttp",
    "aiohttp",
    "orjson",
)


def describe_machine() -> dict[str, Any]:
    """Returns the processor, its cores, the load the machine has now, and the system."""
    model = platform.processor()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:  # not Linux
        pass
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "load_average": [round(value, 2) for value in os.getloadavg()],
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def describe_versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages on the hot path, and the revision of this tree."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "absent"
    git = ["git", "-C", str(Path(__file__).resolve().parent), "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(git, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return found
    if done.returncode == 0:
        found["revision"] = done.stdout.strip()
    return found
