"""The part of edge.toml that `iop up` writes, and the rest that it must not touch."""

import tomllib
from pathlib import Path

import pytest

from iop_shared.client.edge_file import (
    BEGIN,
    END,
    GeneratedAdapter,
    parse_edge_file,
    plan_adapters,
    render_edge_file,
)
from iop_shared.client.engines import Engine
from iop_shared.exit_codes import CommandFailed, ExitCode

PATH = Path("/etc/iop/edge.toml")
OLLAMA = Engine("ollama", "http://127.0.0.1:11434", ("qwen3:8b",))
VLLM = Engine("vllm", "http://127.0.0.1:8000", ("m",))
USERS = """# mine
[http]
listen = "127.0.0.1:7480"  # as it was
"""


def update(text: str, *engines: Engine) -> str:
    edge_file = parse_edge_file(text, PATH)
    return render_edge_file(edge_file, plan_adapters(edge_file, engines), PATH)


def test_mock_and_the_engines_found_are_added_at_the_end() -> None:
    assert update(USERS, OLLAMA) == (
        USERS
        + f"""
{BEGIN}
[adapters.mock]
type = "mock"

[adapters.ollama]
type = "vllm"
base_url = "http://127.0.0.1:11434"
{END}
"""
    )


def test_a_second_time_changes_nothing() -> None:
    once = update(USERS, OLLAMA, VLLM)

    assert update(once, OLLAMA, VLLM) == once
    assert update(once, VLLM, OLLAMA) == once


def test_a_new_engine_is_added_and_one_that_is_away_stays() -> None:
    text = update(update(USERS, OLLAMA), VLLM)

    adapters = tomllib.loads(text)["adapters"]
    assert list(adapters) == ["mock", "ollama", "vllm"]
    assert text.startswith(USERS)


def test_an_address_keeps_its_name_whatever_answers_there_now() -> None:
    text = update(update(USERS, VLLM), Engine("llamacpp", VLLM.base_url, ("other",)))

    assert list(tomllib.loads(text)["adapters"]) == ["mock", "vllm"]


def test_two_engines_of_a_kind_get_two_names() -> None:
    text = update(USERS, VLLM, Engine("vllm", "http://127.0.0.1:8080", ("m",)))

    adapters = tomllib.loads(text)["adapters"]
    assert adapters["vllm"]["base_url"] == "http://127.0.0.1:8000"
    assert adapters["vllm-2"]["base_url"] == "http://127.0.0.1:8080"


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_what_the_user_configured_wins(host: str) -> None:
    mine = (
        USERS
        + f'[adapters.chat]\ntype = "vllm"\nbase_url = "http://{host}:11434/v1"\n[adapters.m]\ntype = "mock"\n'
    )

    assert update(mine, OLLAMA) == mine


def test_a_name_that_the_user_took_is_left_to_them() -> None:
    mine = USERS + '[adapters.ollama]\ntype = "ollama"\n[adapters.mock]\ntype = "cli"\n'

    text = update(mine, OLLAMA)

    adapters = tomllib.loads(text)["adapters"]
    assert adapters["ollama"] == {"type": "ollama"}
    assert adapters["ollama-2"] == {"type": "vllm", "base_url": OLLAMA.base_url}
    assert adapters["mock-2"] == {"type": "mock"}
    assert text.startswith(mine)


def test_once_the_user_takes_an_engine_over_it_leaves_our_part() -> None:
    generated = update(USERS, OLLAMA)
    mine = f'[adapters.chat]\ntype = "vllm"\nbase_url = "{OLLAMA.base_url}"\n'

    text = update(mine + generated, OLLAMA)

    assert list(tomllib.loads(text)["adapters"]) == ["chat", "mock"]


def test_what_stands_after_our_part_stays_after_it() -> None:
    after = "\n\n[profiles.small]\nadapter = 'ollama'\ntarget = 'qwen3:8b'\n"
    text = update(USERS, OLLAMA).rstrip("\n") + after

    assert update(text, OLLAMA, VLLM).endswith(END + after)


def test_an_empty_file_gets_our_part_alone() -> None:
    assert update("").startswith(BEGIN)


def test_names_and_addresses_are_written_as_toml_wants_them() -> None:
    edge_file = parse_edge_file("", PATH)
    adapter = GeneratedAdapter("a.b", "vllm", 'http://h/"x"')

    text = render_edge_file(edge_file, [adapter], PATH)

    assert tomllib.loads(text)["adapters"] == {"a.b": {"type": "vllm", "base_url": 'http://h/"x"'}}
    assert render_edge_file(edge_file, [], PATH) == ""


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            "a = \n",
            f"{PATH} is not valid TOML: Invalid value (at line 1, column 5)",
            "mend it, then try: iop-edge config check --dir /etc/iop",
        ),
        (
            f"{BEGIN}\n",
            f"{PATH}: the lines that mark the part of `iop up` do not pair: 1 begin it, 0 end it",
            "remove every line between them and the marks themselves (# --- iop up: begi...), then run again",
        ),
        (
            f"{END}\n{BEGIN}\n",
            f"{PATH}: the lines that mark the part of `iop up` do not pair: 1 begin it, 1 end it",
            "remove every line between them and the marks themselves (# --- iop up: begi...), then run again",
        ),
        (
            "adapters = { m = { type = 'cli' } }\n",
            f"{PATH}: adapters cannot be added at the end of the file "
            "(Cannot declare ('adapters', 'mock') twice (at line 4, column 15))",
            "write your adapters as tables, [adapters.NAME], not as one inline table",
        ),
        (
            f"[history]\n{BEGIN}\n{END}\nretain_days = 3.0\n",
            f"{PATH}: the lines after {END!r} do not begin with a table, so they would become part of it",
            "begin them with a [table] line, or move them above the part of `iop up`",
        ),
    ],
)
def test_a_file_that_cannot_take_our_part_is_refused(text: str, message: str, hint: str) -> None:
    with pytest.raises(CommandFailed) as failure:
        update(text, OLLAMA)

    assert (str(failure.value), failure.value.hint) == (message, hint)
    assert failure.value.exit_code == ExitCode.USAGE
