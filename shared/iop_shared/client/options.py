"""The options that several commands share, each written once."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from iop_shared.client.address import find_edge_url
from iop_shared.client.api import EdgeApi
from iop_shared.exit_codes import CommandFailed, ExitCode

EdgeOption = Annotated[
    str | None,
    typer.Option(
        "--edge",
        envvar="IOP_EDGE_URL",
        metavar="URL",
        help="The edge's HTTP address. [default: a running local edge, else http://127.0.0.1:7480]",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON with exact values, for programs.")]


@contextmanager
def edge_api(edge: str | None) -> Iterator[EdgeApi]:
    """Opens the edge that `--edge`, the environment or a running local edge names."""
    with EdgeApi(find_edge_url(edge)) as api:
        yield api


def print_json(value: Any) -> None:
    """Prints one JSON value on one line, at once, so that a pipe gets it while a stream goes on."""
    print(json.dumps(value, ensure_ascii=False, separators=(",", ":")), flush=True)


def parse_pair(option: str, text: str, convert: Callable[[str], Any]) -> tuple[str, Any]:
    """Returns the two halves of `KEY=VALUE`.

    Raises:
        CommandFailed: (usage) there is no `=` or no key.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise CommandFailed(
            f"{option} {text!r} is not of the form KEY=VALUE",
            exit_code=ExitCode.USAGE,
            hint=f"for example {option} max_tokens=20",
        )
    return key.strip(), convert(value)


def json_or_text(text: str) -> Any:
    """Returns the JSON value that `text` is, or `text` itself: `5` is a number, `five` a string."""
    try:
        return json.loads(text)
    except ValueError:
        return text
