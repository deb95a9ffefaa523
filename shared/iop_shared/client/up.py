"""`iop up`: an edge and a node on this machine, with the engines that already run here."""

import json
import os
import re
import shlex
import socket
import time
import tomllib
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from iop_shared.client import local_daemons as daemons
from iop_shared.client import render
from iop_shared.client.address import DEFAULT_URL, RunFile, edge_folder, is_loopback, read_run_file
from iop_shared.client.api import EdgeApi
from iop_shared.client.chat import choose_model
from iop_shared.client.children import DRAIN_S, Child, StopRequest, stop_in_order
from iop_shared.client.edge_file import GeneratedAdapter, parse_edge_file, plan_adapters, render_edge_file
from iop_shared.client.engines import USUAL_PORTS, Engine, find_engines
from iop_shared.client.records import ModelRecord
from iop_shared.errors import InvalidName, IopError
from iop_shared.exit_codes import CommandFailed, ExitCode
from iop_shared.http_listen import ListenAddress
from iop_shared.ids import check_name
from iop_shared.private_files import write_private

HTTP_LISTEN: Final = "127.0.0.1:7480"
LINK_LISTEN: Final = "127.0.0.1:7443"
_TARGETS_TIMEOUT_S: Final = 5.0
"""How long to wait until each adapter has asked its engine for its models; what is missing comes by itself."""
_WATCH_S: Final = 0.5
_SHOWN_MODELS: Final = 12


@dataclass(frozen=True, slots=True)
class Listening:
    """Where the edge will listen, and what has to be told to both daemons beside their files."""

    http: ListenAddress
    link: ListenAddress
    edge_environment: dict[str, str]
    node_environment: dict[str, str]


def up(
    folder: Annotated[
        Path | None,
        typer.Option("--dir", help="Holds both daemons' folders. [default: ~/.iop]", show_default=False),
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="HTTP port. [default: 7480]", show_default=False)
    ] = None,
    link_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port where nodes dial in. [default: 7443]", show_default=False),
    ] = None,
) -> None:
    """Start an edge and a node on this machine and offer the engines that already run here.

    Looks for Ollama, vLLM, llama.cpp and LM Studio on their usual loopback ports. Stays in the foreground;
    Ctrl-C stops both daemons.
    """
    home = folder if folder is not None else Path.home() / ".iop"
    with StopRequest() as stop:
        try:
            _up(home.expanduser().absolute(), port, link_port, stop)
        except KeyboardInterrupt:
            pass  # a wait was ended by the signal; both daemons are stopped by now
    raise typer.Exit(ExitCode.INTERRUPTED)


def _up(home: Path, port: int | None, link_port: int | None, stop: StopRequest) -> None:
    console = render.stdout()
    edge, node = home / "edge", home / "node"
    _refuse_if_running("edge", edge)
    _refuse_if_running("node", node)
    if not (edge / "edge.toml").exists():
        daemons.init_edge(edge)
        console.print(f"made {edge / 'edge.toml'}")
    listening = plan_listening(edge / "edge.toml", port, link_port)
    for address in (listening.http, listening.link):
        check_port_free(address)
    engines = find_engines(skip={listening.http.port, listening.link.port})
    _write_adapters(edge / "edge.toml", engines)
    children: list[Child] = []
    try:
        with daemons.telling_who_died(children):
            children.append(daemons.start_edge(edge, environment=listening.edge_environment))
            run_file = daemons.wait_edge_ready(children[0], edge, stop)
            node_id = _make_node(edge, node, run_file.link)
            environment = listening.node_environment | edges_environment(node / "node.toml", run_file.link)
            children.append(daemons.start_node(node, name=node_id, environment=environment))
            with EdgeApi(f"http://{run_file.http}") as api:
                daemons.wait_node_connected(children[1], api, node_id, stop)
                models = _wait_models(api, engines, stop)
            _announce(run_file, edge, engines, models, children)
        while not stop.wait(_WATCH_S):
            for child in children:
                daemons.check_alive(child)
        console.print(f"stopping; runs under way get {DRAIN_S:g} s, Ctrl-C again ends them at once")
    finally:
        # The node first: its runs end and are told to the edge, which writes them down.
        killed = stop_in_order(reversed(children), stop=stop)
        for name in killed:
            render.stderr().print(f"the {name} did not stop in time and was killed", style="yellow")


