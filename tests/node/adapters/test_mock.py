"""The mock adapter's targets and scripts: deterministic, and every wrong script told."""

import asyncio
import json
from typing import Any

import pytest
from tests.contracts.test_adapter_contract import RecordingSink

from iop_node.adapters.mock import MockAdapter, build
from iop_node.core.spec import Completion, ExecutionSpec
from iop_shared.errors import InvalidConfig, Layer, RunFailed
from iop_shared.ids import AdapterName, TargetName, new_run_id
from iop_shared.link.messages import GateState
from iop_shared.runs import Operation, RunLimits
from iop_shared.runtime_events import Body, Embeddings, Logprobs, Notice, Reasoning, Text, ToolCall, Usage

NAME = AdapterName("mock")


def mock(**settings: Any) -> MockAdapter:
    return build(NAME, 4, settings)


def spec(
    target: str,
    body: object,
    operation: Operation = Operation.CHAT,
    *,
    limits: RunLimits = RunLimits(),  # noqa: B008 -- a frozen value
    **options: Any,
) -> ExecutionSpec:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return ExecutionSpec(
        new_run_id(), NAME, TargetName(target), operation, content, limits=limits, options=options
    )


def chat(content: object = "say it", **body: Any) -> dict[str, Any]:
    return {"messages": [{"role": "system", "content": "no"}, {"role": "user", "content": content}], **body}


async def play(asked: ExecutionSpec, adapter: MockAdapter | None = None) -> tuple[Completion, list[Body]]:
    sink = RecordingSink()
    completion = await (adapter or mock()).execute(asked, sink)
    return completion, sink.bodies


def text_of(bodies: list[Body]) -> str:
    return "".join(body.text for body in bodies if isinstance(body, Text))


@pytest.mark.parametrize(
    ("operation", "body", "said"),
    [
        (Operation.CHAT, chat("one  two\n"), "one  two\n"),
        (Operation.CHAT, chat([{"type": "text", "text": "a b"}, {"type": "image_url"}]), "a b"),
        (Operation.COMPLETION, {"prompt": ["first", "second"]}, "first"),
        (Operation.GENERATE, {"prompt": "x y"}, "x y"),
        (Operation.GENERATE, b'"just text"', "just text"),
    ],
)
async def test_echo_says_the_prompt(operation: Operation, body: object, said: str) -> None:
    completion, bodies = await play(spec("echo", body, operation))

    assert text_of(bodies) == said
    assert completion == Completion("stop")
    assert isinstance(bodies[-1], Usage)


async def test_the_same_seed_says_the_same_and_another_seed_does_not() -> None:
    first = text_of((await play(spec("lorem", chat())))[1])

    assert text_of((await play(spec("lorem", chat())))[1]) == first
    assert len(first.split()) == 20
    assert text_of((await play(spec("lorem", chat()), mock(seed=7)))[1]) != first


async def test_max_tokens_cuts_and_says_so() -> None:
    completion, bodies = await play(spec("tokens", chat(max_tokens=3)))

    assert text_of(bodies) == "t0 t1 t2"
    assert completion.finish_reason == "length"
    assert bodies[-1] == Usage(2, 3)


async def test_everything_that_a_run_can_say_can_be_scripted() -> None:
    script = {
        "text": "ok then",
        "reasoning": "hm so",
        "notice": "look",
        "logprobs": True,
        "tool_call": {"name": "weather", "arguments": '{"city": "Oslo"}'},
        "usage": {"prompt_tokens": 9, "cached_tokens": 4},
    }

    completion, bodies = await play(spec("tokens", chat(), mock=script))

    assert [type(body) for body in bodies] == [
        Notice,
        Reasoning,
        Reasoning,
        Text,
        Logprobs,
        Text,
        Logprobs,
        ToolCall,
        ToolCall,
        ToolCall,
        Usage,
    ]
    calls = [body for body in bodies if isinstance(body, ToolCall)]
    assert "".join(call.arguments for call in calls) == '{"city": "Oslo"}'
    assert [call.name for call in calls] == ["weather", "", ""]
    assert completion.finish_reason == "tool_calls"
    assert bodies[-1] == Usage(9, None, 4)


