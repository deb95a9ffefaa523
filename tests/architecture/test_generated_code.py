"""The generated wire code is what proto/ says, and the wire keeps its promises of evolution."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor import FieldDescriptor
from tests.support.source_tree import GENERATED, ROOT

from iop_shared.wire.v1 import envelope_pb2, link_pb2, run_pb2

PROTO = ROOT / "proto"
SOURCES = sorted(PROTO.rglob("*.proto"))


def test_there_are_sources() -> None:
    assert [p.name for p in SOURCES] == ["envelope.proto", "link.proto", "run.proto"]


@pytest.mark.slow
def test_generated_code_is_fresh(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed: run `make venv`")
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(PROTO)]
    command += [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", *map(str, SOURCES)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)

    fresh = {p.relative_to(tmp_path / "iop_shared" / "wire"): p.read_bytes() for p in tmp_path.rglob("*_pb2.py*")}
    ours = {p.relative_to(GENERATED): p.read_bytes() for p in GENERATED.rglob("*_pb2.py*")}

    assert sorted(fresh) == sorted(ours)
    stale = [str(name) for name in fresh if fresh[name] != ours[name]]
    assert stale == [], "run `make proto` and commit what it writes"


_FIELD = re.compile(
    r"^\s*(?:repeated\s+|optional\s+)?[\w.<>, ]+?\s+(\w+)\s*=\s*(\d+)\s*(?:\[.*\])?;", re.MULTILINE
)
# Numbers whose unit must stand in the name. A count needs none.
_BARE_UNIT = re.compile(r"(?:^|_)(?:timeout|interval|duration|grace|delay|latency|size|memory|deadline)$")


@pytest.mark.parametrize("source", SOURCES, ids=lambda p: p.name)
def test_names_of_quantities_carry_their_unit(source: Path) -> None:
    fields = [name for name, _ in _FIELD.findall(source.read_text(encoding="utf-8"))]

    assert fields or source.name == "envelope.proto"
    assert [name for name in fields if _BARE_UNIT.search(name)] == []


def test_every_frame_says_who_sends_it() -> None:
    frame = (PROTO / "iop_shared/wire/v1/envelope.proto").read_text(encoding="utf-8").partition("oneof body")[2]
    silent = [
        line.strip()
        for line in frame.splitlines()
        if _FIELD.match(line) and not re.search(r"// (edge -> node|node -> edge|both)", line)
    ]

    assert silent == []


def test_no_field_was_renumbered_renamed_or_retyped() -> None:
    """Peers of other versions read by number and type. What proto/fields.txt lists stays as it is for ever."""
    now = {line.split(" = ")[0]: line for line in _all_fields()}
    listed = [line for line in (PROTO / "fields.txt").read_text("utf-8").splitlines() if not line.startswith("#")]

    changed = [line for line in listed if now.get(line.split(" = ")[0]) not in (line, None)]
    assert changed == [], "give a new meaning a new number; see proto/README.md"
    gone = [line for line in listed if line.split(" = ")[0] not in now and not _is_reserved(line)]
    assert gone == [], "a removed field's number and name are reserved; see proto/README.md"
    new = sorted(set(now.values()) - set(listed))
    assert new == [], "add these lines to proto/fields.txt: " + "\n".join(new)


def _all_fields() -> list[str]:
    """Returns a line `Message.number = name type` for each field and value of the wire."""
    lines = []
    for module in (envelope_pb2, link_pb2, run_pb2):
        file = module.DESCRIPTOR
        for message in file.message_types_by_name.values():
            for field in message.fields:
                if field.message_type is not None:
                    kind = field.message_type.name
                else:
                    kind = field.enum_type.name if field.enum_type is not None else _TYPES[field.type]
                label = "repeated " if field.is_repeated else ""
                lines.append(f"{message.name}.{field.number} = {field.name} {label}{kind}")
        for enum in file.enum_types_by_name.values():
            lines.extend(f"{enum.name}.{value.number} = {value.name}" for value in enum.values)
    return sorted(lines)


_TYPES = {
    FieldDescriptor.TYPE_BOOL: "bool", FieldDescriptor.TYPE_BYTES: "bytes", FieldDescriptor.TYPE_DOUBLE: "double",
    FieldDescriptor.TYPE_INT64: "int64", FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_UINT32: "uint32", FieldDescriptor.TYPE_UINT64: "uint64",
}  # fmt: skip


def _is_reserved(line: str) -> bool:
    message, number = line.split(" = ")[0].split(".")
    name = line.split(" = ")[1].split()[0]
    for source in SOURCES:
        body = re.search(rf"^(?:message|enum) {message} {{(.*?)^}}", source.read_text("utf-8"), re.M | re.S)
        if body is not None:
            reserved = " ".join(re.findall(r"reserved ([^;]*);", body[1]))
            return number in re.findall(r"\d+", reserved) and f'"{name}"' in reserved
    return False
