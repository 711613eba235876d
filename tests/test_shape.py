"""The shape of the code: few files in the root, files and functions that one can read, arrows that point one way.

Layers are import-linter's (`make lint`); what it cannot see is here.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "src" / "grapevine"
FILES = sorted(ROOT.rglob("*.py"))
JOBS = {"label", "train", "clean", "compare"}  # the four public functions of grapevine/__init__.py
MOST_FILE, MOST_FUNCTION, MOST_PARAMETERS, MOST_IN_ROOT = 450, 60, 10, 5


def functions(path: Path) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_the_root_holds_little():
    assert len(list(ROOT.glob("*.py"))) <= MOST_IN_ROOT


@pytest.mark.parametrize("path", FILES, ids=name)
def test_files_and_functions_can_be_read(path):
    assert len(path.read_text().splitlines()) <= MOST_FILE
    for function in functions(path):
        assert function.end_lineno - function.lineno < MOST_FUNCTION, function.name
        arguments = [a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
        public = path.parent == ROOT and function.name in JOBS
        assert public or len([a for a in arguments if a not in ("self", "cls")]) <= MOST_PARAMETERS, function.name


@pytest.mark.parametrize("path", FILES, ids=name)
def test_no_private_name_of_another_module_is_used(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("grapevine"):
            private = [a.name for a in node.names if a.name.startswith("_") and not a.name.startswith("__")]
            assert not private, f"{node.module}: {private}"


@pytest.mark.parametrize("path", FILES, ids=name)
def test_a_module_says_what_lives_there(path):
    assert ast.get_docstring(ast.parse(path.read_text())) or path.name == "__init__.py" and not path.read_text().strip()
