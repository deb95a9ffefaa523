"""An EventSink that keeps what it is given."""

import asyncio
from collections.abc import Callable

from iop_shared.runtime_events import Body, EngineJson, Reasoning, Text


class RecordingSink:
    """Keeps bodies; can be made unready, and lets a test wait for what an adapter emits."""

    def __init__(self) -> None:
        self.bodies: list[Body] = []
        self.engine = ""
        self.is_cancel_confirmed = False
        self.waits = 0
        self.ready = asyncio.Event()
        self.ready.set()
        self._changed = asyncio.Event()

    def emit(self, body: Body) -> None:
        self.bodies.append(body)
        self._changed.set()

    def set_engine(self, engine: str) -> None:
        self.engine = engine

    async def wait_ready(self) -> None:
        self.waits += 1
        self._changed.set()
        await self.ready.wait()

    def confirm_cancel(self) -> None:
        self.is_cancel_confirmed = True

    async def wait(self, holds: Callable[[], bool], within_s: float = 2.0) -> None:
        """Waits until `holds`, looked at after each body."""
        async with asyncio.timeout(within_s):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    async def wait_output(self) -> None:
        """Waits for the first output."""
        await self.wait(lambda: bool(self.bodies))

    @property
    def text(self) -> str:
        """All text, joined."""
        return "".join(body.text for body in self.bodies if isinstance(body, Text))

    @property
    def reasoning(self) -> str:
        """All thinking, joined."""
        return "".join(body.text for body in self.bodies if isinstance(body, Reasoning))

    @property
    def chunks(self) -> list[bytes]:
        """All of the engine's JSON, in order."""
        return [chunk for body in self.bodies if isinstance(body, EngineJson) for chunk in body.chunks]
