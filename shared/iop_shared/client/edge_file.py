"""The part of `edge.toml` that `iop up` writes: one marked block at the end. Everything else is the user's.

What the user wrote is never changed: an adapter of theirs with the same name or the same address wins, and
the block does without it.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from iop_shared.client.engines import Engine
from iop_shared.exit_codes import CommandFailed, ExitCode

BEGIN: Final = "# --- iop up: begin. Written anew by each `iop up`; keep your own adapters outside. ---"
END: Final = "# --- iop up: end ---"


@dataclass(frozen=True, slots=True)
class GeneratedAdapter:
    """One adapter of the block. `base_url` is "" for mock."""

    name: str
    type: str
    base_url: str = ""


@dataclass(frozen=True, slots=True)
class EdgeFile:
    """An edge's file, split: the user's text around the block, and what each part configures."""

    before: str
    after: str
    generated: tuple[GeneratedAdapter, ...]
    user_adapters: Mapping[str, Mapping[str, Any]]


def parse_edge_file(text: str, path: Path) -> EdgeFile:
    """Splits the text of an edge's file.

    Raises:
        CommandFailed: (usage) it is not TOML, or the block's marks do not pair.
    """
    before, after = text, ""
    block = ""
    begins, ends = text.count(BEGIN), text.count(END)
    if (begins, ends) not in {(0, 0), (1, 1)} or (begins and text.index(BEGIN) > text.index(END)):
        raise CommandFailed(
            f"{path}: the lines that mark the part of `iop up` do not pair: {begins} begin it, {ends} end it",
            exit_code=ExitCode.USAGE,
            hint=f"remove every line between them and the marks themselves ({BEGIN[:18]}...), then run again",
        )
    if begins:
        before, rest = text.split(BEGIN)
        block, after = rest.split(END)
    user = _adapters_of(before + after, path)
    generated = tuple(
        GeneratedAdapter(name, str(settings.get("type", "")), str(settings.get("base_url", "")))
        for name, settings in _adapters_of(block, path).items()
    )
    return EdgeFile(before, after, generated, user)


def plan_adapters(edge_file: EdgeFile, engines: Sequence[Engine]) -> tuple[GeneratedAdapter, ...]:
    """Returns the adapters that the block should hold: mock, each engine found, and engines of an earlier time.

    An earlier engine that does not answer now stays (a profile may name it; its gate says that it is away).
    Names are stable: an address keeps the name that it had.
    """
    users = edge_file.user_adapters
    user_urls = {_address(str(settings["base_url"])) for settings in users.values() if "base_url" in settings}
    plan: dict[str, GeneratedAdapter] = {}
    if not any(settings.get("type") == "mock" for settings in users.values()):
        mock = _free_name("mock", {*users})
        plan[mock] = GeneratedAdapter(mock, "mock")
    known = {_address(a.base_url): a.name for a in edge_file.generated if a.base_url}
    for adapter in edge_file.generated:
        if adapter.base_url and _address(adapter.base_url) not in user_urls and adapter.name not in users:
            plan[adapter.name] = adapter
    for engine in engines:
        address = _address(engine.base_url)
        if address in user_urls:
            continue
        name = known.get(address)
        if name is None or name in users:
            name = _free_name(engine.kind, {*users, *plan})
        plan[name] = GeneratedAdapter(name, "vllm", engine.base_url)
    return tuple(plan.values())


def render_edge_file(edge_file: EdgeFile, adapters: Sequence[GeneratedAdapter], path: Path) -> str:
    """Returns the whole text with a block for `adapters` (none: no block).

    Raises:
        CommandFailed: (usage) the user's part is so written that the block cannot follow it.
    """
    if not adapters:
        return edge_file.before + edge_file.after
    lines = [BEGIN]
    for adapter in adapters:
        lines += [f"[adapters.{_key(adapter.name)}]", f"type = {_string(adapter.type)}"]
        if adapter.base_url:
            lines.append(f"base_url = {_string(adapter.base_url)}")
        lines.append("")
    lines[-1] = END
    before = edge_file.before.rstrip("\n") + "\n\n" if edge_file.before.strip() else ""
    text = before + "\n".join(lines) + (edge_file.after or "\n")
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CommandFailed(
            f"{path}: adapters cannot be added at the end of the file ({error})",
            exit_code=ExitCode.USAGE,
            hint="write your adapters as tables, [adapters.NAME], not as one inline table",
        ) from error
    for adapter in adapters:
        del content["adapters"][adapter.name]
    theirs = tomllib.loads(edge_file.before + edge_file.after)
    # Keys right after our end mark would silently change the table that they belong to.
    if content != {**theirs, "adapters": theirs.get("adapters", {})}:
        raise CommandFailed(
            f"{path}: the lines after {END!r} do not begin with a table, so they would become part of it",
            exit_code=ExitCode.USAGE,
            hint="begin them with a [table] line, or move them above the part of `iop up`",
        )
    return text


def _adapters_of(text: str, path: Path) -> dict[str, Mapping[str, Any]]:
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CommandFailed(
            f"{path} is not valid TOML: {error}",
            exit_code=ExitCode.USAGE,
            hint=f"mend it, then try: iop-edge config check --dir {path.parent}",
        ) from error
    adapters = content.get("adapters", {})
    if not isinstance(adapters, dict):
        return {}  # the edge itself says what is wrong with it
    return {name: settings for name, settings in adapters.items() if isinstance(settings, dict)}


def _address(base_url: str) -> str:
    """Returns host:port of a URL in one spelling, so that localhost and 127.0.0.1 are the same place."""
    parts = urlsplit(base_url)
    host = parts.hostname or ""
    try:
        port = parts.port
    except ValueError:
        port = None  # the edge itself says what is wrong with it
    return f"{'127.0.0.1' if host == 'localhost' else host}:{port or (443 if parts.scheme == 'https' else 80)}"


def _free_name(wanted: str, taken: set[str]) -> str:
    name, number = wanted, 2
    while name in taken:
        name, number = f"{wanted}-{number}", number + 1
    return name


def _key(name: str) -> str:
    """A bare TOML key where the name allows it (a dot would make two keys of it)."""
    return name if name.replace("-", "").replace("_", "").isalnum() else _string(name)


def _string(text: str) -> str:
    return json.dumps(text)  # a JSON string is a TOML basic string
