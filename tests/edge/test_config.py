"""edge.toml: the template, what follows from it, and each problem in a full sentence."""

from pathlib import Path

import pytest

from iop_edge.config import EdgeSettings, load_edge_settings
from iop_edge.config_template import TEMPLATE
from iop_edge.domain.catalog import Profile
from iop_shared.errors import InvalidConfig
from iop_shared.ids import AdapterName, NodeId, ProfileName, TargetName
from iop_shared.link.messages import AdapterConfig
from iop_shared.runs import RunLimits

WHOLE = """
[adapters.mock]
type = "mock"
[adapters.vllm]
type = "vllm"
max_concurrent = 16
base_url = "http://127.0.0.1:8000"
extra = { headers = ["a"] }
[nodes.gpu-1]
labels = { site = "lab" }
adapters = ["vllm"]
[nodes.gpu-2]
labels = { site = "home" }
[profiles.small]
version = 3
adapter = "vllm"
target = "Qwen/Qwen3-8B"
options = { temperature = 0.2 }
limits = { idle_timeout_s = 30 }
nodes = { site = "lab" }
"""


def load(tmp_path: Path, text: str, environ: dict[str, str] | None = None) -> EdgeSettings:
    path = tmp_path / "edge.toml"
    path.write_text(text)
    return load_edge_settings(path, environ or {})


def problems(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(InvalidConfig) as invalid:
        load(tmp_path, text)
    return invalid.value.problems


def test_the_template_loads_and_offers_mock(tmp_path: Path) -> None:
    settings = load(tmp_path, TEMPLATE)

    assert str(settings.link.listen) == "127.0.0.1:7443"
    assert str(settings.http.listen) == "127.0.0.1:7480"
    assert settings.adapters_of(NodeId("any")) == (AdapterConfig(AdapterName("mock"), "mock", 4),)


def test_every_commented_key_of_the_template_is_a_real_one_with_its_default(tmp_path: Path) -> None:
    lines = []
    for line in TEMPLATE.splitlines():
        bare = line.removeprefix("# ")
        # Prose has no `=`, tables or quotes of its own; commented settings do.
        is_setting = line.startswith("# ") and ("=" in bare.split("#")[0] or bare.startswith("["))
        lines.append(bare if is_setting and "stands for" not in bare else line)
    opened = load(tmp_path, "\n".join(lines))
    plain = load(tmp_path, TEMPLATE)

    assert opened.limits == plain.limits
    assert opened.history == plain.history
    assert (opened.link, opened.http, opened.edge_id) == (plain.link, plain.http, plain.edge_id)
    assert set(opened.adapters) == {"mock", "vllm"}
    assert set(opened.profiles) == {"small"}


def test_a_node_gets_its_adapters_or_all_of_them(tmp_path: Path) -> None:
    settings = load(tmp_path, WHOLE)

    vllm = AdapterConfig(
        AdapterName("vllm"), "vllm", 16, {"base_url": "http://127.0.0.1:8000", "extra": {"headers": ["a"]}}
    )
    assert settings.adapters_of(NodeId("gpu-1")) == (vllm,)
    both = (AdapterConfig(AdapterName("mock"), "mock", 4), vllm)
    assert settings.adapters_of(NodeId("gpu-2")) == both
    assert settings.adapters_of(NodeId("not-listed")) == both


def test_profiles_become_values(tmp_path: Path) -> None:
    assert load(tmp_path, WHOLE).profile_values() == (
        Profile(
            ProfileName("small"),
            AdapterName("vllm"),
            TargetName("Qwen/Qwen3-8B"),
            3,
            {"temperature": 0.2},
            RunLimits(idle_timeout_s=30),
            {"site": "lab"},
        ),
    )


def test_a_variable_wins_over_the_file(tmp_path: Path) -> None:
    settings = load(tmp_path, TEMPLATE, {"IOP_EDGE__LIMITS__MAX_QUEUED": "7"})

    assert settings.limits.max_queued == 7


def test_a_missing_file_names_the_command_that_makes_it(tmp_path: Path) -> None:
    path = tmp_path / "edge.toml"
    with pytest.raises(InvalidConfig) as invalid:
        load_edge_settings(path, {})

    assert str(invalid.value) == f"{path}: there is no such file; make it with: iop-edge init"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            '[link]\nlisten = "0.0.0.0:7443"\n',
            '[link] listen = "0.0.0.0:7443" can be reached from other machines, and links are not encrypted yet: '
            "set [link] allow_plaintext = true if the network in between is trusted (a VPN, for example), "
            'or listen on "127.0.0.1:7443" only',
        ),
        (
            '[http]\nlisten = "0.0.0.0:7480"\n',
            '[http] listen = "0.0.0.0:7480" can be reached from other machines, and there are no API keys yet: '
            "set [http] allow_remote = true if everybody who can reach it may use it, "
            'or listen on "127.0.0.1:7480" only',
        ),
        (
            "[limits]\nheartbeat_interval_s = 30\n",
            "[limits] dead_after_s = 40 is less than twice heartbeat_interval_s = 30: use at least 60",
        ),
        (
            '[adapters.mock]\ntype = "mock"\n[profiles.p]\nadapter = "mok"\ntarget = "echo"\n',
            "[profiles.p] adapter = 'mok' is no adapter of this file: did you mean 'mock'?",
        ),
        (
            '[profiles.p]\nadapter = "mock"\ntarget = "echo"\n',
            "[profiles.p] adapter = 'mock' is no adapter of this file: add a table [adapters.mock]",
        ),
        (
            '[adapters.mock]\ntype = "mock"\n[nodes.n]\nadapters = ["mock", "vlm"]\n',
            "[nodes.n] adapters has 'vlm', which is no adapter of this file: known: mock",
        ),
        (
            '[adapters."Big One"]\ntype = "mock"\n',
            "adapter 'Big One' is not a valid name: use 1 to 63 of a-z 0-9 . _ - "
            "and begin and end with a letter or digit",
        ),
    ],
)
def test_what_is_wrong_between_keys_is_a_full_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    assert problems(tmp_path, text) == [sentence]


def test_all_problems_are_told_at_once_with_the_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig) as invalid:
        load(tmp_path, '[link]\nlisten = "0.0.0.0:1"\n[http]\nlisten = "0.0.0.0:2"\n[nodes.Bad]\n')

    lines = str(invalid.value).splitlines()
    assert len(lines) == 3
    assert all(line.startswith(f"{tmp_path / 'edge.toml'}: ") for line in lines)


def test_allowing_it_lets_the_edge_listen_anywhere(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        '[link]\nlisten = "0.0.0.0:1"\nallow_plaintext = true\n[http]\nlisten = "[::]:2"\nallow_remote = true\n',
    )

    assert str(settings.http.listen) == "[::]:2"
