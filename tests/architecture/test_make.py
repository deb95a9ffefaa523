"""The targets: each explained, each one line, and the ones that the README names exist."""

import re
import subprocess

from tests.support.source_tree import ROOT

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE)


def test_help_is_the_default_and_lists_every_target_with_a_text() -> None:
    shown = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True).stdout

    listed = dict(re.findall(r"^make ([a-z-]+) +(\S.*)$", shown, re.MULTILINE))
    assert sorted(listed) == sorted(TARGETS)
    assert all(listed.values())


def test_targets_have_one_line_and_no_logic() -> None:
    recipes = re.findall(r"^([a-z-]+):[^\n]*\n((?:\t[^\n]*\n)*)", MAKEFILE, re.MULTILINE)

    assert [name for name, recipe in recipes if recipe.count("\n") > 1] == []
    assert [name for name, recipe in recipes if re.search(r"\b(if|for|while)\b", recipe)] == []


def test_every_target_that_the_documents_name_exists() -> None:
    documents = [ROOT / "README.md", ROOT / "bench" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

    unknown = {
        f"{document.relative_to(ROOT)}: make {name}"
        for document in documents
        for name in re.findall(r"`make ([a-z-]+)`|^ {4}make ([a-z-]+)", document.read_text("utf-8"), re.MULTILINE)
        for name in name
        if name and name not in TARGETS
    }

    assert unknown == set()


def test_the_one_script_runs_the_tests_as_the_readme_says() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")

    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
    assert [line.split()[1] for line in script.splitlines() if line.startswith("step ")] == [
        "venv", "check", "test-llama", "test",
    ]  # fmt: skip
