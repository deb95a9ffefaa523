"""What the source says to users, read from its syntax trees: codes, log events, metrics, variables."""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache

from tests.support.source_tree import Module, product_modules

# Constructors that take a code as a positional argument, and which one.
_CODE_POSITION: Mapping[str, int] = {
    "Failed": 0, "Goodbye": 0, "Interrupted": 0, "LimitHit": 0, "LinkRefused": 0, "NodeNotice": 0, "Notice": 0,
    "Refusal": 0, "Reject": 0, "RunRefused": 2, "_Meaning": 0, "_end": 1, "_end_failed": 1, "_give_up": 1,
    "_link_end": 1, "_reject": 0, "close": 0, "fail": 1,
}  # fmt: skip
_CODE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_LOG_METHODS = {"debug", "info", "warning", "error", "exception", "critical"}
_METRIC_METHODS = {"counter", "gauge", "histogram", "gauge_from", "counter_from"}


def _calls() -> Iterator[tuple[Module, str, ast.Call]]:
    for module in product_modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call):
                function = node.func
                name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
                yield module, name, node


def _text(node: ast.AST | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


@cache
def error_codes() -> Mapping[str, str]:
    """Returns every code that the source gives to an error, refusal, notice or goodbye, with a place."""
    found: dict[str, str] = {}
    for module, name, call in _calls():
        candidates = [k.value for k in call.keywords if k.arg in ("code", "error_code")]
        position = _CODE_POSITION.get(name)
        if position is not None and len(call.args) > position:
            candidates.append(call.args[position])
        if name == "UnknownName" and call.args and (kind := _text(call.args[0])):
            found.setdefault(f"unknown_{kind.replace(' ', '_')}", f"{module.shown}:{call.lineno}")
        for candidate in candidates:
            for code in _texts_of(candidate):
                if _CODE.fullmatch(code):
                    found.setdefault(code, f"{module.shown}:{call.lineno}")
    for module in product_modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                for statement in node.body:
                    target = getattr(statement, "target", None) or next(
                        iter(getattr(statement, "targets", [])), None
                    )
                    text = _text(getattr(statement, "value", None))
                    if isinstance(target, ast.Name) and target.id == "code" and text:
                        found.setdefault(text, f"{module.shown}:{statement.lineno}")
    return found


def _texts_of(node: ast.AST) -> Iterator[str]:
    """Yields the texts an argument can be: itself, or the two sides of a condition."""
    text = _text(node)
    if text is not None:
        yield text
    elif isinstance(node, ast.IfExp):
        yield from _texts_of(node.body)
        yield from _texts_of(node.orelse)


@cache
def routing_objections() -> Mapping[str, str]:
    """Returns every reason for which routing turns a node down, with a place."""
    (routing,) = (module for module in product_modules() if module.name == "iop_edge.domain.routing")
    return {
        code: f"{routing.shown}:{node.lineno}"
        for node in ast.walk(routing.tree)
        if isinstance(node, ast.Tuple) and len(node.elts) == 2 and isinstance(node.ctx, ast.Load)
        if (code := _text(node.elts[0])) is not None and _CODE.fullmatch(code)
    }


@cache
def failure_layers() -> frozenset[tuple[str, str, str]]:
    """Returns code, layer and place of every failure whose call names both."""
    found: set[tuple[str, str, str]] = set()
    for module, name, call in _calls():
        layers = [
            node.attr.lower()
            for node in (*call.args, *(k.value for k in call.keywords))
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "Layer"
        ]
        position = _CODE_POSITION.get(name)
        codes = [k.value for k in call.keywords if k.arg == "code"]
        if position is not None and len(call.args) > position:
            codes.append(call.args[position])
        for code in (text for node in codes for text in _texts_of(node)):
            found.update((code, layer, f"{module.shown}:{call.lineno}") for layer in layers)
    return frozenset(found)


@cache
def log_events() -> Mapping[str, str]:
    """Returns every event name that is logged at info or above, with its level and a place."""
    found: dict[str, str] = {}
    for module, name, call in _calls():
        function = call.func
        is_log = (
            isinstance(function, ast.Attribute)
            and name in _LOG_METHODS - {"debug"}
            and "log" in ast.unparse(function.value)
        )
        # `write = log.warning if ... else log.info`, then `write("edge_unreachable", ...)`
        is_chosen = isinstance(function, ast.Name) and name == "write" and bool(call.keywords)
        if (is_log or is_chosen) and call.args:
            for event in _texts_of(call.args[0]):
                found.setdefault(event, f"{module.shown}:{call.lineno}")
    return found


@cache
def metrics() -> Mapping[str, str]:
    """Returns every metric that the source makes, with a place."""
    found: dict[str, str] = {}
    for module, name, call in _calls():
        if name in _METRIC_METHODS and call.args and (metric := _text(call.args[0])) and metric.startswith("iop_"):
            found.setdefault(metric, f"{module.shown}:{call.lineno}")
    return found


@cache
def quoted_words() -> frozenset[str]:
    """Returns every string constant of the source, to see whether a documented word still exists."""
    return frozenset(
        node.value
        for module in product_modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
