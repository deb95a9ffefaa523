"""Rules for the source that no linter knows."""

import ast
import re

import pytest
from tests.support.source_tree import PACKAGES, ROOT, product_modules, texts, tracked_files

_EMPTY_NAMES = {"utils", "util", "manager", "helper", "helpers", "base", "common", "misc"}


def test_every_module_says_what_lives_in_it() -> None:
    silent = [m.shown for m in product_modules() if not ast.get_docstring(m.tree)]

    assert silent == []


def test_names_of_modules_say_something() -> None:
    empty = [m.shown for m in product_modules() if set(m.path.stem.split("_")) & _EMPTY_NAMES]

    assert empty == []


def test_tasks_are_created_in_one_place_only() -> None:
    makers = {"create_task", "ensure_future", "run_coroutine_threadsafe"}

    found = [
        f"{module.shown}:{node.lineno}"
        for module in product_modules()
        if module.name != "iop_shared.aio.tasks"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and node.attr in makers
    ]

    assert found == [], "use iop_shared.aio.tasks.TaskOwner"


def test_nothing_sleeps_on_the_loop() -> None:
    on_threads = {"iop_shared.aio.sqlite_file"}  # the connection's own thread
    found = [
        f"{module.shown}:{node.lineno}"
        for module in product_modules()
        if "client" not in module.name
        and module.name not in on_threads  # the client's commands are plain programs
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute)
        and node.attr == "sleep"
        and isinstance(node.value, ast.Name)
        and node.value.id == "time"
    ]

    assert found == []


def test_errors_are_ours_at_every_door() -> None:
    """What is raised on purpose is in the tree of iop_shared.errors, or one of these for callers in the code."""
    for_callers = {
        "AssertionError", "KeyError", "NotImplementedError", "RuntimeError", "StopAsyncIteration",
        "TypeError", "ValueError",
    }  # fmt: skip
    forbidden = {"Exception", "BaseException", "OSError", "SystemError"}

    found = [
        f"{module.shown}:{node.lineno} raises {name}"
        for module in product_modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Raise) and (name := _raised(node)) in forbidden - for_callers
    ]

    assert found == []


def test_nothing_is_left_unfinished() -> None:
    """The service and relay hold signatures until they are filled in; a product has none left."""
    found = [
        f"{module.shown}:{node.lineno}"
        for module in product_modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Raise) and _raised(node) == "NotImplementedError"
    ]

    assert found == []


def test_tests_have_unique_module_paths_and_no_packages() -> None:
    packages = [
        str(p.relative_to(ROOT)) for p in tracked_files() if p.parts[-1] == "__init__.py" and "tests" in p.parts
    ]

    assert packages == []


# Split so that this file does not hold what it looks for.
_OF_A_MACHINE = re.compile(
    r"(?<![\w./-])/(?:work|farm|root)/(?=\w)|/home/\w+/|[a-z]+-pypi|"
    + r"\b(?:files\.python" + r"hosted|pypi\.(?:org|python)|registry\.npm" + r"js)\b|\.(?:whl|tar\.gz)\b.*https?:"
)  # fmt: skip


def test_no_file_names_a_machine_or_a_registry() -> None:
    found = [
        f"{name}:{number}: {line.strip()[:80]}"
        for name, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        if _OF_A_MACHINE.search(line) and name != "tests/architecture/test_source_rules.py"
    ]

    assert found == []


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_each_package_is_typed_and_explains_itself(package: str) -> None:
    folder = PACKAGES[package]

    assert (folder / package / "py.typed").is_file()
    assert len((folder / "README.md").read_text(encoding="utf-8")) > 500


@pytest.mark.parametrize("folder", ["proto", "bench"])
def test_folders_beside_the_packages_explain_themselves(folder: str) -> None:
    assert len((ROOT / folder / "README.md").read_text(encoding="utf-8")) > 300


def _raised(node: ast.Raise) -> str:
    raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
    return raised.id if isinstance(raised, ast.Name) else ""
