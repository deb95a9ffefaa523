import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from iop_shared.client import render
from iop_shared.client.render import AnswerWriter, Column


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "-"),
        (0.0, "0 ms"),
        (0.0004, "0.4 ms"),
        (0.038, "38 ms"),
        (0.9996, "1.00 s"),
        (1.239, "1.24 s"),
        (9.999, "10.0 s"),
        (59.96, "1 min 00 s"),
        (125.4, "2 min 05 s"),
        (11_220, "3 h 07 min"),
        (100_000, "1 d 03 h"),
    ],
)
def test_duration_reads_as_people_say_it(seconds: float | None, shown: str) -> None:
    assert render.duration(seconds) == shown


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (None, "-"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (3_500_000, "3.3 MiB"),
        (9 << 40, "9216.0 GiB"),
    ],
)
def test_size(count: int | None, shown: str) -> None:
    assert render.size(count) == shown


def test_moment_shows_the_day_only_when_it_is_another() -> None:
    noon_ms = 1_700_000_000_000
    day_ms = 86_400_000

    assert len(render.moment(noon_ms, now_ms=noon_ms)) == len("22:13:20")
    assert render.moment(noon_ms - 2 * day_ms, now_ms=noon_ms).startswith("Nov ")
    assert render.moment(noon_ms - 400 * day_ms, now_ms=noon_ms).startswith("2022-")
    assert render.moment(None) == "-"
    assert render.full_moment(noon_ms).endswith(".000")


def test_printable_disarms_control_characters_and_keeps_the_rest() -> None:
    assert render.printable("a\x1b[31mred\x07\x9b2J\x7f") == "a\u241b[31mred\u2407\ufffd2J\u2421"
    assert render.printable("tab\tline\nß 漢字 👩‍🔬") == "tab\tline\nß 漢字 👩‍🔬"
    assert render.printable("safe\u202etxt.exe") == "safe\ufffdtxt.exe"
    assert render.one_line("a\n  b\x1b") == "a b\u241b"


COLUMNS = (
    Column("run"),
    Column("what", shrinks=True, least=8),
    Column("node", priority=1),
    Column("tokens", right=True, priority=2),
)
ROWS = [["0192", "a-long-adapter/with-a-long-target", "gpu-1", "7"], ["0193", "b", "gpu-22", "1234"]]


def test_table_that_fits_shows_everything() -> None:
    assert render.table(COLUMNS, ROWS, 80) == [
        "run   what                               node    tokens",
        "0192  a-long-adapter/with-a-long-target  gpu-1        7",
        "0193  b                                  gpu-22    1234",
    ]


def test_table_too_wide_cuts_what_shrinks_first() -> None:
    assert render.table(COLUMNS, ROWS, 40) == [
        "run   what                node    tokens",
        "0192  a-long-adapter/wi…  gpu-1        7",
        "0193  b                   gpu-22    1234",
    ]


def test_table_far_too_wide_leaves_columns_out_by_priority() -> None:
    assert render.table(COLUMNS, ROWS, 24) == [
        "run   what        node",
        "0192  a-long-ad…  gpu-1",
        "0193  b           gpu-22",
    ]


def test_an_optional_column_without_anything_is_left_out() -> None:
    assert render.table(COLUMNS, [["0192", "x", "", "7"]], 80) == ["run   what  tokens", "0192  x          7"]


def test_no_line_of_a_table_is_wider_than_asked_even_with_wide_characters() -> None:
    rows = [["0192", "漢字" * 30, "ノード", "1"]]

    for width in range(20, 90):
        assert all(cell_len(line) <= width for line in render.table(COLUMNS, rows, width))


def test_empty_cells_show_a_dash_and_newlines_no_second_row() -> None:
    assert render.table((Column("a"), Column("b")), [["", "x\ny"]], 80) == ["a  b", "-  x y"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_answer_on_a_terminal_dims_reasoning_and_disarms_the_text() -> None:
    out, err = Terminal(), Terminal()
    writer = AnswerWriter(out, err)

    writer.reasoning("hm")
    writer.reasoning(" hm")
    writer.text("yes\x1b]0;owned\x07")
    writer.text(" sir")
    writer.close()

    assert out.getvalue() == "\x1b[2mhm hm\x1b[0m\nyes\u241b]0;owned\u2407 sir\n"
    assert err.getvalue() == ""


def test_answer_in_a_pipe_is_exact_and_alone() -> None:
    out, err = io.StringIO(), io.StringIO()
    writer = AnswerWriter(out, err)

    writer.reasoning("hm")
    writer.text("a\x1bb\n")
    writer.line("note")
    writer.text("c")
    writer.close()
    writer.close()

    assert out.getvalue() == "a\x1bb\nc\n"
    assert err.getvalue() == "hm\nnote\n"


def test_no_color_means_no_escape_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    writer = AnswerWriter(out, Terminal())

    writer.reasoning("hm")
    writer.text("yes")
    writer.close()

    assert out.getvalue() == "hm\nyes\n"


def test_run_ids_are_short_on_a_terminal_and_whole_in_a_pipe() -> None:
    run_id = "0192f0c4-1a2b-7c3d-8e4f-0123456789ab"

    assert render.short_id(run_id, Console(force_terminal=True)) == "0192f0c4-1a2b-7c3d"
    assert render.short_id(run_id, Console(file=io.StringIO())) == run_id
