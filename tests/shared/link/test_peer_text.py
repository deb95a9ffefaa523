"""What a peer wrote cannot break a log line, flood it, or become a label."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.link_values import PEER, open_edge

from iop_shared.link.messages import Goodbye
from iop_shared.link.peer_text import MAX_SENTENCE_CHARS, is_word, safe_code, safe_sentence


@given(st.text(max_size=2000))
def test_sentence_is_one_printable_line_of_bounded_length(text: str) -> None:
    safe = safe_sentence(text)

    assert safe.isprintable()
    assert len(safe) <= MAX_SENTENCE_CHARS + 40


def test_sentence_says_what_was_cut() -> None:
    assert safe_sentence("plain words") == "plain words"
    assert safe_sentence("two\nlines\x1b[31m") == "two?lines?[31m"
    assert safe_sentence("x" * 12, 10) == "xxxxxxxxxx... (2 more characters)"


@pytest.mark.parametrize("text", ["", "Has Blank", "9lives", "x" * 33, "a\n"])
def test_what_is_no_code_becomes_the_other(text: str) -> None:
    assert safe_code(text, "goodbye") == "goodbye"
    assert safe_code("edge_stopping", "goodbye") == "edge_stopping"


def test_words() -> None:
    assert is_word("1.2.3")
    assert not is_word("x" * 65)
    assert not is_word("a\tb")


def test_goodbye_of_a_rude_peer() -> None:
    play = open_edge()
    play.given(Goodbye("Run: rm -rf\n", "forged\nlog line"))

    assert play.machine.state == "closing"
    play = open_edge()
    (ended, _) = play.machine.receive(Goodbye("Not A Code", "forged\nlog line"), play.now)
    assert ended.end.code == "goodbye"  # type: ignore[union-attr]
    assert ended.end.message == f"{PEER}: the node ended the link (goodbye): forged?log line"  # type: ignore[union-attr]
