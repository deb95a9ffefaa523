"""The documents name everything that the source says to users, and nothing that it no longer says."""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer.main
from tests.support import said_in_source
from tests.support.source_tree import ROOT, tracked_files

DOCS = ROOT / "docs"
PAGES = [p for p in tracked_files() if p.suffix == ".md" and "tests" not in p.parts]
_ROW = re.compile(r"^\| (`[^|]*`) \|(.*)\|$", re.MULTILINE)


def _rows(page: str, heading: str = "") -> dict[str, list[str]]:
    """Returns the rows of the tables of a page, or of one section, by each `name` in their first cell."""
    text = (DOCS / page).read_text(encoding="utf-8")
    if heading:
        found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
        assert found, f"docs/{page} has no section {heading!r}"
        text = found[1]
    rows: dict[str, list[str]] = {}
    for names, cells in _ROW.findall(text):
        for name in re.findall(r"`([^`]+)`", names):
            assert not heading or name not in rows, f"docs/{page} lists {name} twice under {heading!r}"
            rows[name] = [cell.strip() for cell in cells.split("|")]
    return rows


def _explained_codes() -> set[str]:
    """Returns the codes with a meaning; the table of statuses explains none."""
    text = (DOCS / "errors.md").read_text(encoding="utf-8").partition("## Over HTTP")[0]
    return {name for names, _ in _ROW.findall(text) for name in re.findall(r"`([^`]+)`", names)}


def _missing(said: Mapping[str, str], documented: Iterable[str]) -> list[str]:
    return [f"{name} ({place})" for name, place in sorted(said.items()) if name not in documented]


# --- codes ---------------------------------------------------------------------------------------------------


def _table_codes() -> dict[str, str]:
    from iop_edge.domain.refusal_rules import REFUSAL_RULES
    from iop_edge.surfaces.http_errors import ERRORS
    from iop_shared.link.rejects import REJECT_CLASSES

    return dict.fromkeys((*ERRORS, *REFUSAL_RULES, *REJECT_CLASSES), "a table of codes")


def test_every_code_is_explained() -> None:
    said = {**_table_codes(), **said_in_source.error_codes()}

    assert _missing(said, _explained_codes()) == []


def test_every_explained_code_exists() -> None:
    known = said_in_source.quoted_words() | said_in_source.error_codes().keys()

    assert sorted(_explained_codes() - known) == []


def test_the_http_status_of_each_code_is_told_as_it_is() -> None:
    from iop_edge.surfaces.http_errors import ERRORS

    told = {code: cells[0] for code, cells in _rows("errors.md", "Over HTTP").items()}

    assert told == {code: str(row.status) for code, row in ERRORS.items()}


def test_the_layer_of_each_failure_is_told_as_it_is() -> None:
    told = {code: cells[0] for code, cells in _rows("errors.md", "A run failed").items()}

    wrong = {
        f"{code}: {layer} ({place})"
        for code, layer, place in said_in_source.failure_layers()
        if told.get(code, layer) not in (layer, "as told")
    }
    assert wrong == set()


def test_each_reject_is_told_with_its_class() -> None:
    from iop_shared.link.rejects import REJECT_CLASSES

    told = {code: cells[0] for code, cells in _rows("errors.md", "An edge refuses a node").items()}

    assert told == {code: kind.value for code, kind in REJECT_CLASSES.items()}


def test_each_refusal_is_told_with_what_the_edge_does() -> None:
    from iop_edge.domain.refusal_rules import REFUSAL_RULES

    told = {code: cells[0] for code, cells in _rows("errors.md", "A node refuses a run").items()}

    assert told == {code: rule.value for code, rule in REFUSAL_RULES.items()}


def test_each_reason_of_routing_is_explained_and_exists() -> None:
    assert set(_rows("errors.md", "A node is passed over")) == set(said_in_source.routing_objections())


def test_the_exit_codes_are_told_as_they_are() -> None:
    from iop_shared.exit_codes import ExitCode

    assert set(_rows("exit-codes.md")) == {str(code.value) for code in ExitCode}


# --- events, logs, metrics -----------------------------------------------------------------------------------


def test_every_event_of_the_bus_is_explained_and_exists() -> None:
    from iop_edge.domain.event_kinds import EVENT_KINDS

    assert set(_rows("events.md", "Events of the edge")) == set(EVENT_KINDS)