async def test_the_inputs_script_stands_over_the_options_and_these_over_the_target() -> None:
    with pytest.raises(RunFailed) as caught:
        await play(spec("fail", chat(mock={"fail_code": "engine_error"}), mock={"fail_code": "x", "fail_at": 0}))

    assert (caught.value.code, caught.value.layer) == ("engine_error", Layer.SERVING)


async def test_a_hang_ends_with_the_runs_own_timeouts() -> None:
    with pytest.raises(RunFailed) as first:
        await play(spec("hang", chat(), limits=RunLimits(first_byte_timeout_s=0.02)))
    with pytest.raises(RunFailed) as idle:
        await play(spec("tokens", chat(), limits=RunLimits(idle_timeout_s=0.02), mock={"hang_at": 2}))

    assert (first.value.code, str(first.value)) == (
        "engine_timeout_first_byte",
        "the mock said nothing for 0.02 s (first_byte_timeout_s)",
    )
    assert idle.value.code == "engine_timeout_idle"


async def test_delays_keep_the_pace() -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()

    await play(spec("tokens", chat(), mock={"tokens": 5, "delay_s": 0.01, "first_delay_s": 0.02}))

    assert loop.time() - began >= 0.07


async def test_embeddings_depend_on_the_text_alone() -> None:
    body = {"input": ["one", "two", "one"]}

    _, bodies = await play(spec("embed", body, Operation.EMBED, mock={"dimensions": 4}))

    assert isinstance(bodies[0], Embeddings)
    one, two, again = json.loads(bodies[0].json)
    assert one == again != two
    assert len(one) == 4
    assert sum(value * value for value in one) == pytest.approx(1.0, abs=1e-4)
    assert bodies[1] == Usage(3, None)


@pytest.mark.parametrize(
    ("asked", "code", "message"),
    [
        (spec("ecko", chat()), "target_not_found", "the mock has no target 'ecko': did you mean 'echo'?"),
        (spec("echo", b"{"), "engine_rejected", "the input (1 bytes) is not JSON"),
        (spec("echo", []), "engine_rejected", "the input is a JSON list; chat needs an object"),
        (
            spec("echo", {}),
            "engine_rejected",
            "chat needs messages: a list of objects with role and content",
        ),
        (spec("echo", chat(max_tokens=0)), "engine_rejected", "max_tokens is 0; use a whole number from 1"),
        (
            spec("echo", chat(mock={"tokns": 1, "delay_s": "x"})),
            "engine_rejected",
            "mock.delay_s = 'x': input should be a valid number; unknown key mock.tokns: did you mean 'tokens' "
            "or 'token_bytes'?",
        ),
        (spec("echo", chat(mock=1)), "engine_rejected", "mock is a int; write a table of script keys"),
        (
            spec("embed", chat()),
            "operation_unsupported",
            "target 'embed' of the mock does not support operation 'chat'; embed goes with the target 'embed', "
            "every other operation with the others",
        ),
        (
            spec("embed", {"input": 5}, Operation.EMBED),
            "engine_rejected",
            "embed needs input: a text or a list of texts",
        ),
    ],
)
async def test_what_makes_no_sense_is_told(asked: ExecutionSpec, code: str, message: str) -> None:
    with pytest.raises(RunFailed) as caught:
        await play(asked)

    assert (caught.value.code, str(caught.value)) == (code, message)
    assert caught.value.layer is Layer.TARGET


async def test_a_crash_is_what_an_adapter_must_not_do() -> None:
    with pytest.raises(ZeroDivisionError):
        await play(spec("tokens", chat(), mock={"crash_at": 1}))


async def test_the_gate_says_what_the_settings_say() -> None:
    closed = await mock(gate="closed", gate_reason="out for lunch").probe()

    assert (closed.gate.state, closed.gate.reason) == (GateState.CLOSED, "out for lunch")
    assert (await mock().probe()).gate.state is GateState.NOT_APPLICABLE


def test_settings_that_it_does_not_understand_are_all_told() -> None:
    with pytest.raises(InvalidConfig) as caught:
        mock(sede=1, gate="ajar")

    assert caught.value.problems == [
        "gate = 'ajar': input should be 'open', 'closed', 'unknown' or 'not_applicable'",
        "unknown key sede: did you mean 'seed'?",
    ]
