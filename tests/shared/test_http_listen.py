import socket

import pytest

from iop_shared.errors import Unavailable
from iop_shared.http_listen import ListenAddress, bind_listen_socket


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:7480", "127.0.0.1", 7480),
        ("[::1]:0", "::1", 0),
        ("[fe80::1%eth0]:7480", "fe80::1%eth0", 7480),
        ("gateway.lan:65535", "gateway.lan", 65535),
    ],
)
def test_an_address_reads_and_writes_the_same(text: str, host: str, port: int) -> None:
    address = ListenAddress.parse(text)

    assert (address.host, address.port) == (host, port)
    assert str(address) == text


_FORM = 'use HOST:PORT, for example "127.0.0.1:7480" or "[::1]:7480"'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("7480", f"'7480' has no port: {_FORM}"),
        ("", f"'' has no port: {_FORM}"),
        (":7480", f"':7480' has no usable host: {_FORM}"),
        ("http://a:80", f"'http://a:80': an IPv6 host stands in brackets; {_FORM}"),
        ("a b:80", f"'a b:80' has no usable host: {_FORM}"),
        ("::1:7480", f"'::1:7480': an IPv6 host stands in brackets; {_FORM}"),
        ("[gpu]:80", f"'[gpu]:80': 'gpu' is not an IPv6 address; {_FORM}"),
        ("a:", f"'a:': port '' is not a number from 0 to 65535; {_FORM}"),
        ("a:65536", f"'a:65536': port '65536' is not a number from 0 to 65535; {_FORM}"),
        ("a:-1", f"'a:-1': port '-1' is not a number from 0 to 65535; {_FORM}"),
        ("a:²", f"'a:²': port '²' is not a number from 0 to 65535; {_FORM}"),
    ],
)
def test_what_is_no_address_is_said(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        ListenAddress.parse(text)

    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False),
     ("::", False), ("192.168.0.4", False), ("localhost.example", False)],
)  # fmt: skip
def test_loopback_is_told_from_the_host_alone(host: str, is_loopback: bool) -> None:
    assert ListenAddress(host, 1).is_loopback is is_loopback


def test_port_zero_becomes_the_real_port() -> None:
    sock, bound = bind_listen_socket(ListenAddress("127.0.0.1", 0), "link")

    with sock:
        assert sock.getsockname() == ("127.0.0.1", bound.port)
        assert bound.port > 0
        with socket.create_connection(("127.0.0.1", bound.port), timeout=5):
            pass


def test_a_port_in_use_is_said() -> None:
    sock, bound = bind_listen_socket(ListenAddress("127.0.0.1", 0), "link")

    with sock, pytest.raises(Unavailable) as caught:
        bind_listen_socket(bound, "http")

    assert caught.value.code == "port_in_use"
    assert str(caught.value) == (
        f"http: 127.0.0.1:{bound.port} is already in use; stop the program that listens there, "
        "or choose another address"
    )


def test_an_address_of_another_machine_is_said() -> None:
    with pytest.raises(Unavailable) as caught:
        bind_listen_socket(ListenAddress("192.0.2.1", 7480), "http")  # TEST-NET-1: nobody has it

    assert caught.value.code == "cannot_listen"
    assert str(caught.value) == (
        "http: 192.0.2.1:7480 is not an address of this machine; use one of its own, or 0.0.0.0 for all"
    )


def test_a_host_that_cannot_be_looked_up_is_said() -> None:
    with pytest.raises(Unavailable) as caught:
        bind_listen_socket(ListenAddress("no-such-host.invalid", 7480), "http")

    assert caught.value.code == "cannot_listen"
    assert str(caught.value).startswith("http: cannot look up the host of no-such-host.invalid:7480: ")
    assert str(caught.value).endswith("; use an address of this machine")
