"""Keeps web pages away from an edge without API keys: by the names that Host and Origin give.

A page on any site can send requests to 127.0.0.1, and with DNS rebinding can even read the answers, because the
browser then believes that the edge is part of that site. Both leave a foreign name in a header that a page
cannot choose: in `Host` (rebinding needs a name) or in `Origin` (sent with every POST of a page).
"""

import ipaddress
import socket
from collections.abc import Collection
from urllib.parse import urlsplit

from iop_shared.errors import NotAllowed


class BrowserGuard:
    """Judges Host and Origin.

    Fine are loopback names, IP addresses, `allowed_hosts`, and the name of this machine, also with `.local`
    (None: as the system has it; nothing is looked up).
    """

    def __init__(self, allowed_hosts: Collection[str] = (), *, machine_name: str | None = None) -> None:
        machine = (socket.gethostname() if machine_name is None else machine_name).lower().rstrip(".")
        names = {host.lower().rstrip(".") for host in allowed_hosts} | {machine, f"{machine}.local"}
        self._allowed = frozenset(names - {"", ".local"})
        # Clients repeat the same few values; a page could send many, hence the bound.
        self._good_hosts: set[bytes] = set()

    def check(self, headers: dict[bytes, bytes]) -> None:
        """Passes a request whose headers may come from a program on this or an allowed machine.

        Raises:
            NotAllowed: code `host_not_allowed` or `origin_not_allowed`.
        """
        host = headers.get(b"host", b"")
        if host not in self._good_hosts:
            self._check_host(host)
        origin = headers.get(b"origin")
        if origin is not None:
            self._check_origin(origin.decode("latin-1"))

    def _check_host(self, raw: bytes) -> None:
        host = raw.decode("latin-1")
        # A request without a Host is HTTP/1.0; no browser sends one.
        if raw and not self._is_allowed(_host_of(f"//{host}")):
            raise NotAllowed(
                f"host {host[:100]!r} is not a name of this edge: use 127.0.0.1, localhost, an IP address, "
                "or this machine's own name",
                code="host_not_allowed",
            )
        if len(self._good_hosts) < 256:
            self._good_hosts.add(raw)

    def _check_origin(self, origin: str) -> None:
        if not self._is_allowed(_host_of(origin)):
            raise NotAllowed(
                f"a web page from origin {origin[:100]!r} may not use this edge: only pages of this machine may",
                code="origin_not_allowed",
            )

    def _is_allowed(self, host: str) -> bool:
        if host == "localhost" or host.endswith(".localhost") or host in self._allowed:
            return True
        try:
            ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return False
        return True


def _host_of(url: str) -> str:
    """Returns the host in a URL or in `//host:port`, in lower case; "" if there is none or it is malformed."""
    try:
        return (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return ""
