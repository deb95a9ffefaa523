"""The benches of single parts run and check what they carry; their figures are not judged here."""

import re

import pytest
from bench import link, node_read, wire

from iop_shared.runtime_events import EngineJson


def test_wire_prints_a_line_per_body(capsys: pytest.CaptureFixture[str]) -> None:
    code = wire.main(["--events", "50", "--rounds", "1"])

    shown = capsys.readouterr()
    assert (code, shown.err) == (0, "")
    lines = re.findall(
        r"^(engine JSON, 1 chunk|engine JSON, 8 chunks|text) +\d+( +\d+\.\d\d){3}$", shown.out, re.M
    )
    assert [name for name, _ in lines] == ["engine JSON, 1 chunk", "engine JSON, 8 chunks", "text"]


def test_link_carries_every_event(capsys: pytest.CaptureFixture[str]) -> None:
    code = link.main(["--events", "2000", "--rounds", "1"])

    shown = capsys.readouterr()
    assert (code, shown.err) == (0, "")
    assert re.search(r"^both ends on this machine: [\d,]+ events/s$", shown.out, re.M)
    assert re.search(r"^node's end: \d+\.\d\d us of CPU an event, alone [\d,]+ events/s$", shown.out, re.M)


def test_node_read_gets_every_token(capsys: pytest.CaptureFixture[str]) -> None:
    code = node_read.main(["--streams", "2", "--tokens", "5", "--interval-ms", "1", "--rounds", "2"])

    shown = capsys.readouterr()
    assert (code, shown.err) == (0, "")
    assert re.search(r"^us of CPU a token: \d+\.\d, \d+\.\d; median \d+\.\d$", shown.out, re.M)


def test_node_read_notices_a_lost_token() -> None:
    sink = node_read.KeepingSink("stream 0", 2)
    token = b'{"choices":[{"delta":{"content":"000000:0000000000000000001 "}}]}'
    sink.emit(EngineJson((token,)))

    assert sink.find_problems() == ["stream 0: 1 of 2 tokens arrived"]
