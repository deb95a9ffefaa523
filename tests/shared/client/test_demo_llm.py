"""The demo with a real model, as `make demo-llm` runs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from deploy.llama_server import LlamaUnavailable, default_model_path

SCRIPT = Path(__file__).parents[3] / "deploy" / "demo_llm.py"


@pytest.mark.real_llama
@pytest.mark.e2e
@pytest.mark.slow
def test_the_demo_with_a_real_model_holds_every_claim(tmp_path: Path) -> None:
    try:
        default_model_path()
    except LlamaUnavailable as error:
        if os.environ.get("IOP_REQUIRE_LLAMA"):
            pytest.fail(f"IOP_REQUIRE_LLAMA is set, but {error}")
        pytest.skip(str(error))

    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )

    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "between tokens " in done.stdout
    assert "   ok: the slot was free " in done.stdout
    assert done.stdout.count("   ok: ") >= 10
    assert list(tmp_path.iterdir()) == []
