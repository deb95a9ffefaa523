"""Messages to and from the protobuf bytes of a frame. Only this package knows the wire's classes.

What a newer peer may say and this version does not know never ends a link: enums are read as the comments in
the .proto files say, an unknown frame becomes an UnknownMessage, a run whose operation is unknown an
UnreadableRun. What no version says (bytes that are no Frame, JSON that is none) is a ProtocolError.
"""

from google.protobuf.message import DecodeError

from iop_shared.codec.link_messages import LINK_READERS, LINK_WRITERS
from iop_shared.codec.run_messages import RUN_READERS, RUN_WRITERS
from iop_shared.codec.runtime_events import fill_runtime_event, read_runtime_event
from iop_shared.errors import InternalError, ProtocolError
from iop_shared.link.messages import Message, Received, UnknownMessage
from iop_shared.runtime_events import RuntimeEvent
from iop_shared.wire.v1.envelope_pb2 import Frame

_FILL = {**LINK_WRITERS, **RUN_WRITERS}
_READ = {**LINK_READERS, **RUN_READERS}


def encode_message(message: Message) -> bytes:
    """Returns the payload of the frame that carries `message` (without the length before it).

    Raises:
        InternalError: a value that the wire cannot carry: a negative count, text with half a surrogate pair,
            settings that are no JSON. The sentence names the type and nothing of the content.
    """
    frame = Frame()
    try:
        if type(message) is RuntimeEvent:
            fill_runtime_event(frame.runtime_event, message)
        else:
            _FILL[type(message)](frame, message)
    except (ValueError, TypeError, KeyError) as error:
        name = type(message).__name__
        raise InternalError(f"{name} holds a value that the wire cannot carry ({type(error).__name__})") from error
    return frame.SerializeToString()


def decode_message(payload: bytes) -> Received:
    """Returns the message in a frame's payload.

    Raises:
        ProtocolError: the bytes are no Frame, or a field of it cannot be what it says.
    """
    try:
        frame = Frame.FromString(payload)
    except DecodeError:
        raise ProtocolError(f"a frame of {len(payload)} bytes is not a protobuf Frame of package iop.v1") from None
    name = frame.WhichOneof("body")
    if name == "runtime_event":
        return read_runtime_event(frame.runtime_event)
    if name is None:
        if not payload:
            raise ProtocolError("a frame of 0 bytes came; every frame carries a message")
        return UnknownMessage(len(payload))
    return _READ[name](getattr(frame, name))
