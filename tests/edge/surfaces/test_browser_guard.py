"""Web pages stay out: which Host and Origin pass, and the sentence for those that do not."""

import pytest

from iop_edge.surfaces.browser_guard import BrowserGuard
from iop_shared.errors import NotAllowed

GUARD = BrowserGuard(["Edge.lab", ""], machine_name="Gateway")


@pytest.mark.parametrize(
    "host",
    [
        b"127.0.0.1:7480",
        b"127.8.8.8",
        b"localhost:1",
        b"LocalHost",
        b"localhost.",
        b"a.localhost:3",
        b"[::1]:7480",
        b"[fe80::1%25eth0]:7480",
        b"192.168.1.5:7480",
        b"edge.lab:7480",
        b"EDGE.LAB",
        b"gateway:7480",
        b"gateway.local",
        b"",
    ],
)
def test_names_of_this_edge_pass(host: bytes) -> None:
    for _ in range(2):  # the second time it is known
        GUARD.check({b"host": host})


@pytest.mark.parametrize(
    "host",
    [
        b"evil.example:7480",
        b"localhost.evil.example",
        b"127.0.0.1.evil.example",
        b"user@evil.example",
        b"[::1",
        b":80",
    ],
)
def test_foreign_host_is_refused(host: bytes) -> None:
    for _ in range(2):
        with pytest.raises(NotAllowed) as caught:
            GUARD.check({b"host": host})
        assert caught.value.code == "host_not_allowed"
        assert str(caught.value) == (
            f"host {host.decode()!r} is not a name of this edge: use 127.0.0.1, localhost, an IP address, "
            "or this machine's own name"
        )


@pytest.mark.parametrize("origin", [b"http://localhost:3000", b"http://127.0.0.1", b"https://edge.lab"])
def test_pages_of_this_machine_pass(origin: bytes) -> None:
    GUARD.check({b"host": b"localhost", b"origin": origin})


@pytest.mark.parametrize("origin", [b"https://evil.example", b"null", b"", b"file://", b"http://[::1"])
def test_foreign_page_is_refused(origin: bytes) -> None:
    with pytest.raises(NotAllowed) as caught:
        GUARD.check({b"host": b"localhost", b"origin": origin})

    assert caught.value.code == "origin_not_allowed"
    assert str(caught.value) == (
        f"a web page from origin {origin.decode()!r} may not use this edge: only pages of this machine may"
    )


def test_nameless_machine_adds_no_name() -> None:
    with pytest.raises(NotAllowed):
        BrowserGuard(machine_name="").check({b"host": b".local"})


def test_many_hosts_do_not_fill_memory() -> None:
    guard = BrowserGuard()
    for number in range(1000):
        guard.check({b"host": b"127.0.0.1:%d" % number})

    assert len(guard._good_hosts) <= 256
