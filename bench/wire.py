"""What the wire alone costs: microseconds of CPU to encode, and to split and decode, one RuntimeEvent.

    .venv/bin/python bench/wire.py [--events 20000] [--rounds 5]

One process, no socket: the best of the rounds, because everything else that runs only ever adds.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.machine import describe_machine, describe_versions

from iop_shared.codec import decode_message, encode_message
from iop_shared.framing import FrameDecoder, encode_frame
from iop_shared.ids import new_run_id
from iop_shared.link.messages import MAX_FRAME_BYTES
from iop_shared.runtime_events import Body, EngineJson, RuntimeEvent, Text

_READ_BYTES: Final = 64 * 1024  # what one read of a busy socket brings
TOKEN_JSON: Final = (
    b'{"id":"chatcmpl-bde31952ec0b1dbc","object":"chat.completion.chunk","created":1796138597,"model":"small",'
    b'"choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}'
)
_BODIES: Final[dict[str, Body]] = {
    "engine JSON, 1 chunk": EngineJson((TOKEN_JSON,)),
    "engine JSON, 8 chunks": EngineJson((TOKEN_JSON,) * 8),
    "text": Text(" token"),
}


def best_us(action: Callable[[], object], events: int, rounds: int) -> float:
    """Returns microseconds of CPU an event of `action`, which handles `events` of them; the best of `rounds`."""
    found = []
    for _ in range(rounds):
        before = time.process_time_ns()
        action()
        found.append(time.process_time_ns() - before)
    return min(found) / events / 1000


def encode_all(events: list[RuntimeEvent]) -> bytes:
    """Returns the frames of all events, as a link would write them."""
    return b"".join([encode_frame(encode_message(event)) for event in events])


def decode_all(reads: list[bytes]) -> int:
    """Splits and decodes what the reads brought; returns how many events they held."""
    decoder = FrameDecoder(MAX_FRAME_BYTES)
    count = 0
    for data in reads:
        for payload in decoder.feed(data):
            decode_message(payload)
            count += 1
    return count


def main(arguments: list[str] | None = None) -> int:
    """Runs the bench; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args(arguments)
    machine, versions = describe_machine(), describe_versions()
    print(f"{machine['processor']}, {machine['system']}")
    print(f"python {versions['python']}, protobuf {versions['protobuf']}")
    print(f"{'us of CPU an event':26}{'bytes':>8}{'encode':>10}{'decode':>10}{'both':>10}")
    for name, body in _BODIES.items():
        run_id = new_run_id()
        events = [RuntimeEvent(run_id, 1, seq, body) for seq in range(1, given.events + 1)]
        data = encode_all(events)
        reads = [data[start : start + _READ_BYTES] for start in range(0, len(data), _READ_BYTES)]
        if decode_all(reads) != given.events:
            print(f"WRONG: {decode_all(reads)} of {given.events} events came out", file=sys.stderr)
            return 1
        encode_us = best_us(lambda events=events: encode_all(events), given.events, given.rounds)  # type: ignore[misc]
        decode_us = best_us(lambda reads=reads: decode_all(reads), given.events, given.rounds)  # type: ignore[misc]
        size = len(data) / given.events
        print(f"{name:26}{size:8.0f}{encode_us:10.2f}{decode_us:10.2f}{encode_us + decode_us:10.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
