"""Listening and dialling over real sockets, and every bad peer on the link's port."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
from tests.support.fake_edge import FakeEdge
from tests.support.fake_node import FakeNode

from iop_shared.aio.link_io import dial_link
from iop_shared.codec import encode_message
from iop_shared.errors import LinkRefused, ProtocolError, Unavailable
from iop_shared.framing import encode_frame, encode_prefix
from iop_shared.http_listen import ListenAddress
from iop_shared.ids import new_boot_id
from iop_shared.link.auth import new_token
from iop_shared.link.effects import LinkEnd
from iop_shared.link.machine import LinkTimes
from iop_shared.link.messages import Challenge, GoAway, Goodbye, Heartbeat, OpenRuns, RejectClass

pytestmark = pytest.mark.both_loops
TOKEN = new_token()


@pytest.fixture
async def edge() -> AsyncIterator[FakeEdge]:
    async with FakeEdge.listening(TOKEN) as edge:
        yield edge


async def talk(edge: FakeEdge, data: bytes, *, end: bool = False) -> tuple[LinkEnd, bytes]:
    """Sends `data` to the link port; returns how the edge ended it, and all that it answered."""
    reader, writer = await asyncio.open_connection(edge.address.host, edge.address.port)
    try:
        writer.write(data)
        if end:
            writer.write_eof()
        ended = await edge.wait_ended()
        async with asyncio.timeout(5):
            try:
                answer = await reader.read()
            except ConnectionError:
                answer = b""
    finally:
        writer.close()
        try:
            await writer.wait_closed()
        except ConnectionError:
            pass  # the edge was faster
    return ended, answer


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (
            b"GET /v1/models HTTP/1.1\r\nHost: edge\r\n\r\n",
            "this is an HTTP request, not an iop link: HTTP clients belong on the [http] port",
        ),
        (
            b"\x16\x03\x01\x00\xf8\x01\x00\x00\xf4\x03\x03" + bytes(240),
            "this is a TLS client hello, not an iop link: this port speaks plain TCP; dial it without TLS",
        ),
        (
            b"SSH-2.0-OpenSSH_9.6\r\n",
            "this is an SSH banner, not an iop link: that is an SSH server; dial the edge's [link] port",
        ),
        (b"hello there\n", "this is text, not an iop link: only iop nodes and edges speak on a link port"),
    ],
    ids=["http", "tls", "ssh", "text"],
)
async def test_other_protocol_on_the_port_is_one_clear_line(edge: FakeEdge, data: bytes, sentence: str) -> None:
    end, _ = await talk(edge, data)

    assert end.code == "not_iop"
    assert end.message.partition(": ")[2] == sentence
    assert isinstance(end.to_error(), ProtocolError)


@pytest.mark.parametrize(
    ("data", "ends", "code", "sentence"),
    [
        (
            encode_prefix(16385),
            False,
            "frame_too_large",
            "a frame of 16385 bytes exceeds max_frame_bytes=16384; closing the link",
        ),
        (
            b"\xff\xfe\xfd\xfc\xfb",
            False,
            "frame_too_large",
            "a frame of 4294901244 bytes exceeds max_frame_bytes=16384; closing the link",
        ),
        (
            encode_prefix(100) + b"abc",
            True,
            "frame_truncated",
            "the stream ended after 3 of the 100 bytes of a frame",
        ),
        (
            encode_frame(b"\xff\xff\xff\xff"),
            False,
            "protocol_error",
            "a frame of 4 bytes is not a protobuf Frame of package iop.v1",
        ),
        (
            encode_frame(encode_message(Heartbeat(1))),
            False,
            "protocol_error",
            "Heartbeat came in state await_hello; expected Goodbye or Hello",
        ),
        (
            encode_frame(encode_message(Challenge(b"n" * 32, "e", "1"))),
            False,
            "protocol_error",
            "Challenge came from a node, but only an edge may send it",
        ),
        (
            encode_frame(encode_message(OpenRuns())),
            False,
            "protocol_error",
            "OpenRuns came in state await_hello; expected Goodbye or Hello",
        ),
    ],
    ids=["over limit", "noise", "truncated", "no protobuf", "out of turn", "wrong direction", "no hello"],
)
async def test_bad_frame_before_authentication(
    edge: FakeEdge, data: bytes, ends: bool, code: str, sentence: str
) -> None:
    end, answer = await talk(edge, data, end=ends)

    assert end.code == code
    assert end.message.partition(": ")[2] == sentence
    # The challenge, and the reason as a Goodbye.
    assert answer.endswith(encode_frame(encode_message(Goodbye(code, sentence))))


async def test_frame_over_the_limit_on_an_open_link(edge: FakeEdge) -> None:
    node = FakeNode(edge.address, TOKEN)
    await node.connect()

    node.send_raw(encode_prefix(1024 * 1024 + 1))

    end = await node.wait_end()
    sentence = "a frame of 1048577 bytes exceeds max_frame_bytes=1048576; closing the link"
    assert end.code == "frame_too_large"
    assert end.message == f"{edge.address}: the edge ended the link (frame_too_large): {sentence}"
    assert (await edge.wait_ended()).was_open


async def test_node_tells_a_misbehaving_edge_too(edge: FakeEdge) -> None:
    node = FakeNode(edge.address, TOKEN)
    await node.connect()
    session = await edge.wait_session()

    session.send_raw(encode_frame(b"\xff\xff"))

    end = await session.wait_closed()
    assert end.code == "protocol_error"
    assert end.message.endswith("a frame of 2 bytes is not a protobuf Frame of package iop.v1")
    assert (await node.wait_end()).message.startswith(f"{edge.address}: a frame of 2 bytes is not")


async def test_silent_peer_is_closed_after_the_handshake_deadline() -> None:
    edge = FakeEdge(TOKEN)
    await edge.start(times=LinkTimes(handshake_timeout_s=0.1, close_timeout_s=0.1))
    try:
        end, _ = await talk(edge, b"")
    finally:
        await edge.aclose()

    assert end.code == "handshake_timeout"
    assert end.message.partition(": ")[2] == (
        "no link within 0.1 s (state await_hello); the other end said nothing that a node says"
    )


async def test_edge_that_never_answers_is_given_up(edge: FakeEdge) -> None:
    edge.is_mute = True
    node = FakeNode(edge.address, TOKEN, times=LinkTimes(handshake_timeout_s=0.1, close_timeout_s=0.1))

    await node.dial()
    end = await node.wait_end()

    assert end.code == "handshake_timeout"
    assert end.message == (
        f"{edge.address}: no link within 0.1 s (state await_welcome); "
        "check that the address is an edge's link port ([link] listen in edge.toml)"
    )


async def test_node_that_dials_an_ssh_server_says_so() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        address = ListenAddress("127.0.0.1", server.sockets[0].getsockname()[1])
        node = FakeNode(address, TOKEN)
        await node.dial()
        end = await node.wait_end()

    assert end.message == (
        f"{address}: this is an SSH banner, not an iop link: that is an SSH server; dial the edge's [link] port"
    )


async def test_handshakes_are_bounded_and_the_rest_is_told_to_come_later() -> None:
    edge = FakeEdge(TOKEN)
    edge.is_mute = True
    await edge.start(max_handshakes=2)
    waiting = [FakeNode(edge.address, TOKEN) for _ in range(2)]
    try:
        for node in waiting:
            await node.dial()
        late = FakeNode(edge.address, TOKEN)
        with pytest.raises(LinkRefused) as caught:
            await late.connect()
        await late.wait_end()
        assert (caught.value.code, caught.value.reject_class) == ("edge_busy", RejectClass.RETRY)
        assert "2 handshakes are under way, of at most 2; trying again later will do" in str(caught.value)

        # One place becomes free.
        await waiting[0].cut()
        await edge.wait_ended(2)
        edge.is_mute = False
        await late.connect()
        await late.aclose()
    finally:
        for node in waiting:
            await node.cut()
        await edge.aclose()


async def test_no_common_protocol(edge: FakeEdge) -> None:
    node = FakeNode(edge.address, TOKEN, protocol_range=(2, 2))

    with pytest.raises(LinkRefused) as caught:
        await node.connect()
    await node.wait_end()

    assert (caught.value.code, caught.value.reject_class) == ("protocol_version", RejectClass.FATAL)
    gap = "no common protocol: edge (iop-platform 0-test) speaks 1 to 1, node speaks 2 to 2; update the edge"
    assert str(caught.value) == f"{edge.address}: {gap}"
    assert (await edge.wait_ended()).message.endswith(f"the node ended the link (protocol_version): {gap}")


async def test_listener_stops_accepting_and_leaves_links_alone(edge: FakeEdge) -> None:
    node = FakeNode(edge.address, TOKEN)
    await node.connect()
    assert edge._listener is not None
    await edge._listener.stop()
    await edge._listener.stop()

    with pytest.raises(Unavailable):
        await FakeNode(edge.address, TOKEN).dial()
    assert node.is_open
    assert len(edge._listener.links) == 1
    await node.aclose()
    await (await edge.wait_session()).wait_closed()
    assert edge._listener.links == frozenset()


async def test_port_in_use(edge: FakeEdge) -> None:
    with pytest.raises(Unavailable) as caught:
        await FakeEdge(TOKEN).start(edge.address)

    assert caught.value.code == "port_in_use"
    assert str(caught.value) == (
        f"link: {edge.address} is already in use; stop the program that listens there, or choose another address"
    )


async def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = ListenAddress("127.0.0.1", taken.getsockname()[1])  # bound, not listening: refused
        with pytest.raises(Unavailable) as caught:
            await FakeNode(address, TOKEN).dial()

    assert caught.value.code == "edge_unreachable"
    assert str(caught.value) == (
        f"cannot reach the edge {address} (127.0.0.1: Connection refused): check that `iop-edge run` runs there "
        "and that this is its [link] port"
    )


@pytest.mark.asyncio(loop_factories=["asyncio"])  # uvloop's loop takes no other resolver
async def test_every_address_of_a_name_is_tried(edge: FakeEdge, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as dead:
        dead.bind(("127.0.0.1", 0))
        ports = (dead.getsockname()[1], edge.address.port)

        async def resolve(*_: object, **__: object) -> object:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)) for port in ports]

        # The one thing that no stand-in server can play: a name with a dead and a live address.
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
        node = FakeNode(ListenAddress("edge.test", 7443), TOKEN)
        await node.connect()
        await node.aclose()


async def test_name_that_does_not_resolve() -> None:
    address = ListenAddress("no-such-host.invalid", 7443)

    with pytest.raises(Unavailable) as caught:
        await FakeNode(address, TOKEN).dial()

    assert caught.value.code == "name_unresolved"
    assert str(caught.value).startswith("cannot find the edge no-such-host.invalid:7443: ")
    assert str(caught.value).endswith("; check the name, and that this machine can resolve it")


async def test_dial_that_is_cancelled_leaves_no_socket() -> None:
    # 192.0.2.0/24 is for documentation (RFC 5737): nothing answers, or the network says so at once.
    address = ListenAddress("192.0.2.1", 7443)
    node = FakeNode(address, TOKEN)

    with pytest.raises((TimeoutError, Unavailable)):
        async with asyncio.timeout(0.05):
            await dial_link(address, node._make_handler, node.identity)


async def test_connect_timeout_is_named() -> None:
    # A listening socket whose backlog is full answers no further connection.
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = ListenAddress("127.0.0.1", full.getsockname()[1])
        fillers = []
        try:
            for _ in range(4):
                filler = socket.socket()
                filler.setblocking(False)
                filler.connect_ex((address.host, address.port))
                fillers.append(filler)
            node = FakeNode(address, TOKEN)
            with pytest.raises(Unavailable) as caught:
                await dial_link(address, node._make_handler, node.identity, connect_timeout_s=0.1)
        finally:
            for filler in fillers:
                filler.close()

    assert "(127.0.0.1: no answer in time)" in str(caught.value)


async def test_restarted_node_meets_a_restarted_edge() -> None:
    edge = FakeEdge(TOKEN)
    await edge.start()
    node = FakeNode(edge.address, TOKEN, boot_id=new_boot_id())
    for _ in range(3):
        await node.connect()
        session = edge.sessions[-1]
        session.send(GoAway("restart"))
        await edge.aclose(cut=True)
        await node.wait_end()
        await edge.start(edge.address)
    await edge.aclose()

    assert [w.epoch for w in node.welcomes] == [1, 2, 3]
