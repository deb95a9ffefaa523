from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import ConfigDict, Field, field_validator

from iop_shared.config_file import MAX_FILE_BYTES, Listen, Section, key_paths, load_settings
from iop_shared.errors import InvalidConfig
from iop_shared.http_listen import ListenAddress


class Speed(StrEnum):
    SLOW = "slow"
    FAST = "fast"


class Http(Section):
    listen: Listen = ListenAddress("127.0.0.1", 7480)
    allow_remote: bool = False


class Limits(Section):
    max_queued: int = Field(default=256, ge=1, le=100_000)
    queue_timeout_s: float = Field(default=30.0, gt=0)
    speed: Speed = Speed.SLOW


class Adapter(Section):
    model_config = ConfigDict(extra="allow", frozen=True)
    type: Literal["mock", "vllm"]
    max_concurrent: int = Field(default=1, ge=1)
    api_key: str = ""


class Settings(Section):
    node_id: str = Field(default="gpu-1", min_length=2, max_length=63)
    edges: tuple[str, ...] = Field(default=(), max_length=3)
    state: Path | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    http: Http = Http()
    limits: Limits = Limits()
    adapters: dict[str, Adapter] = Field(default_factory=dict)

    @field_validator("edges")
    @classmethod
    def _check_edges(cls, edges: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(edges)) < len(edges):
            raise ValueError("names the same edge twice")
        return edges


def _load(tmp_path: Path, text: str, environ: Mapping[str, str] | None = None) -> Settings:
    path = tmp_path / "edge.toml"
    path.write_text(text)
    return load_settings(Settings, path, env_prefix="IOP_EDGE", environ=environ or {})


def _problems(tmp_path: Path, text: str, environ: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(InvalidConfig) as caught:
        _load(tmp_path, text, environ)
    lines = str(caught.value).split("\n")
    assert lines == caught.value.problems or len(caught.value.problems) == 1
    return [line.replace(f"{tmp_path}/", "") for line in lines]


def test_a_file_becomes_typed_settings(tmp_path: Path) -> None:
    settings = _load(
        tmp_path,
        """
        node_id = "gpu-7"
        edges = ["a:1", "b:2"]
        state = "/var/lib/iop"
        labels = { site = "lab" }
        [http]
        listen = "[::1]:0"
        [limits]
        queue_timeout_s = 5
        speed = "fast"
        [adapters.small]
        type = "vllm"
        base_url = "http://127.0.0.1:8000"
        """,
    )

    assert settings.edges == ("a:1", "b:2")
    assert settings.state == Path("/var/lib/iop")
    assert settings.http.listen == ListenAddress("::1", 0)
    assert settings.limits == Limits(queue_timeout_s=5.0, speed=Speed.FAST)
    assert settings.adapters["small"].model_extra == {"base_url": "http://127.0.0.1:8000"}


def test_an_empty_file_gives_the_defaults(tmp_path: Path) -> None:
    assert _load(tmp_path, "") == Settings()


def test_every_problem_is_told_at_once(tmp_path: Path) -> None:
    problems = _problems(
        tmp_path,
        """
        node_id = 5
        edges = ["a:1", 2]
        labels = { site = true }
        colour = "red"
        [http]
        listen = "127.0.0.1"
        listn = "127.0.0.1:1"
        allow_remote = "yes"
        [limits]
        max_queued = 0
        queue_timeout_s = "long"
        speed = "fats"
        [adapters.small]
        type = "vlm"
        max_concurrent = 1.5
        [adapters.other]
        """,
    )

    assert problems == [
        "edge.toml: node_id = 5: must be a text in quotes",
        "edge.toml: edges[1] = 2: must be a text in quotes",
        "edge.toml: [labels] site = true: must be a text in quotes",
        "edge.toml: [http] listen = \"127.0.0.1\": '127.0.0.1' has no port: use HOST:PORT, for example "
        '"127.0.0.1:7480" or "[::1]:7480"',
        'edge.toml: [http] allow_remote = "yes": must be true or false',
        "edge.toml: [http] listn = \"127.0.0.1:1\": unknown key; did you mean 'listen'?",
        "edge.toml: [limits] max_queued = 0: must be at least 1",
        'edge.toml: [limits] queue_timeout_s = "long": must be a number',
        "edge.toml: [limits] speed = \"fats\": is not one of the allowed values: 'slow' or 'fast'; "
        "did you mean 'fast'?",
        "edge.toml: [adapters.small] type = \"vlm\": is not one of the allowed values: 'mock' or 'vllm'; "
        "did you mean 'vllm'?",
        "edge.toml: [adapters.small] max_concurrent = 1.5: must be a whole number",
        "edge.toml: [adapters.other] type: is required, but it is not there",
        'edge.toml: colour = "red": unknown key; known: adapters, edges, http, labels, limits, node_id, state',
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('node_id = "a"', 'node_id = "a": must have at least 2 characters'),
        (f'node_id = "{"n" * 100}"', f'node_id = "{"n" * 79}...: must have at most 63 characters'),
        ('edges = ["a", "a"]', 'edges = ["a", "a"]: names the same edge twice'),
        ('edges = ["a", "b", "c", "d"]', 'edges = ["a", "b", "c", "d"]: must have at most 3 entries, has 4'),
        ('edges = "a"', 'edges = "a": must be a list: [ ... ]'),
        ("http = 5", "http = 5: must be a table: { ... } or a [section]"),
        ("labels = []", "labels = []: must be a table: { ... } or a [section]"),
        ("[limits]\nmax_queued = 1000000", "[limits] max_queued = 1000000: must be at most 100000"),
        ("[limits]\nqueue_timeout_s = 0", "[limits] queue_timeout_s = 0: must be greater than 0"),
        ("[[http]]\nlisten = 5", "http = [{...}]: must be a table: { ... } or a [section]"),
        ("[http]\nlisten = 5",
         '[http] listen = 5: must be a text of the form "HOST:PORT", for example "127.0.0.1:7480"'),
        ('adapters.x = { type = "mock", api_key = 5 }', '[adapters.x] api_key = "***": must be a text in quotes'),
    ],
)  # fmt: skip
def test_each_problem_names_place_value_and_what_is_allowed(tmp_path: Path, text: str, problem: str) -> None:
    assert _problems(tmp_path, text) == [f"edge.toml: {problem}"]