def _make_node(edge: Path, node: Path, address: str) -> str:
    """Returns the node's id; a folder that is not there yet joins the edge, which runs."""
    if not (node / "node.toml").exists():
        name = node_name(socket.gethostname())
        token = daemons.add_node_token(edge, name)
        daemons.join_node(node, edge_address=address, token=token, name=name)
        render.stdout().print(f"made {node / 'node.toml'}")
    return read_node_id(node / "node.toml")


def plan_listening(edge_file: Path, port: int | None, link_port: int | None) -> Listening:
    """Returns where the edge will listen: the options, else its file, else the defaults.

    Raises:
        CommandFailed: (usage) the file's address is none.
    """
    content = _read_toml(edge_file)
    edge_environment: dict[str, str] = {}
    node_environment: dict[str, str] = {}
    addresses = []
    for section, wanted, default in (("http", port, HTTP_LISTEN), ("link", link_port, LINK_LISTEN)):
        table = content.get(section)
        configured = table.get("listen", default) if isinstance(table, dict) else default
        text = os.environ.get(f"IOP_EDGE__{section.upper()}__LISTEN", str(configured))
        if wanted is not None:
            text = f"127.0.0.1:{wanted}"
            edge_environment[f"IOP_EDGE__{section.upper()}__LISTEN"] = text
        try:
            addresses.append(ListenAddress.parse(text))
        except (IopError, ValueError) as error:
            raise CommandFailed(f"{edge_file}: [{section}] listen: {error}", exit_code=ExitCode.USAGE) from error
    if port is not None:
        # Beside another pair on the usual ports the node's own health page must not collide either.
        node_environment["IOP_NODE__HTTP__LISTEN"] = "127.0.0.1:0"
    return Listening(addresses[0], addresses[1], edge_environment, node_environment)


def check_port_free(address: ListenAddress) -> None:
    """Raises CommandFailed if something listens at `address` already."""
    if address.port == 0:
        return
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
        # As a server does: connections that have just been closed are no reason.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
            probe.listen(1)
        except OSError as error:
            raise CommandFailed(
                f"{address} cannot be listened on: {(error.strerror or str(error)).lower()}",
                exit_code=ExitCode.UNAVAILABLE,
                hint="stop what listens there, or choose others with --port and --link-port",
            ) from error


def node_name(host: str) -> str:
    """Returns a valid node id made from this machine's name."""
    name = re.sub(r"[^a-z0-9._-]+", "-", host.lower())[:63].strip("-._")
    try:
        return check_name("node", name)
    except InvalidName:
        return "node"  # a host without a usable name


def read_node_id(path: Path) -> str:
    """Returns the id that a node's file gives it.

    Raises:
        CommandFailed: (usage) it gives none.
    """
    node_id = _read_toml(path).get("node_id")
    if not isinstance(node_id, str):
        raise CommandFailed(
            f"{path}: there is no node_id", exit_code=ExitCode.USAGE, hint="try: iop-node config check"
        )
    return node_id


def edges_environment(node_file: Path, link: str) -> dict[str, str]:
    """Returns what makes a node dial the edge at `link` where its file names another port of this machine.

    Edges on other machines that the file names stay.
    """
    edges = _read_toml(node_file).get("edges", [])
    if not isinstance(edges, list) or link in edges:
        return {}  # nothing to do, or for the node itself to say what is wrong with it
    others = [str(edge) for edge in edges if not is_loopback(f"//{edge}")]
    return {"IOP_NODE__EDGES": json.dumps([link, *others])}


def curl_line(url: str, model: str) -> str:
    """Returns a line for a shell that asks `model` something."""
    body = f'{{"model": "{model}", "stream": true, "messages": [{{"role": "user", "content": "hello"}}]}}'
    return f"curl -N {url}/v1/chat/completions -H 'content-type: application/json' -d {shlex.quote(body)}"


