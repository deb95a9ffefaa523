"""InstanceLock: one edge process per folder. The lock goes with the process, however it ends."""

import os
import sys
from pathlib import Path
from types import TracebackType
from typing import IO

from iop_shared.errors import Unavailable


class InstanceLock:
    """Holds a lock file while the context is open. The file itself stays: its content is the last owner's pid."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] | None = None

    def __enter__(self) -> "InstanceLock":
        """Takes the lock.

        Raises:
            Unavailable: code `already_running`, with the other process; or `file_unavailable`.
        """
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise Unavailable(
                f"{self._path}: cannot be opened: {error.strerror}", code="file_unavailable"
            ) from error
        file = os.fdopen(fd, "r+", encoding="ascii", errors="replace")
        try:
            _lock(file)
        except OSError:
            other = file.read(20).strip() or "unknown"
            file.close()
            raise Unavailable(
                f"an edge runs in {self._path.parent} already (process {other}): stop it, or use another --dir",
                code="already_running",
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        self._file = file
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


if sys.platform == "win32":
    import msvcrt

    def _lock(file: IO[str]) -> None:
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(file: IO[str]) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
