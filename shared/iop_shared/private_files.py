"""Files that hold secrets: written for their owner alone, and refused when others could have read them."""

import os
import stat
import tempfile
from pathlib import Path
from typing import Final

from iop_shared.errors import InvalidConfig, Unavailable

MAX_SECRET_BYTES: Final = 64 * 1024  # chosen: a token has 61 bytes, a key file a few thousand
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def write_private(path: Path, text: str) -> None:
    """Writes `text` to `path` so that at every moment only the owner can read it.

    The file is 0600 from its creation and takes the place of an old one in one step; missing folders are
    made 0700. After a crash either the old or the new content is there, whole.

    Raises:
        Unavailable: code `file_unavailable`, with the path and the reason.
    """
    temporary: str | None = None
    try:
        make_private_dir(path.parent)
        fd, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mkstemp creates 0600
        with os.fdopen(fd, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        temporary = None
        _sync_folder(path.parent)
    except OSError as error:
        raise Unavailable(f"{path}: cannot be written: {error.strerror}", code="file_unavailable") from error
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def make_private_dir(path: Path) -> None:
    """Makes `path` and its missing parents, each 0700. Folders that exist stay as they are.

    Raises:
        OSError: from the system.
    """
    if path.is_dir():
        return
    make_private_dir(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)


def read_secret(path: Path) -> str:
    """Returns the text of `path` without white space around it.

    Raises:
        InvalidConfig: the file is missing, empty, too large, not text, not ours, or others may read it;
            the sentence says how to mend that and never shows the content.
    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(MAX_SECRET_BYTES + 1)
    except OSError as error:
        raise InvalidConfig(str(path), [f"cannot be read: {error.strerror}"]) from error
    problem = _problem_of(path, status)
    if problem is None and len(data) > MAX_SECRET_BYTES:
        problem = f"is larger than {MAX_SECRET_BYTES} bytes; this is not a secret of ours"
    if problem is not None:
        raise InvalidConfig(str(path), [problem])
    try:
        text = data.decode().strip()
    except UnicodeDecodeError:
        raise InvalidConfig(str(path), ["is not UTF-8 text; this is not a secret of ours"]) from None
    if not text:
        raise InvalidConfig(str(path), ["is empty; put the secret into it"])
    return text


def _problem_of(path: Path, status: os.stat_result) -> str | None:
    if os.name != "posix":  # Modes say nothing there; the folder's access list guards the file.
        return None
    mode = stat.S_IMODE(status.st_mode)
    if mode & _OTHERS:
        return f"may be read by others (mode {mode:04o}); run: chmod 600 {path}"
    user = os.geteuid()
    if status.st_uid not in (user, 0):
        return f"belongs to user {status.st_uid}, not to this one ({user}); run: chown {user} {path}"
    return None


def _sync_folder(path: Path) -> None:
    """Makes a rename survive a power loss. Some file systems and Windows cannot; the rename still holds."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(fd)
    except OSError:
        pass
    finally:
        os.close(fd)
