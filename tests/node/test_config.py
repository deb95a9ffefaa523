"""node.toml: what it may say, and every problem in a sentence."""

from pathlib import Path

import pytest

from iop_node.config import NodeSettings, load_node_settings
from iop_node.config_template import node_toml
from iop_node.core.allow import AllowList
from iop_shared.errors import InvalidConfig
from iop_shared.http_listen import ListenAddress
from iop_shared.ids import NodeId

GOOD = 'node_id = "gpu-1"\nedges = ["127.0.0.1:7443"]\n'


def load(tmp_path: Path, text: str, **environ: str) -> NodeSettings:
    path = tmp_path / "node.toml"
    path.write_text(text)
    return load_node_settings(path, environ)


def problems(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(InvalidConfig) as caught:
        load(tmp_path, text)
    return [line.removeprefix(f"{tmp_path / 'node.toml'}: ") for line in str(caught.value).splitlines()]


def test_two_lines_are_enough(tmp_path: Path) -> None:
    settings = load(tmp_path, GOOD)

    assert settings.name == "gpu-1"
    assert settings.edge == ListenAddress("127.0.0.1", 7443)
    assert settings.allow_list() == AllowList(("mock", "vllm"), ("http://127.0.0.1:*", "http://localhost:*"))
    assert settings.node_limits().execution.cancel_grace_s == 5.0
    assert settings.retention().runs == 100_000


@pytest.mark.parametrize("allow_plaintext", [False, True])
def test_what_join_writes_loads_as_it_is(tmp_path: Path, allow_plaintext: bool) -> None:
    edge = ListenAddress("::1", 7000)

    settings = load(tmp_path, node_toml(NodeId("n.1-a"), edge, allow_plaintext=allow_plaintext))

    assert settings == NodeSettings(node_id="n.1-a", edges=[edge], allow_plaintext=allow_plaintext)


def names_an_example(line: str) -> bool:
    return line.startswith(("# labels", "# files"))


def test_the_template_names_every_default_as_it_is(tmp_path: Path) -> None:
    text = node_toml(NodeId("n"), ListenAddress("127.0.0.1", 7443), allow_plaintext=False)
    uncommented = "\n".join(
        line.removeprefix("# ") if line.startswith("# ") and " = " in line and not names_an_example(line) else line
        for line in text.splitlines()
    )

    assert load(tmp_path, uncommented) == load(tmp_path, text)


def test_variables_win_over_the_file(tmp_path: Path) -> None:
    settings = load(tmp_path, GOOD, IOP_NODE__EDGES='["127.0.0.1:9"]', IOP_NODE__HTTP__LISTEN="127.0.0.1:0")

    assert (settings.edge.port, settings.http.listen.port) == (9, 0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            'node_id = "GPU 1"\nedges = ["127.0.0.1:7443"]',
            "node_id: node 'GPU 1' is not a valid name: use 1 to 63 of a-z 0-9 . _ - and begin and end with a "
            "letter or digit",
        ),
        (
            'node_id = "n"\nedges = []',
            'edges is empty: name the edge to dial, for example edges = ["127.0.0.1:7443"]',
        ),
        (
            'node_id = "n"\nedges = ["127.0.0.1:1", "127.0.0.1:2"]',
            'edges = ["127.0.0.1:1", "127.0.0.1:2"] names 2 edges, and a node holds a link to one only in this '
            "version: keep one, or run a node (with a folder and a token of its own) for each",
        ),
        (
            'node_id = "n"\nedges = ["10.8.0.1:7443"]',
            'edges has "10.8.0.1:7443", which is on another machine, and links are not encrypted yet: set '
            "allow_plaintext = true if the network in between is trusted (a VPN, for example)",
        ),
        (
            'node_id = "n"\nedges = ["127.0.0.1:0"]',
            'edges has "127.0.0.1:0": port 0 cannot be dialled; use the port of [link] listen in edge.toml',
        ),
        (
            GOOD + '[allow]\nadapters = ["mock", "vlm"]',
            "[allow] adapters: 'vlm' is no type of adapter that this node knows: did you mean 'vllm'?",
        ),
        (
            GOOD + '[allow]\nbase_urls = ["127.0.0.1"]',
            "[allow] base_urls: '127.0.0.1' is not a pattern of base URLs: use scheme://host:port, for example "
            '"http://127.0.0.1:*"',
        ),
        (
            GOOD + '[allow]\nfiles = ["keys/*"]',
            "[allow] files: 'keys/*' is not a file that can be allowed: use an absolute path, or a folder's with "
            '/* behind it, for example "/etc/iop/keys/*"',
        ),
        (
            GOOD + f'labels = {{ site = "{"x" * 129}" }}',
            f"labels has '{'x' * 40}' (129 bytes): use at most 128 bytes, all printable",
        ),
    ],
)
def test_each_problem_between_keys_is_told(tmp_path: Path, text: str, expected: str) -> None:
    assert problems(tmp_path, text) == [expected]


def test_a_missing_file_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig) as caught:
        load_node_settings(tmp_path / "node.toml", {})

    assert str(caught.value) == (
        f"{tmp_path / 'node.toml'}: there is no such file; make it with: iop-node join EDGE --token TOKEN"
    )


def test_a_wrong_type_and_an_unknown_key_are_both_told(tmp_path: Path) -> None:
    found = problems(tmp_path, GOOD + '[limits]\nmax_runs = "many"\nmax_run = 3')

    assert len(found) == 2
    assert any("max_runs" in line and "many" in line for line in found)
    assert any("max_run" in line and "max_runs" in line for line in found)
