"""The methods, one file each: client steps above, server program below. This module has the one table of their names."""

from __future__ import annotations

import importlib
import re
import sys
from importlib.machinery import SourceFileLoader
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from grapevine.core.errors import Mistake
from grapevine.core.words import hint

if TYPE_CHECKING:
    from grapevine.core import Method

# name: (module, class). A new method is a file and a line here; one outside this package is an entry point of the group
# "grapevine.methods", or `path/to/file.py:Class` on the command line.
TABLE = {
    "fedavg": ("fedavg", "FedAvg"),
    "fedprox": ("fedprox", "FedProx"),
    "scaffold": ("scaffold", "Scaffold"),
    "supervised": ("fedavg", "Supervised"),
    "alone": ("alone", "Alone"),
    "server-only": ("alone", "ServerOnly"),
    "xclp": ("fedavg_xclp", "XCLP"),
    "protofssl": ("protofssl", "ProtoFSSL"),
    "mp-ssfl": ("mp_ssfl", "MPSSFL"),
    "fedanchor": ("fedanchor", "FedAnchor"),
    "semifl": ("semifl", "SemiFL"),
    "fedcon": ("fedcon", "FedCon"),
    "rds": ("relevance", "RDS"),
    "tuor": ("relevance", "Tuor"),
    "perclient-lp": ("network", "PerClientLP"),
    "network": ("network", "NetworkLabels"),
    "fedsem": ("network", "FedSem"),
    "fixmatch": ("fixmatch", "FixMatch"),
    "mixmatch": ("mixmatch", "MixMatch"),
    "fedmatch": ("fedmatch", "FedMatch"),
    "fedsiam": ("fedsiam", "FedSiam"),
    "fedrgd": ("fedrgd", "FedRGD"),
    "sage": ("sage", "SAGE"),
    "fedlabel": ("fedlabel", "FedLabel"),
    "proxyfl": ("proxyfl", "ProxyFL"),
    "feddb": ("feddb", "FedDB"),
    "cbafed": ("cbafed", "CBAFed"),
    "fl2": ("fl2", "FL2"),
    "fedncm": ("moment_heads", "FedNCM"),
    "fed3r": ("moment_heads", "Fed3R"),
    "fedcgs": ("moment_heads", "FedCGS"),
    "fedcof": ("moment_heads", "FedCOF"),
    "gh-ofl": ("moment_heads", "GHOFL"),
}


def names() -> list[str]:
    return [*TABLE, *sorted(point.name for point in entry_points(group="grapevine.methods"))]


def find(name: str) -> type[Method]:
    """A method's class by its name, by an entry point, or by `path/to/file.py:Class`."""
    if name in TABLE:
        module, cls = TABLE[name]
        return getattr(importlib.import_module(f"grapevine.methods.{module}"), cls)
    for point in entry_points(group="grapevine.methods", name=name):
        return point.load()
    asked = re.fullmatch(r"(.+\.py:\w+|[^:]+):(.*)", name)
    if asked and (asked[1] in names() or ".py:" in asked[1]):
        raise _fields_of(asked[1], asked[2])
    if ":" in name:
        return _from_file(*name.rsplit(":", 1))
    there = ", ".join(names())
    raise Mistake(f"there is no method '{name}'{hint(name, names()) or f': there are {there}'}.")


def _fields_of(method: str, words: str) -> Mistake:
    """What to do about METHOD:WORDS, which only `compare` takes, as METHOD:FIELD=VALUE,…"""
    pieces = [piece.strip() for piece in words.split(",")]
    odd = [piece for piece in pieces if not re.match(r"\w+\s*=", piece)]
    if odd:
        return Mistake(f"{method}:{words}: {odd[0] or repr(odd[0])} is not field=value, as in {method}:lr=0.05.")
    told = " ".join(f"--set {piece}" for piece in pieces)
    return Mistake(f"{method}:{words} is not the name of a method: give the fields of {method} with {told}.")


def _from_file(path: str, cls: str) -> type[Method]:
    """A method from the user's own file: this runs the file, as `python FILE` would."""
    if not Path(path).is_file() or Path(path).suffix != ".py":
        raise Mistake(f"there is no Python file '{path}': give your own method as path/to/file.py:Class.")
    module_name = f"grapevine_own_{Path(path).stem}"
    module = ModuleType(module_name)
    module.__file__ = path
    sys.modules[module_name] = module  # dataclasses look their module up
    SourceFileLoader(module_name, path).exec_module(module)
    if not hasattr(module, cls):
        raise Mistake(f"{path} has no class '{cls}'.")
    return getattr(module, cls)


def __getattr__(name: str) -> Any:
    """`gv.methods.FedAvg`, imported when it is asked for."""
    for module, cls in TABLE.values():
        if cls == name:
            return getattr(importlib.import_module(f"grapevine.methods.{module}"), cls)
    raise AttributeError(f"grapevine.methods has no '{name}'")


def __dir__() -> list[str]:
    return sorted([*globals(), *(cls for _, cls in TABLE.values())])