def python_line(url: str, model: str) -> str:
    """Returns a line for Python that asks the same with the usual client."""
    return (
        f'openai.OpenAI(base_url="{url}/v1", api_key="none").chat.completions.create('
        f'model="{model}", messages=[{{"role": "user", "content": "hello"}}])'
    )


def _refuse_if_running(kind: str, folder: Path) -> None:
    run_file = read_run_file(folder)
    if run_file is not None:
        where = f" at http://{run_file.http}" if run_file.http else ""
        raise CommandFailed(
            f"the {kind} of {folder} is running already{where} (process {run_file.pid})",
            exit_code=ExitCode.UNAVAILABLE,
            hint=f"use it as it is, or stop it with: kill {run_file.pid}",
        )


def _write_adapters(path: Path, engines: Sequence[Engine]) -> None:
    """Brings the generated part of the edge's file up to date, and tells what has changed."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(f"{path} cannot be read: {error}", exit_code=ExitCode.USAGE) from error
    before = parse_edge_file(text, path)
    adapters = plan_adapters(before, engines)
    updated = render_edge_file(before, adapters, path)
    if updated != text:
        write_private(path, updated)
    for line in _changes(before.generated, adapters):
        render.stdout().print(f"{line} ({path})")


def _changes(old: Sequence[GeneratedAdapter], new: Sequence[GeneratedAdapter]) -> list[str]:
    lines = []
    for adapter in new:
        if adapter not in old:
            at = f" at {adapter.base_url}" if adapter.base_url else ""
            lines.append(f"adapter {adapter.name}{at} added")
    names = {adapter.name for adapter in new}
    lines += [f"adapter {adapter.name} removed" for adapter in old if adapter.name not in names]
    return lines


def _wait_models(api: EdgeApi, engines: Sequence[Engine], stop: StopRequest) -> list[ModelRecord]:
    """Returns what can be asked for, once every engine that listed models has them listed here too."""
    deadline = time.monotonic() + _TARGETS_TIMEOUT_S
    wanted = {model for engine in engines for model in engine.models}
    while True:
        models = api.list_models()
        missing = wanted - {model.target for model in models if model.nodes}
        if models and (not missing or time.monotonic() > deadline):
            return models
        if time.monotonic() > deadline:
            return models
        if stop.wait(0.05):
            raise KeyboardInterrupt


def _announce(
    run_file: RunFile,
    edge: Path,
    engines: Sequence[Engine],
    models: Sequence[ModelRecord],
    children: Sequence[Child],
) -> None:
    url = f"http://{run_file.http}"
    console = render.stdout()
    looked = ", ".join(f"{name} {port}" for port, name in USUAL_PORTS.items())
    facts = [("edge", f"{url} (log {children[0].log})"), (children[1].name, f"connected (log {children[1].log})")]
    facts += [
        (engine.kind, f"{engine.base_url} ({len(engine.models)} model{'s'[: len(engine.models) != 1]})")
        for engine in engines
    ]
    if not engines:
        facts.append(("engines", f"none on this machine's usual ports ({looked})"))
    render.print_facts(console, facts)
    console.print("models", style="bold")
    # Engines first: mock has many targets, and they are not what one looks for.
    ordered = sorted(models, key=lambda model: model.adapter == "mock")
    for offered in ordered[:_SHOWN_MODELS]:
        console.print(f"  {render.printable(offered.name)}")
    if len(ordered) > _SHOWN_MODELS:
        console.print(f"  and {len(ordered) - _SHOWN_MODELS} more: iop models")
    model = choose_model(list(models))
    console.print("try", style="bold")
    is_found = edge == edge_folder() or url == DEFAULT_URL
    where = "" if is_found else f"--edge {url} "
    console.print(f"  iop run {where}--model {shlex.quote(model)} hello")
    console.print(f"  {curl_line(url, model)}")
    console.print(f"  {python_line(url, model)}")
    console.print("ready; Ctrl-C stops both", style="bold")


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CommandFailed(f"{path} cannot be read: {error}", exit_code=ExitCode.USAGE) from error
