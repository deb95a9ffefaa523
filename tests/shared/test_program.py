"""How each kind of error ends a program: sentence, hint, exit code, and never a traceback."""

import pytest

from iop_shared.errors import BadRequest, InvalidConfig, IopError, NoRoute, NotAllowed, Unavailable
from iop_shared.exit_codes import CommandFailed, ExitCode
from iop_shared.program import make_program, run_program


def run_raising(error: BaseException | None) -> tuple[int, list[str]]:
    program = make_program("iop-x", "A program.")

    def act() -> None:
        """Act."""
        if error is not None:
            raise error

    program.command()(act)
    program.command()(lambda: None)  # with one command alone, typer makes it the program
    said: list[str] = []
    return run_program(program, "iop-x", ["act"], say=said.append), said


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (None, ExitCode.OK, []),
        (BadRequest("name 5 is wrong"), ExitCode.USAGE, ["iop-x: name 5 is wrong"]),
        (
            InvalidConfig("a.toml", ["one", "two"]),
            ExitCode.USAGE,
            ["iop-x: a.toml: one", "iop-x: a.toml: two"],
        ),
        (NotAllowed("no"), ExitCode.REFUSED, ["iop-x: no"]),
        (Unavailable("port taken"), ExitCode.UNAVAILABLE, ["iop-x: port taken"]),
        (NoRoute("nobody"), ExitCode.FAILED, ["iop-x: nobody"]),
        (IopError("odd"), ExitCode.FAILED, ["iop-x: odd"]),
        (
            CommandFailed("it died:\n  last words", exit_code=ExitCode.UNAVAILABLE, hint="start it again"),
            ExitCode.UNAVAILABLE,
            ["iop-x: it died:\n  last words", "  start it again"],
        ),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED, []),
        (
            ZeroDivisionError("by zero"),
            ExitCode.FAILED,
            [
                "iop-x: internal error: ZeroDivisionError: by zero",
                "  this is a bug in iop-x; with IOP_DEBUG=1 it shows where",
            ],
        ),
    ],
)
def test_each_error_has_its_sentence_and_exit_code(
    capsys: pytest.CaptureFixture[str], error: BaseException | None, code: ExitCode, said: list[str]
) -> None:
    assert run_raising(error) == (code, said)
    assert "Traceback" not in capsys.readouterr().err


def test_with_iop_debug_our_bug_shows_where(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IOP_DEBUG", "1")

    run_raising(ZeroDivisionError("by zero"))

    assert "in act" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["nosuch"], ["act", "--nosuch"]])
def test_a_wrong_command_line_is_a_usage_error(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    program = make_program("iop-x", "A program.")
    program.command(name="act")(lambda: None)
    program.command(name="other")(lambda: None)

    assert run_program(program, "iop-x", arguments) == ExitCode.USAGE
    assert "nosuch" in capsys.readouterr().err
