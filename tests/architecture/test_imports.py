"""The arrows between the packages, as the contracts in pyproject.toml draw them."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.source_tree import ROOT, product_modules


@pytest.mark.slow
def test_the_import_contracts_hold() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 broken" in done.stdout


def test_development_tools_are_never_imported() -> None:
    forbidden = {"grpc", "grpc_tools", "pytest", "hypothesis", "openai", "tests", "bench"}

    found = [
        f"{module.shown} imports {name}"
        for module in product_modules()
        for node in ast.walk(module.tree)
        for name in _imported(node)
        if name.split(".")[0] in forbidden
    ]

    assert found == []


def test_starting_a_command_imports_nothing_of_the_other_daemon() -> None:
    """A node on a small machine should not load the edge's HTTP stack, nor the client a daemon's."""
    for package, other in (("iop_edge", "iop_node"), ("iop_node", "iop_edge")):
        code = f"import sys, {package}.program; print([m for m in sys.modules if m.startswith('{other}')])"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [node.module]
    return []
