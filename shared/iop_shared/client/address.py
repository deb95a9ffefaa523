"""Where the edge is: what the user said, else what a running edge wrote down, else the default."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from iop_shared.exit_codes import CommandFailed, ExitCode

DEFAULT_URL: Final = "http://127.0.0.1:7480"
_LOOPBACK: Final = ("127.", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class RunFile:
    """What a daemon writes into its folder once it is ready (`run.json`). "" where it does not listen."""

    pid: int
    http: str
    link: str


def edge_folder() -> Path:
    """Returns the folder of this machine's edge: IOP_EDGE_DIR, else ~/.iop/edge."""
    return Path(os.environ.get("IOP_EDGE_DIR") or Path.home() / ".iop" / "edge")


def find_edge_url(option: str | None, folder: Path | None = None) -> str:
    """Returns the edge's URL: `option` (--edge or IOP_EDGE_URL), a running local edge's, or `DEFAULT_URL`.

    Raises:
        CommandFailed: (usage) `option` is no http or https URL.
    """
    if option:
        return check_url(option)
    run_file = read_run_file(folder or edge_folder())
    return f"http://{run_file.http}" if run_file is not None and run_file.http else DEFAULT_URL


def check_url(text: str) -> str:
    """Returns the URL without a trailing slash or `/v1`; a bare host:port is taken as http.

    Raises:
        CommandFailed: (usage) with the value and the form that is wanted.
    """
    url = text.strip()
    if "://" not in url:
        url = f"http://{url}"
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 # reading it checks it
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise CommandFailed(
            f"the edge's address {text!r} is not a URL that iop can use",
            exit_code=ExitCode.USAGE,
            hint="give it as http://HOST:PORT, with --edge or in IOP_EDGE_URL",
        )
    # People paste the address that they gave to an OpenAI client.
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def is_loopback(url: str) -> bool:
    """Whether the URL's host is this machine by its name or number."""
    return (urlsplit(url).hostname or "").startswith(_LOOPBACK)


def read_run_file(folder: Path) -> RunFile | None:
    """Returns what the daemon of `folder` wrote, or None if there is none or its process is gone."""
    try:
        content: Any = json.loads((folder / "run.json").read_text())
    except (OSError, ValueError):
        return None  # not there, or being written: both mean "not ready"
    pid = content.get("pid") if isinstance(content, dict) else None
    if not isinstance(pid, int) or not is_alive(pid):
        return None
    return RunFile(pid, str(content.get("http") or ""), str(content.get("link") or ""))


def is_alive(pid: int) -> bool:
    """Whether a process with this id exists."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # somebody else's, but there
    return True
