"""A real llama.cpp server for tests, where its packages are installed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from deploy.llama_server import LlamaServer, LlamaUnavailable, default_model_path


@contextmanager
def llama_server(**options: Any) -> Iterator[LlamaServer]:
    """Runs a server for the time of the block; skips the test, with the reason, where there is none.

    With IOP_REQUIRE_LLAMA set a missing server fails the test instead: what proves something must not be
    skipped where it is meant to run.
    """
    try:
        default_model_path()
    except LlamaUnavailable as error:
        if os.environ.get("IOP_REQUIRE_LLAMA"):
            pytest.fail(f"IOP_REQUIRE_LLAMA is set, but {error}")
        pytest.skip(str(error))
    with LlamaServer(**options) as server:
        yield server
