import os
import stat
from pathlib import Path

import pytest

from iop_shared.errors import InvalidConfig, Unavailable
from iop_shared.private_files import MAX_SECRET_BYTES, read_secret, write_private

pytestmark = pytest.mark.skipif(os.name != "posix", reason="file modes are a POSIX matter")


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_secret_comes_back_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "token"
    before = os.umask(0)  # the loosest there is
    try:
        write_private(path, "hush\n")
    finally:
        os.umask(before)

    assert read_secret(path) == "hush"
    assert _mode(path) == 0o600
    assert _mode(path.parent) == 0o700
    assert _mode(path.parent.parent) == 0o700


def test_a_file_that_was_open_to_others_is_private_after_writing(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("old")
    path.chmod(0o644)

    write_private(path, "new")

    assert _mode(path) == 0o600
    assert read_secret(path) == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["token"]


def test_a_write_that_fails_leaves_nothing_and_says_why(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.mkdir()

    with pytest.raises(Unavailable) as caught:
        write_private(path, "x")

    assert caught.value.code == "file_unavailable"
    assert str(caught.value) == f"{path}: cannot be written: Is a directory"
    assert [p.name for p in tmp_path.iterdir()] == ["token"]


def test_a_folder_that_is_a_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "node").write_text("")

    with pytest.raises(Unavailable) as caught:
        write_private(tmp_path / "node" / "token", "x")

    assert str(caught.value) == f"{tmp_path}/node/token: cannot be written: File exists"


def test_a_secret_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("hush")
    path.chmod(0o640)

    with pytest.raises(InvalidConfig) as caught:
        read_secret(path)

    assert str(caught.value) == f"{path}: may be read by others (mode 0640); run: chmod 600 {path}"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is empty; put the secret into it"),
        (b" \n", "is empty; put the secret into it"),
        (b"\xff\xfe", "is not UTF-8 text; this is not a secret of ours"),
        (b"x" * (MAX_SECRET_BYTES + 1), "is larger than 65536 bytes; this is not a secret of ours"),
    ],
)
def test_content_that_is_no_secret_is_said(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    path.chmod(0o600)

    with pytest.raises(InvalidConfig) as caught:
        read_secret(path)

    assert str(caught.value) == f"{path}: {problem}"


def test_a_missing_secret_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig) as caught:
        read_secret(tmp_path / "token")

    assert str(caught.value) == f"{tmp_path}/token: cannot be read: No such file or directory"
