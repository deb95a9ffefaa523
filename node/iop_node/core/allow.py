"""What the node's own file lets an edge run here. Pure. The owner of the machine has the last word."""

import posixpath
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from iop_shared.link.messages import AdapterConfig

_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class AllowList:
    """Adapter types, the base URLs that adapters may dial, and the files that they may read.

    A URL pattern is `scheme://host:port`; the port may be `*`, the host may be `*`. What follows the port in
    a URL is free. Compared part by part, never as text: `http://127.0.0.1:80@evil.example` is not loopback.

    A file is allowed by its absolute path, or by `FOLDER/*` for all that lies right in FOLDER. Otherwise an
    edge could have a node send any secret of its owner to an engine as a key.
    """

    adapters: tuple[str, ...]
    base_urls: tuple[str, ...]
    files: tuple[str, ...] = ()

    def problems_of(self, config: AdapterConfig) -> Iterable[str]:
        """Yields a sentence for everything in `config` that is not allowed here."""
        if config.type not in self.adapters:
            allowed = ", ".join(self.adapters) or "none"
            yield (
                f"adapter {config.name!r}: type {config.type!r} is not allowed on this node "
                f"(allow.adapters in its own file: {allowed})"
            )
        if "base_url" in config.settings:
            yield from self.problems_of_url(config.name, config.settings["base_url"])
        for key, value in config.settings.items():
            if key.endswith("_file") and value is not None:
                yield from self.problems_of_file(config.name, key, value)

    def problems_of_file(self, name: str, key: str, path: object) -> Iterable[str]:
        """Yields a sentence if the adapter `name` may not read `path`, which its setting `key` names."""
        if not isinstance(path, str):
            yield f"adapter {name!r}: {key} must be text, not {type(path).__name__}"
        elif not any(_is_file_in(path, pattern) for pattern in self.files):
            allowed = ", ".join(self.files) or "none"
            yield (
                f"adapter {name!r}: {key} {path[:200]!r} is not allowed on this node "
                f"(allow.files in its own file: {allowed})"
            )

    def problems_of_url(self, name: str, url: object) -> Iterable[str]:
        """Yields a sentence if the adapter `name` may not dial `url`."""
        if not isinstance(url, str):
            yield f"adapter {name!r}: base_url must be text, not {type(url).__name__}"
        elif not any(_matches(url, pattern) for pattern in self.base_urls):
            allowed = ", ".join(self.base_urls) or "none"
            yield (
                f"adapter {name!r}: base_url {_without_secrets(url)!r} is not allowed on this node "
                f"(allow.base_urls in its own file: {allowed})"
            )


def check_pattern(pattern: str) -> str:
    """Returns `pattern` if it is one.

    Raises:
        ValueError: with the value and the form.
    """
    scheme, _, rest = pattern.partition("://")
    host, colon, port = rest.rpartition(":")
    well_formed = scheme in _DEFAULT_PORTS and host and colon and (port == "*" or _is_port(port))
    if not well_formed or any(mark in rest for mark in "/@?#"):
        raise ValueError(
            f'{pattern!r} is not a pattern of base URLs: use scheme://host:port, for example "http://127.0.0.1:*"'
        )
    return pattern


def is_file_pattern(pattern: str) -> bool:
    """Whether `pattern` is an absolute path, plainly spelled, or such a folder's with `/*` behind it."""
    path = pattern.removesuffix("/*")
    return posixpath.isabs(path) and posixpath.normpath(path) == path and "*" not in path


def _is_file_in(path: str, pattern: str) -> bool:
    # Only the plain spelling: no "..", no doubled or trailing slash.
    if not posixpath.isabs(path) or posixpath.normpath(path) != path:
        return False
    folder, _, last = pattern.rpartition("/")
    return posixpath.dirname(path) == folder if last == "*" else path == pattern


def _matches(url: str, pattern: str) -> bool:
    parts = _split(url)
    if parts is None:
        return False
    scheme, _, rest = pattern.partition("://")
    host, _, port = rest.rpartition(":")
    host = host.removeprefix("[").removesuffix("]").lower()
    actual_port = parts.port or _DEFAULT_PORTS[parts.scheme]
    return parts.scheme == scheme and host in ("*", parts.hostname) and port in ("*", str(actual_port))


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises for a port that is none
    except ValueError:
        return None
    # Backslashes and white space are read in different ways by different programs.
    if any(c in url for c in "\\ \t\r\n") or "@" in parts.netloc:
        return None
    return parts if parts.scheme in _DEFAULT_PORTS and parts.hostname else None


def _without_secrets(url: str) -> str:
    """Hides what may be a password or a key: user information and the query."""
    head, at, rest = url.partition("@")
    shown = f"{head.partition('://')[0]}://...@{rest}" if at else url
    return shown.partition("?")[0][:200]


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and 0 < int(text) <= 65535
