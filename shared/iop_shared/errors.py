"""The error tree, its stable codes, and the layers a failure can belong to. Pure.

    IopError
    +-- BadRequest            the caller must change something
    |   +-- InvalidName       a name breaks the rules
    |   +-- InvalidConfig     a configuration file cannot be used
    |   +-- UnknownName       no such node, adapter, target, profile or run (nearest names given)
    |   +-- TooLarge          an input is over a limit
    +-- NotAllowed            wrong, missing or revoked credential
    +-- NoRoute               no node can take the run now
    +-- Busy                  somebody has no room now
    +-- RunFailed             an adapter could not complete a run (code, layer)
    +-- LinkError             the link between edge and node
    |   +-- ProtocolError     the peer broke the protocol
    |   +-- LinkRefused       the edge answered with a Reject
    |   +-- LinkLost          the transport ended or went silent
    +-- Unavailable           something outside us is not there (port in use, store, engine)
    +-- InternalError         our bug

Each has a stable `code`, says whether trying again can help, and builds a sentence that tells what
happened, with which value, against which limit, and what to do next. To a peer or an HTTP client go
only `code` and `str(error)`; the chained original stays in our log.
"""

from difflib import get_close_matches
from enum import StrEnum
from typing import ClassVar


class Layer(StrEnum):
    """What a failure or a check speaks for, lowest first."""

    HOST = "host"
    ACCELERATOR = "accelerator"
    SERVING = "serving"
    TARGET = "target"
    NODE = "node"
    EDGE = "edge"
    TELEMETRY = "telemetry"


class IopError(Exception):
    """Base of all errors that IOP raises on purpose."""

    code: str = "internal"
    retryable: ClassVar[bool] = False


class BadRequest(IopError):
    """The caller must change something; trying the same again cannot help. `param`: the field at fault."""

    code = "bad_request"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        if code is not None:
            self.code = code


class InvalidName(BadRequest):
    """A name breaks the rules for names."""

    code = "invalid_name"


class InvalidConfig(BadRequest):
    """A configuration cannot be used. `problems`: one sentence each, every one found.

    `source`: the file or whatever else they all come from; "" when each problem names its own.
    """

    code = "invalid_config"

    def __init__(self, source: str, problems: list[str]) -> None:
        super().__init__("\n".join(f"{source}: {problem}" if source else problem for problem in problems))
        self.source, self.problems = source, problems


class UnknownName(BadRequest):
    """There is no such thing; `str()` lists the nearest known names."""

    code = "unknown_name"

    def __init__(self, kind: str, name: str, known: list[str], *, param: str | None = None) -> None:
        super().__init__(f"unknown {kind} {name!r}: {nearest(name, known)}", param=param)
        self.code = f"unknown_{kind.replace(' ', '_')}"
        self.kind, self.name, self.known = kind, name, known


class TooLarge(BadRequest):
    """An input is over a limit."""

    code = "too_large"


class NotAllowed(IopError):
    """A credential is missing, wrong or revoked."""

    code = "not_allowed"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code


class NoRoute(IopError):
    """No connected node can take the run now. Nodes come and go, so trying later can help."""

    code = "no_route"
    retryable = True


class Busy(IopError):
    """Every place is taken now, or a bounded queue is full."""

    code = "busy"
    retryable = True


class RunFailed(IopError):
    """A run could not be completed.

    `code` is stable (docs/errors.md), `layer` is the lowest layer whose contract did not hold. Where the
    engine answered with an error of its own, `engine_status` and `engine_body` hold it as it came.
    """

    code = "run_failed"

    def __init__(
        self,
        message: str,
        *,
        code: str,
        layer: Layer,
        retryable: bool = False,
        engine_status: int = 0,
        engine_body: bytes = b"",
    ) -> None:
        super().__init__(message)
        self.code, self.layer, self.may_retry = code, layer, retryable
        self.engine_status, self.engine_body = engine_status, engine_body


class LinkError(IopError):
    """The link between edge and node did not come about or has ended."""

    code = "link_error"
    retryable = True


class ProtocolError(LinkError):
    """The peer sent what the protocol does not allow. `code`: protocol_error, frame_too_large, not_iop ..."""

    code = "protocol_error"

    def __init__(self, message: str, *, code: str = "protocol_error") -> None:
        super().__init__(message)
        self.code = code


class LinkRefused(LinkError):
    """The edge answered with a Reject; `reject_class` says whether and when to try again."""

    def __init__(self, code: str, reject_class: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reject_class = code, reject_class


class LinkLost(LinkError):
    """The transport ended, or nothing was heard for too long."""

    code = "link_lost"


class Unavailable(IopError):
    """Something outside us is not there: a port is in use, a store cannot be opened, an engine is down."""

    code = "unavailable"
    retryable = True

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code


class InternalError(IopError):
    """Our bug. The sentence names the step; the log has the rest."""

    code = "internal"


def nearest(name: str, known: list[str], limit: int = 3) -> str:
    """Returns a phrase that lists the known names nearest to `name`, or says that none is known."""
    if not known:
        return "none is known"
    close = get_close_matches(name, known, n=limit, cutoff=0.5)
    if close:
        return "did you mean " + " or ".join(repr(c) for c in close) + "?"
    # Leaving out one or two would say no less in no less room.
    count = len(known) if len(known) <= 10 else 8
    shown = ", ".join(sorted(known)[:count]) + (f" and {len(known) - count} more" if len(known) > count else "")
    return f"known: {shown}"