def test_a_secret_is_masked_wherever_it_stands(tmp_path: Path) -> None:
    planted = "Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6cXV4"

    problems = _problems(
        tmp_path,
        f'node_id = "iopn_abcdef234567_{planted}{planted}"\nsecret = "{planted}"\nlabels = {{ a = ["{planted}"] }}'
        f'\nedges = ["http://u:{planted}@h", 4]\nadapters.x.type = "mock"\nadapters.x.api_key = ["{planted}"]\n',
    )

    assert [p for p in problems if planted in p] == [
        f'edge.toml: [labels] a = ["{planted}"]: must be a text in quotes'
    ]
    assert 'edge.toml: [adapters.x] api_key = "***": must be a text in quotes' in problems


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"a = 1\nb = \n", "not valid TOML: line 2, column 5: Invalid value"),
        (b"a = 1\na = 2\n", "not valid TOML: line 2, column 6: Cannot overwrite a value"),
        (b"a = [1", "not valid TOML: end of document: Unclosed array"),
        (b'a = 1\nb = "\xff"', "line 2: not UTF-8 text; save it as UTF-8"),
        (b"#" * (MAX_FILE_BYTES + 1), "is larger than 1048576 bytes; this is no settings file"),
    ],
)
def test_what_is_not_toml_is_said_with_its_place(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "edge.toml"
    path.write_bytes(content)

    with pytest.raises(InvalidConfig) as caught:
        load_settings(Settings, path, env_prefix="IOP_EDGE", environ={})

    assert str(caught.value) == f"{path}: {problem}"


def test_a_byte_order_mark_is_no_problem(tmp_path: Path) -> None:
    path = tmp_path / "edge.toml"
    path.write_bytes(b'\xef\xbb\xbfnode_id = "gpu-2"\r\n')

    assert load_settings(Settings, path, env_prefix="IOP_EDGE", environ={}).node_id == "gpu-2"


@pytest.mark.parametrize(
    ("prefix", "made_by", "hint"),
    [
        ("IOP_EDGE", None, "; make it with: iop-edge init"),
        ("IOP_NODE__", None, "; make it with: iop-node join EDGE --token TOKEN"),
        ("IOP_OTHER", None, ""),
        ("IOP_OTHER", "iop make", "; make it with: iop make"),
    ],
)
def test_a_missing_file_names_the_command_that_makes_it(
    tmp_path: Path, prefix: str, made_by: str | None, hint: str
) -> None:
    path = tmp_path / "edge.toml"

    with pytest.raises(InvalidConfig) as caught:
        load_settings(Settings, path, env_prefix=prefix, environ={}, made_by=made_by)

    assert str(caught.value) == f"{path}: there is no such file{hint}"


def test_a_folder_in_place_of_the_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig) as caught:
        load_settings(Settings, tmp_path, env_prefix="IOP_EDGE", environ={})

    assert str(caught.value) == f"{tmp_path}: cannot be read: Is a directory"