def test_every_logged_event_is_explained_and_exists() -> None:
    told = _rows("events.md", "Log lines")

    assert _missing(said_in_source.log_events(), told) == []
    assert [name for name in told if name not in said_in_source.quoted_words()] == []


def test_names_of_events_are_noun_verb_past() -> None:
    names = {*_rows("events.md", "Events of the edge"), *_rows("events.md", "Log lines")}

    assert [name for name in names if not re.fullmatch(r"[a-z]+(_[a-z]+)+", name)] == []


def test_every_metric_is_explained_and_exists() -> None:
    told, made = _rows("metrics.md"), said_in_source.metrics()

    assert _missing(made, told) == []
    assert [name for name in told if name.startswith("iop_") and name not in made] == []


# --- settings ------------------------------------------------------------------------------------------------


def _setting_names() -> Iterator[tuple[str, str]]:
    from iop_edge.config import EdgeSettings
    from iop_node.config import NodeSettings
    from iop_shared.config_file import key_paths

    for section, model in (("edge.toml", EdgeSettings), ("node.toml", NodeSettings)):
        for keys in key_paths(model):
            *table, key = keys
            name = ".".join("NAME" if part == "*" else part for part in table)
            yield section, f"[{name}] {key}" if name else key


def test_every_setting_is_explained_and_exists() -> None:
    for section in ("edge.toml", "node.toml"):
        assert set(_rows("config.md", section)) == {name for page, name in _setting_names() if page == section}


def test_every_setting_of_an_adapter_is_explained() -> None:
    from iop_node.adapters.mock_script import MockSettings
    from iop_node.adapters.vllm_settings import VllmSettings

    for heading, model in (("mock", MockSettings), ("vllm", VllmSettings)):
        assert set(_rows("config.md", f"Settings of {heading}")) == set(model.model_fields)


# --- pages ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")

    broken = [
        target
        for target in re.findall(r"\]\(([^)\s]+)\)", text)
        if "://" not in target
        and not target.startswith("#")
        and not (page.parent / target.partition("#")[0]).exists()
    ]

    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_that_a_page_names_exist(page: Path) -> None:
    roots = ("edge", "node", "shared", "proto", "bench", "deploy", "docs", "tests")
    text = page.read_text(encoding="utf-8")

    named = re.findall(rf"`((?:{'|'.join(roots)})/[\w./-]+\.(?:py|md|proto|toml|service|txt))`", text)
    assert [name for name in named if not (ROOT / name).is_file()] == []


def _commands() -> dict[str, Any]:
    from iop_edge.program import app as edge
    from iop_node.program import app as node
    from iop_shared.client.program import app as client

    return {
        name: typer.main.get_command(app)
        for name, app in (("iop", client), ("iop-edge", edge), ("iop-node", node))
    }


def _shown_commands(text: str) -> Iterator[str]:
    for block in re.findall(r"^```sh\n(.*?)^```|((?:^ {4}\S.*\n)+)", text, re.MULTILINE | re.DOTALL):
        for line in (block[0] or block[1]).replace("\\\n", " ").splitlines():
            yield line.strip()
    yield from re.findall(r"`((?:iop|iop-edge|iop-node) [^`]+)`", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_that_a_page_shows_exist_with_their_options(page: Path) -> None:
    """A command that a page shows must parse: its path and its long options."""
    commands, wrong = _commands(), []

    for line in _shown_commands(page.read_text(encoding="utf-8")):
        words = shlex.split(line.partition(" #")[0], posix=True) if line.count("'") % 2 == 0 else line.split()
        while words and re.fullmatch(r"[A-Z_]+=.*|sudo", words[0]):
            words = words[3:] if words[:2] == ["sudo", "-u"] else words[1:]
        name = words[0].rpartition("/")[2] if words else ""
        if name not in commands:
            continue
        command = commands[name]
        rest = words[1:]
        while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
            found = command.commands.get(rest[0])
            if found is None:
                wrong.append(f"{line}: {name} has no command {rest[0]!r}")
                break
            command, rest = found, rest[1:]
        options = {text for option in command.params for text in (*option.opts, *option.secondary_opts)}
        options |= {"--help", "-h"}
        wrong += [
            f"{line}: no option {word}"
            for word in rest
            if word.startswith("--") and word.partition("=")[0] not in options and word != "--"
        ]

    assert wrong == []
