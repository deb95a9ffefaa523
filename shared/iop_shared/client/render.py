"""How values look on a terminal: durations, moments, sizes, tables. Times and counts are exact only in --json.

Nothing that a model, an engine or a user chose reaches the terminal with control characters in it.
"""

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TextIO

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

NOTHING: Final = "-"
"""Shown where there is no value."""
_PIPE_WIDTH: Final = 10_000
"""Where no terminal is, nothing is cut: another program reads it."""
_GAP: Final = "  "
_TURN_AROUND: Final = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""Embeddings, overrides and isolates of the bidirectional algorithm (UAX #9, section 2)."""

STATE_STYLES: Final[dict[str, str]] = {
    "succeeded": "green",
    "failed": "red",
    "interrupted": "red",
    "lost": "red",
    "rejected_config": "red",
    "rejected": "red",
    "closed": "red",
    "cancelled": "yellow",
    "cancelling": "yellow",
    "detached": "yellow",
    "draining": "yellow",
    "unknown": "yellow",
    "running": "cyan",
    "connected": "green",
    "open": "green",
    "applied": "green",
}


def console_for(stream: TextIO) -> Console:
    """Returns a console on `stream`: no markup, no guessing at colours in text, nothing cut in a pipe."""
    return Console(
        file=stream,
        markup=False,
        highlight=False,
        emoji=False,
        soft_wrap=True,
        width=None if stream.isatty() else _PIPE_WIDTH,
    )


def stdout() -> Console:
    """Returns the console for results. Made anew each time: tests and pipes replace the stream."""
    return console_for(sys.stdout)


def stderr() -> Console:
    """Returns the console for everything that is not the result."""
    return console_for(sys.stderr)


def printable(text: str) -> str:
    """Returns `text` with every control character but newline and tab shown as its picture.

    A model's answer must not move the cursor, change the title, recolour the terminal or turn text around.
    """
    if text.isprintable():
        return text
    return "".join(character if _is_harmless(character) else _picture(character) for character in text)


def one_line(text: str) -> str:
    """Returns `text` printable and on one line."""
    return printable(" ".join(text.split()))


def duration(seconds: float | None) -> str:
    """Returns a length of time as people say it: `0.4 ms`, `38 ms`, `1.24 s`, `2 min 05 s`, `3 h 07 min`."""
    if seconds is None:
        return NOTHING
    if 0 < seconds < 0.001:
        return f"{seconds * 1000:.1f} ms"
    if round(seconds * 1000) < 1000:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.995:
        return f"{seconds:.2f} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


def moment(at_ms: int | None, *, now_ms: int | None = None) -> str:
    """Returns a wall-clock time in this machine's zone: the time alone today, with the day before that."""
    if not at_ms:
        return NOTHING
    now = time.localtime((time.time_ns() // 1_000_000 if now_ms is None else now_ms) / 1000)
    then = time.localtime(at_ms / 1000)
    if then[:3] == now[:3]:
        return time.strftime("%H:%M:%S", then)
    return time.strftime("%b %d %H:%M" if then[0] == now[0] else "%Y-%m-%d", then)


def full_moment(at_ms: int | None) -> str:
    """Returns a wall-clock time in this machine's zone with date and milliseconds."""
    if not at_ms:
        return NOTHING
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(at_ms / 1000))}.{at_ms % 1000:03d}"


def size(count: int | None) -> str:
    """Returns a number of bytes: `12 B`, `3.4 KiB`, `1.2 MiB`."""
    if count is None:
        return NOTHING
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def number(count: int | None) -> str:
    """Returns a count, or a dash where there is none."""
    return NOTHING if count is None else str(count)


def short_id(run_id: str, console: Console) -> str:
    """Returns what to show of a run id in a table: all of it in a pipe, else the first 18 characters.

    They hold the millisecond of its birth and 12 random bits; every command takes them for the whole id.
    """
    return run_id[:18] if console.is_terminal else run_id


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `priority`: 0 is never left out; the highest goes first when the table is too wide.

    `shrinks`: may be cut (with an ellipsis) down to `least` cells instead of being left out.
    """

    title: str
    priority: int = 0
    right: bool = False
    shrinks: bool = False
    least: int = 8


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Returns the lines of a table (titles first) that fit into `width` cells, as far as they can.

    Columns are left out by priority first, then the shrinking ones are cut. No line ever wraps into another.
    """
    cells = [[one_line(cell) or NOTHING for cell in row] for row in rows]
    widths = [
        max([cell_len(column.title), *(cell_len(row[i]) for row in cells)]) for i, column in enumerate(columns)
    ]
    # An optional column in which no row has anything says nothing.
    kept = [
        i for i, column in enumerate(columns) if column.priority == 0 or any(row[i] != NOTHING for row in cells)
    ]

    def excess(at_least: bool) -> int:
        total = sum(
            min(widths[i], columns[i].least) if at_least and columns[i].shrinks else widths[i] for i in kept
        )
        return total + len(_GAP) * (len(kept) - 1) - width

    while excess(at_least=True) > 0:
        optional = [i for i in kept if columns[i].priority > 0]
        if not optional:
            break
        kept.remove(max(optional, key=lambda i: (columns[i].priority, i)))
    over = excess(at_least=False)
    # The widest gives way first, so that two long columns end up equally readable.
    while over > 0:
        shrinkable = [i for i in kept if columns[i].shrinks and widths[i] > columns[i].least]
        if not shrinkable:
            break
        widest = max(shrinkable, key=lambda i: widths[i])
        widths[widest] -= 1
        over -= 1
    lines = [[columns[i].title for i in kept], *([row[i] for i in kept] for row in cells)]
    return [
        _GAP.join(
            _fit(cell, widths[i], right=columns[i].right) for cell, i in zip(line, kept, strict=True)
        ).rstrip()
        for line in lines
    ]


def print_table(
    console: Console, columns: Sequence[Column], rows: Sequence[Sequence[str]], *, state_column: str = "state"
) -> None:
    """Prints a table: titles dimmed, the state of each row in its colour."""
    lines = table(columns, rows, console.width)
    titles = [column.title for column in columns]
    states = [row[titles.index(state_column)] for row in rows] if state_column in titles else [""] * len(rows)
    console.print(Text(lines[0], style="dim"))
    for line, state in zip(lines[1:], states, strict=True):
        text = Text(line)
        style = STATE_STYLES.get(state)
        if style:
            text.highlight_words([state], style)
        console.print(text)


def print_facts(console: Console, facts: Sequence[tuple[str, str]]) -> None:
    """Prints name and value pairs, the values in one column; long values go on below themselves."""
    shown = [(name, printable(value)) for name, value in facts]
    left = max((cell_len(name) for name, _ in shown), default=0)
    for name, value in shown:
        text = Text(f"  {name.ljust(left)}  ", style="dim")
        style = STATE_STYLES.get(value.split(" ", 1)[0]) if name == "state" else None
        text.append(value.replace("\n", "\n" + " " * (left + 4)), style=style or "not dim")
        console.print(text)


class AnswerWriter:
    """Writes an answer as it comes: straight to the stream, flushed, reasoning dimmed.

    Reasoning goes to stderr where stdout is no terminal, so that a pipe gets the answer alone.
    """

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out, self._err = out, err
        self._on_terminal = out.isatty()
        self._in_reasoning = False
        self._at_line_start = True

    def text(self, piece: str) -> None:
        """Writes a piece of the answer."""
        if not piece:
            return
        self._end_reasoning()
        self._write(self._out, piece)

    def reasoning(self, piece: str) -> None:
        """Writes a piece of the model's thinking."""
        if not piece:
            return
        stream = self._out if self._on_terminal else self._err
        if not self._in_reasoning:
            self._in_reasoning = True
            if self._uses_style(stream):
                stream.write("\x1b[2m")
        self._write(stream, piece)

    def line(self, text: str, *, style: str = "") -> None:
        """Writes a whole line of its own between pieces, to stderr."""
        self.end_line()
        console_for(self._err).print(Text(printable(text), style=style))

    def raw(self, data: bytes) -> None:
        """Writes bytes of a command to stdout; made printable only where a terminal would obey them."""
        self.text(data.decode(errors="replace"))

    def end_line(self) -> None:
        """Ends a line that is under way. Safe to call twice."""
        self._end_reasoning()
        if not self._at_line_start and self._on_terminal:
            self._out.write("\n")
            self._out.flush()
            self._at_line_start = True

    def close(self) -> None:
        """Ends the output: the last line is whole, in a pipe too."""
        self._end_reasoning()
        if not self._at_line_start:
            self._out.write("\n")
            self._at_line_start = True
        self._out.flush()

    def _write(self, stream: TextIO, piece: str) -> None:
        # Before the writing: Ctrl-C may end it at any point, and the line must then be ended too.
        if stream is self._out:
            self._at_line_start = piece.endswith("\n")
        stream.write(printable(piece) if stream.isatty() else piece)
        stream.flush()

    def _end_reasoning(self) -> None:
        if not self._in_reasoning:
            return
        self._in_reasoning = False
        stream = self._out if self._on_terminal else self._err
        stream.write(("\x1b[0m" if self._uses_style(stream) else "") + "\n")
        stream.flush()
        self._at_line_start = self._on_terminal or self._at_line_start

    def _uses_style(self, stream: TextIO) -> bool:
        return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _is_harmless(character: str) -> bool:
    # Other format characters stay: joiners are part of emoji and of many scripts.
    if character in _TURN_AROUND:
        return False
    return character in "\n\t" or not ("\x00" <= character <= "\x1f" or "\x7f" <= character <= "\x9f")


def _picture(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else "\ufffd"


def _fit(cell: str, width: int, *, right: bool) -> str:
    if cell_len(cell) > width:
        return set_cell_size(cell, width - 1) + "…"
    padding = " " * (width - cell_len(cell))
    return padding + cell if right else cell + padding