@pytest.mark.parametrize(
    ("variable", "text", "read"),
    [
        ("IOP_EDGE__HTTP__LISTEN", "127.0.0.1:99", lambda s: s.http.listen == ListenAddress("127.0.0.1", 99)),
        ("IOP_EDGE__NODE_ID", "1234", lambda s: s.node_id == "1234"),
        ("IOP_EDGE__LABELS__SITE", "007", lambda s: s.labels == {"site": "007"}),
        ("IOP_EDGE__HTTP__ALLOW_REMOTE", "true", lambda s: s.http.allow_remote is True),
        ("IOP_EDGE__LIMITS__QUEUE_TIMEOUT_S", "2.5", lambda s: s.limits.queue_timeout_s == 2.5),
        ("IOP_EDGE__EDGES", '["x:1"]', lambda s: s.edges == ("x:1",)),
        ("IOP_EDGE__STATE", "/tmp/x", lambda s: s.state == Path("/tmp/x")),
        ("IOP_EDGE__ADAPTERS__SMALL__TYPE", "mock", lambda s: s.adapters["small"].type == "mock"),
        ("IOP_EDGE_DIR", "/somewhere", lambda s: s == Settings()),
        ("IOP_NODE__NODE_ID", "other", lambda s: s == Settings()),
    ],
)
def test_the_environment_wins_over_the_file(tmp_path: Path, variable: str, text: str, read: Any) -> None:
    assert read(_load(tmp_path, "", {variable: text}))


def test_a_variable_is_named_as_the_source_of_its_problem(tmp_path: Path) -> None:
    problems = _problems(
        tmp_path,
        'labels = { site = 5 }\nnode_id = "gpu-1"',
        {
            "IOP_EDGE__HTTP__LISTN": "127.0.0.1:1",
            "IOP_EDGE__HTTP__ALLOW_REMOTE": "yes",
            "IOP_EDGE__ADAPTERS__X__API_KEY": "hush",
            "IOP_EDGE__ADAPTERS__X__TYPE": "hash",
            "IOP_EDGE__NODE_ID__X": "1",
            "IOP_EDGE__HTTP__": "1",
        },
    )

    assert problems == [
        "environment variable IOP_EDGE__HTTP__: names no setting; write IOP_<DAEMON>__<SECTION>__<KEY>",
        "environment variable IOP_EDGE__NODE_ID__X: 'node_id' is a value, not a section",
        "edge.toml: [labels] site = 5: must be a text in quotes",
        'environment variable IOP_EDGE__HTTP__ALLOW_REMOTE = "yes": must be true or false',
        "environment variable IOP_EDGE__HTTP__LISTN = \"127.0.0.1:1\": unknown key; did you mean 'listen'?",
        'environment variable IOP_EDGE__ADAPTERS__X__TYPE = "hash": is not one of the allowed values: '
        "'mock' or 'vllm'",
    ]


def test_key_paths_name_every_setting() -> None:
    assert key_paths(Settings) == [
        ("node_id",),
        ("edges",),
        ("state",),
        ("labels",),
        ("http", "listen"),
        ("http", "allow_remote"),
        ("limits", "max_queued"),
        ("limits", "queue_timeout_s"),
        ("limits", "speed"),
        ("adapters", "*", "type"),
        ("adapters", "*", "max_concurrent"),
        ("adapters", "*", "api_key"),
    ]
