"""The contract of Adapter, held by every adapter in `tests.contracts.adapters`."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from tests.contracts.adapters import (
    SUBJECTS,
    MockSubject,
    Says,
    SaysForever,
    SaysThenFails,
    SaysThenHangs,
    Subject,
    chat_spec,
)

from iop_node.core.ports import Adapter, ListsTargets
from iop_node.core.spec import Completion, ExecutionSpec
from iop_shared.aio.tasks import TaskOwner
from iop_shared.errors import RunFailed
from iop_shared.ids import check_target
from iop_shared.link.messages import Gate
from iop_shared.runtime_events import TERMINAL_TYPES, Body, Gap, Started, Text, Usage, output_bytes_of

pytestmark = pytest.mark.both_loops
WITHIN_S = 5.0


class RecordingSink:
    """An EventSink that keeps what it gets. `hold`: the run has no room until `release`."""

    def __init__(self) -> None:
        self.bodies: list[Body] = []
        self.engine = ""
        self.is_confirmed = False
        self._ready = asyncio.Event()
        self._ready.set()
        self._news = asyncio.Event()

    def emit(self, body: Body) -> None:
        assert not isinstance(body, (Started, Gap, *TERMINAL_TYPES)), "these belong to the core"
        self.bodies.append(body)
        self._news.set()

    def set_engine(self, engine: str) -> None:
        self.engine = engine

    async def wait_ready(self) -> None:
        await self._ready.wait()

    def confirm_cancel(self) -> None:
        self.is_confirmed = True

    def hold(self) -> None:
        self._ready.clear()

    def release(self) -> None:
        self._ready.set()

    @property
    def text(self) -> str:
        return "".join(body.text for body in self.bodies if isinstance(body, Text))

    @property
    def output_bytes(self) -> int:
        return sum(len(output_bytes_of(body)) for body in self.bodies)

    async def wait_for(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(WITHIN_S):
            while not holds():
                self._news.clear()
                await self._news.wait()


@pytest.fixture(params=SUBJECTS)
async def subject(request: pytest.FixtureRequest) -> Subject:
    return SUBJECTS[request.param]()


@pytest.fixture
async def adapter(subject: Subject) -> AsyncIterator[Adapter]:
    async with subject as made:
        yield made


@asynccontextmanager
async def under_way(
    adapter: Adapter, spec: ExecutionSpec, sink: RecordingSink
) -> AsyncIterator["asyncio.Task[Completion]"]:
    """Runs `spec` in a task of its own, which is cancelled at the end if it is still there."""
    tasks = TaskOwner("contract", lambda name, error: None)
    task = tasks.spawn(adapter.execute(spec, sink), name="execute")
    try:
        yield task
    finally:
        await tasks.cancel_all()


async def test_it_says_its_text_in_pieces_and_completes(adapter: Adapter, subject: Subject) -> None:
    sink = RecordingSink()

    completion = await adapter.execute(subject.chat(Says("one two three")), sink)

    assert sink.text == "one two three"
    assert len([body for body in sink.bodies if isinstance(body, Text)]) > 1
    assert completion.finish_reason == "stop"


async def test_usage_is_told_once_the_engine_gives_it(adapter: Adapter, subject: Subject) -> None:
    sink = RecordingSink()

    await adapter.execute(subject.chat(Says("one two three")), sink)

    usage = [body for body in sink.bodies if isinstance(body, Usage)]
    assert usage
    assert usage[-1].completion_tokens == 3


@pytest.mark.parametrize("text", ["Größe 42 €", "日本語 の テキスト", "🙂 👩‍👩‍👧‍👦 ok", "a\nb\tc  d\r\n"])
async def test_text_arrives_as_it_is(adapter: Adapter, subject: Subject, text: str) -> None:
    sink = RecordingSink()

    await adapter.execute(subject.chat(Says(text)), sink)

    assert sink.text == text


async def test_an_empty_answer_completes_without_output(adapter: Adapter, subject: Subject) -> None:
    sink = RecordingSink()

    completion = await adapter.execute(subject.chat(Says("")), sink)

    assert sink.text == ""
    assert completion.finish_reason == "stop"


async def test_an_enormous_answer_arrives_whole(adapter: Adapter, subject: Subject) -> None:
    sink = RecordingSink()

    await adapter.execute(subject.chat(SaysForever(megabytes=2)), sink)

    assert sink.output_bytes >= 2 * 1024 * 1024


@pytest.mark.parametrize("words", [0, 2])
async def test_an_engine_that_fails_is_a_failed_run_with_code_and_layer(
    adapter: Adapter, subject: Subject, words: int
) -> None:
    sink = RecordingSink()

    with pytest.raises(RunFailed) as caught:
        await adapter.execute(subject.chat(SaysThenFails(words)), sink)

    assert caught.value.code
    assert caught.value.layer
    assert len([body for body in sink.bodies if isinstance(body, Text)]) == words


async def test_cancelling_before_the_first_token_ends_it(adapter: Adapter, subject: Subject) -> None:
    sink = RecordingSink()
    async with under_way(adapter, subject.chat(SaysThenHangs(0)), sink) as task:
        await asyncio.sleep(0.05)  # wherever it waits: connecting, or for the first byte

        task.cancel()
        await asyncio.wait({task}, timeout=WITHIN_S)

        assert task.cancelled()
        assert sink.text == ""


async def test_cancelling_in_mid_stream_ends_it(adapter: Adapter, subject: Subject) -> None:
    sink = RecordingSink()
    async with under_way(adapter, subject.chat(SaysThenHangs(2)), sink) as task:
        await sink.wait_for(lambda: len(sink.bodies) >= 2)

        task.cancel()
        await asyncio.wait({task}, timeout=WITHIN_S)

        assert task.cancelled()


async def test_an_adapter_works_on_after_a_cancelled_and_a_failed_run(adapter: Adapter, subject: Subject) -> None:
    async with under_way(adapter, subject.chat(SaysThenHangs(0)), RecordingSink()) as task:
        await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.wait({task}, timeout=WITHIN_S)
    with pytest.raises(RunFailed):
        await adapter.execute(subject.chat(SaysThenFails(1)), RecordingSink())
    sink = RecordingSink()

    await adapter.execute(subject.chat(Says("still here")), sink)

    assert sink.text == "still here"


async def test_two_at_once_do_not_mix(adapter: Adapter, subject: Subject) -> None:
    hanging, other = RecordingSink(), RecordingSink()
    async with under_way(adapter, subject.chat(SaysThenHangs(1)), hanging):
        await hanging.wait_for(lambda: len(hanging.bodies) >= 1)

        await adapter.execute(subject.chat(Says("by itself")), other)

        assert other.text == "by itself"
        assert len([body for body in hanging.bodies if isinstance(body, Text)]) == 1


async def test_without_room_it_reads_no_further(adapter: Adapter, subject: Subject) -> None:
    sink = RecordingSink()
    async with under_way(adapter, subject.chat(SaysForever(megabytes=4)), sink) as task:
        await sink.wait_for(lambda: sink.output_bytes > 1000)
        sink.hold()
        await asyncio.sleep(0.05)
        held = sink.output_bytes
        await asyncio.sleep(0.1)

        # What one read had brought may still come; then nothing.
        assert sink.output_bytes == held
        sink.release()
        await asyncio.wait({task}, timeout=4 * WITHIN_S)
        assert sink.output_bytes >= 4 * 1024 * 1024


async def test_a_run_without_room_can_be_cancelled(adapter: Adapter, subject: Subject) -> None:
    sink = RecordingSink()
    sink.hold()
    async with under_way(adapter, subject.chat(SaysForever(megabytes=4)), sink) as task:
        await asyncio.sleep(0.05)

        task.cancel()
        await asyncio.wait({task}, timeout=WITHIN_S)

        assert task.cancelled()


async def test_a_probe_names_targets_and_never_raises(adapter: Adapter, subject: Subject) -> None:
    if not isinstance(adapter, ListsTargets):
        pytest.skip("this adapter has nothing to ask")

    found = await adapter.probe()
    subject.break_engine()
    again = await adapter.probe()

    assert found.targets
    assert all(check_target(target) for target in found.targets)
    assert isinstance(again.gate, Gate)


async def test_what_it_says_of_itself_holds(adapter: Adapter) -> None:
    assert adapter.name == "under-test"
    assert adapter.type
    assert adapter.capabilities.operations


async def test_it_can_be_closed_twice(adapter: Adapter, subject: Subject) -> None:
    await adapter.execute(subject.chat(Says("bye")), RecordingSink())

    await adapter.aclose()
    await adapter.aclose()


async def test_a_cancel_that_is_ignored_leaves_the_run_going() -> None:
    sink = RecordingSink()
    async with MockSubject() as adapter:
        spec = chat_spec("ignore-cancel", mock={"delay_s": 0.01, "ignore_cancel_s": 0.4})
        async with under_way(adapter, spec, sink) as task:
            await sink.wait_for(lambda: len(sink.bodies) >= 2)

            task.cancel()
            seen = len(sink.bodies)
            await sink.wait_for(lambda: len(sink.bodies) > seen + 2)

            assert not task.done()
