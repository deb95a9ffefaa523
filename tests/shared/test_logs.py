import io
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from iop_shared.errors import BadRequest
from iop_shared.logs import get_logger, setup_logging

SECRET = "Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6cXV4Zm9vYmFyYmF"
TOKEN = f"iopn_abcdef234567_{SECRET}"


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    config, was_configured = structlog.get_config(), structlog.is_configured()
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()
    if was_configured:
        structlog.configure(**config)


def _lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_without_a_terminal_each_event_is_one_json_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    log = get_logger("routing")  # kept by a module before logging is set up
    setup_logging("edge")

    log.bind(node_id="gpu-1").info("node_connected", epoch=3)
    log.debug("frame_sent")

    out, err = capsys.readouterr()
    (line,) = _lines(err)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "node_connected", "level": "info", "component": "routing", "node_id": "gpu-1", "epoch": 3,
    }  # fmt: skip
    assert out == ""


def test_readable_lines_where_they_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("edge", level="debug", as_json=False)

    get_logger("link").debug("frame_sent", bytes=5)

    text = capsys.readouterr().err
    assert "[debug    ] frame_sent" in text
    assert "bytes=5" in text


def test_no_planted_secret_comes_through(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("node")
    log = get_logger("link")

    try:
        raise RuntimeError(f"refused {TOKEN}")
    except RuntimeError:
        log.exception("link_refused", token=TOKEN, detail={"deep": [{"api_key": "hush-hush"}]})
    event = f"said_{TOKEN}"  # nobody should, but somebody will
    log.warning(event, url=f"http://u:hush-hush@h/?token={TOKEN}", header=f"Bearer {SECRET}")
    log.info("run_started", prompt="the prompt itself", messages=[{"content": "the prompt itself"}])
    logging.getLogger("uvicorn.error").error("failed with %s", TOKEN)
    structlog.contextvars.bind_contextvars(secret="hush-hush")
    log.info("context_bound")
    structlog.contextvars.clear_contextvars()

    text = capsys.readouterr().err
    assert len(_lines(text)) == 5
    for planted in (SECRET, "hush-hush", "the prompt itself"):
        assert planted not in text
    assert "iopn_abcdef234567_***" in text, "the public id stays, so that the operator knows which token it was"


def test_other_libraries_join_at_warning_and_access_lines_do_not(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("edge")
    setup_logging("edge")  # a second call must not double the lines

    logging.getLogger("uvicorn.error").info("Started")
    logging.getLogger("httpx").warning("GET http://x")
    logging.getLogger("asyncio").warning("slow callback")

    (line,) = _lines(capsys.readouterr().err)
    assert (line["event"], line["library"], line["message"]) == ("library_logged", "asyncio", "slow callback")
    assert line["component"] == "edge"


def test_a_reader_that_went_away_does_not_end_us(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Gone())
    setup_logging("edge")

    get_logger("edge").error("edge_failed")


def test_what_json_cannot_say_is_shown_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("edge")

    get_logger("edge").info("odd_value", value={1: object, "big": 2**70}, error=ValueError("x"))

    (line,) = _lines(capsys.readouterr().err)
    assert line["value"]["1"] == "<class 'object'>"
    assert line["error"] == "x"


def test_an_unknown_level_is_said() -> None:
    with pytest.raises(BadRequest) as caught:
        setup_logging("edge", level="loud")

    assert str(caught.value) == "log level 'loud' is unknown: use one of debug, info, warning, error"
