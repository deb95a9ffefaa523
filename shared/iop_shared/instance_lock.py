"""InstanceLock: one daemon per folder. The lock goes with the process, however that ends."""

import os
import sys
from pathlib import Path
from types import TracebackType
from typing import IO

from iop_shared.errors import Unavailable
from iop_shared.private_files import make_private_dir


class InstanceLock:
    """Holds a lock on `path` while the context is open; the file stays behind with the last owner's process id.

    `what` names the daemon in the sentence that the second one gets ("a node").
    """

    def __init__(self, path: Path, what: str) -> None:
        self._path, self._what = path, what
        self._file: IO[str] | None = None

    def __enter__(self) -> "InstanceLock":
        """Takes the lock at once or not at all.

        Raises:
            Unavailable: code `already_running`, with the other process; or `file_unavailable`.
        """
        try:
            make_private_dir(self._path.parent)
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            message = f"{self._path}: cannot be opened: {error.strerror}"
            raise Unavailable(message, code="file_unavailable") from error
        file = os.fdopen(fd, "r+", encoding="ascii", errors="replace")
        try:
            _lock(file)
        except OSError:
            other = file.read(20).strip() or "unknown"
            file.close()
            folder = self._path.parent
            raise Unavailable(
                f"{self._what} runs in {folder} already (process {other}): stop it, or use another --dir",
                code="already_running",
            ) from None
        file.seek(0)
        file.truncate()
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
