"""Where a daemon listens: the address as a value, and a bound socket with a clear sentence if it cannot be had."""

import errno
import ipaddress
import os
import socket
from dataclasses import dataclass
from typing import Final

from iop_shared.errors import Unavailable

_FORM: Final = 'use HOST:PORT, for example "127.0.0.1:7480" or "[::1]:7480"'
BACKLOG: Final = 2048  # Connections the kernel keeps for us; as uvicorn does. Linux cuts it to net.core.somaxconn.


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """A host and a port to listen on or to dial. Port 0: the system picks a free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "ListenAddress":
        """Returns the address that `text` writes as `HOST:PORT`; an IPv6 host stands in brackets.

        Raises:
            ValueError: with the value and the form that is expected.
        """
        host, colon, port = text.rpartition(":")
        if not colon:
            raise ValueError(f"{text!r} has no port: {_FORM}")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
            try:
                ipaddress.IPv6Address(host.partition("%")[0])
            except ValueError:
                raise ValueError(f"{text!r}: {host!r} is not an IPv6 address; {_FORM}") from None
        elif ":" in host:
            raise ValueError(f"{text!r}: an IPv6 host stands in brackets; {_FORM}")
        if not host or not host.isprintable() or any(c in host for c in " /@"):
            raise ValueError(f"{text!r} has no usable host: {_FORM}")
        if not (port.isascii() and port.isdecimal()) or int(port) > 65535:
            raise ValueError(f"{text!r}: port {port!r} is not a number from 0 to 65535; {_FORM}")
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it: `localhost`, 127.0.0.0/8 or ::1. Names are not looked up."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.partition("%")[0]).is_loopback
        except ValueError:
            return False


_BIND_REASONS: Final = {
    errno.EADDRINUSE: "is already in use; stop the program that listens there, or choose another address",
    errno.EACCES: "may not be opened by this user; ports below 1024 need a privilege: choose a higher one",
    errno.EADDRNOTAVAIL: "is not an address of this machine; use one of its own, or 0.0.0.0 for all",
}


def bind_listen_socket(listen: ListenAddress, name: str) -> tuple[socket.socket, ListenAddress]:
    """Returns a listening, non-blocking TCP socket and its address with the real port. The caller closes it.

    `name` says in the error what wanted to listen ("http", "link"). A host name is looked up here (this may
    block for as long as the resolver takes), and its first address is used.

    Raises:
        Unavailable: code `port_in_use` or `cannot_listen`.
    """
    try:
        found = socket.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise Unavailable(
            f"{name}: cannot look up the host of {listen}: {reason}; use an address of this machine",
            code="cannot_listen",
        ) from error
    family, kind, protocol, _, address = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":  # Elsewhere this option lets two programs share a port.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        reason = _BIND_REASONS.get(error.errno or 0) or f"cannot be opened: {error.strerror or error}"
        code = "port_in_use" if error.errno == errno.EADDRINUSE else "cannot_listen"
        raise Unavailable(f"{name}: {listen} {reason}", code=code) from error
    host, port = sock.getsockname()[:2]
    return sock, ListenAddress(str(host), int(port))
