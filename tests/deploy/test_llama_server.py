"""The launcher of the llama.cpp server: finding its address in what the server's threads wrote around it."""

import pytest
from deploy.llama_server import address_in

SAID = "llama_server listens on http://127.0.0.1:43191\n"


@pytest.mark.parametrize(
    "output",
    [
        SAID,
        "0.00.003 I srv init: loading model\n" + SAID,
        # Another thread had written the head of its line when ours came, and wrote the rest after it.
        "0.00.673.771 " + SAID + "I srv    load_model: initializing\n",
    ],
)
def test_the_address_is_found_wherever_it_stands(output: str) -> None:
    assert address_in(output) == "http://127.0.0.1:43191"


@pytest.mark.parametrize(
    "output",
    ["", SAID[:20], SAID.rstrip("\n"), "0.00.675 I srv init: listening on http://127.0.0.1:43191\n"],
)
def test_half_a_line_or_the_servers_own_word_is_no_address(output: str) -> None:
    assert address_in(output) == ""
