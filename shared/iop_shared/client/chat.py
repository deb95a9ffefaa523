"""`iop chat`: a conversation over the edge's OpenAI dialect."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import typer

from iop_shared.client import render
from iop_shared.client.api import EdgeApi, EdgeRefused
from iop_shared.client.options import EdgeOption, JsonOption, edge_api, print_json
from iop_shared.client.records import ModelRecord
from iop_shared.exit_codes import CommandFailed, ExitCode

_PROMPT: Final = "> "
_HELP: Final = "/new begins anew · /model NAME changes the model · /quit or Ctrl-D leaves · Ctrl-C stops an answer"


@dataclass(slots=True)
class Conversation:
    """What has been said. Grows with each turn; the model's context is the limit, and the engine says so."""

    model: str
    system: str | None = None
    turns: list[dict[str, str]] = field(default_factory=list)

    def request(self, prompt: str) -> dict[str, Any]:
        """Returns the body that asks `prompt` after everything said so far."""
        head = [{"role": "system", "content": self.system}] if self.system else []
        messages = [*head, *self.turns, {"role": "user", "content": prompt}]
        return {"model": self.model, "messages": messages, "stream_options": {"include_usage": True}}

    def add(self, prompt: str, answer: str) -> None:
        """Keeps one turn."""
        self.turns += [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]


def chat(
    model: Annotated[
        str | None,
        typer.Option(
            help="A profile or adapter/target. [default: the first profile, else the first engine's model]"
        ),
    ] = None,
    system: Annotated[str | None, typer.Option(help="Instructions that stand before the conversation.")] = None,
    as_json: JsonOption = False,
    edge: EdgeOption = None,
) -> None:
    """Talk with a model. Reads lines from the terminal, or from a pipe until it ends.

    Ctrl-C stops an answer (and its run), Ctrl-D leaves. With --json each turn is one JSON object on a line.
    """
    with edge_api(edge) as api:
        conversation = Conversation(model or choose_model(api.list_models()), system)
        interactive = sys.stdin.isatty()
        if interactive:
            _enable_line_editing()
            render.stderr().print(f"model {render.printable(conversation.model)} · {_HELP}", style="dim")
        failed = False
        for line in _lines(interactive):
            prompt = line.strip()
            if not prompt or (prompt.startswith("/") and interactive and _obey(prompt, conversation)):
                continue
            if interactive and prompt == "/quit":
                break
            failed = not _answer(api, conversation, prompt, as_json=as_json, interactive=interactive)
            # A script must see that its line failed; a person can go on.
            if failed and not interactive:
                raise typer.Exit(ExitCode.FAILED)


def choose_model(models: list[ModelRecord]) -> str:
    """Returns the model to talk with when none is named: a profile, else an engine's, else mock's echo.

    Raises:
        CommandFailed: (usage) nothing is offered by a connected node.
    """
    offered = [model for model in models if model.nodes]
    for wanted in (
        [model for model in offered if model.is_profile],
        [model for model in offered if model.adapter != "mock"],
        [model for model in offered if model.target == "echo"],
        offered,
    ):
        if wanted:
            return wanted[0].name
    raise CommandFailed(
        "no connected node offers a model",
        exit_code=ExitCode.UNAVAILABLE,
        hint="`iop nodes` shows what is connected",
    )


def _answer(api: EdgeApi, conversation: Conversation, prompt: str, *, as_json: bool, interactive: bool) -> bool:
    """Asks, prints the answer as it comes, and keeps the turn. Returns False if it failed."""
    writer = render.AnswerWriter(sys.stdout, sys.stderr)
    pieces: list[str] = []
    usage: Any = None
    finish: str | None = None
    stopped = False
    try:
        with closing(api.stream_chat(conversation.request(prompt))) as chunks:
            for chunk in chunks:
                usage = chunk.get("usage") or usage
                text, reasoning, reason = _delta_of(chunk)
                finish = reason or finish
                pieces.append(text)
                if not as_json:
                    writer.reasoning(reasoning)
                    writer.text(text)
        if not as_json:
            writer.close()
    except KeyboardInterrupt:
        writer.close()
        if not interactive:
            raise
        render.stderr().print("stopped", style="yellow")
        stopped = True
    except CommandFailed as error:
        writer.close()
        _print_failure(error)
        return False
    # What was said before Ctrl-C is part of the conversation, as it is on the screen.
    if not stopped or "".join(pieces):
        conversation.add(prompt, "".join(pieces))
    if as_json:
        answer = {"role": "assistant", "content": "".join(pieces)}
        print_json({"model": conversation.model, "message": answer, "finish_reason": finish, "usage": usage})
    elif finish == "length":
        render.stderr().print("(the answer was cut at the model's limit)", style="yellow")
    return True


def _delta_of(chunk: Mapping[str, Any]) -> tuple[str, str, str | None]:
    """Returns text, reasoning and finish reason of the first choice; engines leave out what they do not have."""
    choices = chunk.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else {}
    delta = (choice.get("delta") if isinstance(choice, dict) else None) or {}
    reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
    text = delta.get("content") or ""
    for call in delta.get("tool_calls") or []:
        function = call.get("function") or {}
        text += str(function.get("name") or "") + str(function.get("arguments") or "")
    finish = choice.get("finish_reason") if isinstance(choice, dict) else None
    return str(text), str(reasoning), finish if isinstance(finish, str) else None


def _print_failure(error: CommandFailed) -> None:
    console = render.stderr()
    layer = f" (layer {error.layer})" if isinstance(error, EdgeRefused) and error.layer else ""
    console.print(f"failed: {render.printable(str(error))}{layer}", style="red")
    if error.hint:
        console.print(f"  {error.hint}")


def _obey(command: str, conversation: Conversation) -> bool:
    """Does what a line that begins with `/` says. Returns False for /quit, which is the loop's."""
    word, _, argument = command.partition(" ")
    console = render.stderr()
    match word:
        case "/quit":
            return False
        case "/new":
            conversation.turns.clear()
            console.print("a new conversation", style="dim")
        case "/model" if argument.strip():
            conversation.model = argument.strip()
            console.print(f"model {render.printable(conversation.model)}", style="dim")
        case _:
            console.print(_HELP, style="dim")
    return True


def _lines(interactive: bool) -> Iterator[str]:
    """Yields what the user says, to the end of input. Ctrl-C at the prompt raises KeyboardInterrupt."""
    if not interactive:
        yield from sys.stdin
        return
    while True:
        with _prompt_on_stderr_if_piped():
            try:
                line = input(_PROMPT)
            except EOFError:
                print(file=sys.stderr)
                return
        yield line


@contextmanager
def _prompt_on_stderr_if_piped() -> Iterator[None]:
    """`iop chat > file` from a terminal: the prompt is not part of the answer."""
    if sys.stdout.isatty():
        yield
        return
    stdout, sys.stdout = sys.stdout, sys.stderr
    try:
        yield
    finally:
        sys.stdout = stdout


def _enable_line_editing() -> None:
    """Arrow keys and a history of this conversation where Python has readline; plain input elsewhere."""
    try:
        import readline
    except ImportError:
        return
    readline.set_auto_history(True)
