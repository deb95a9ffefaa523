"""The files that operators copy: settings load through the real models, units start real commands."""

import configparser
import re
from pathlib import Path

import pytest
from tests.support.source_tree import ROOT

DEPLOY = ROOT / "deploy"


def test_the_example_edge_file_is_valid() -> None:
    from iop_edge.config import load_edge_settings

    settings = load_edge_settings(DEPLOY / "edge.toml", environ={})

    assert settings.adapters
    assert settings.profiles
    assert settings.nodes


def test_the_example_node_file_is_valid() -> None:
    from iop_node.config import load_node_settings

    settings = load_node_settings(DEPLOY / "node.toml", environ={})

    assert settings.edges


@pytest.mark.parametrize("name", ["iop-edge", "iop-node"])
def test_a_unit_checks_the_settings_and_then_runs_the_daemon(name: str) -> None:
    unit = _read_unit(DEPLOY / f"{name}.service")

    service = dict(unit["Service"])
    assert re.fullmatch(rf"/opt/iop/\.venv/bin/{name} config check --dir %S/{name}", service["ExecStartPre"])
    assert re.fullmatch(rf"/opt/iop/\.venv/bin/{name} run --dir %S/{name}", service["ExecStart"])
    assert service["StateDirectory"] == name
    assert service["UMask"] == "0077"
    assert "2" in service["RestartPreventExitStatus"].split(), "wrong settings do not heal by starting again"
    assert dict(unit["Install"]) == {"WantedBy": "multi-user.target"}


def _read_unit(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # keys of a unit keep their case
    parser.read_string(path.read_text(encoding="utf-8"))
    return parser
