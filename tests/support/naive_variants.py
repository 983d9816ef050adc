"""Protocol code without one of its checks, to show that only this check stops an attack.

The one ``if`` statement that refuses is removed from a module's source, and the rest runs as another module. The real
module is unchanged.
"""

from __future__ import annotations

import ast
import inspect
import sys
from dataclasses import dataclass
from functools import cache
from itertools import count
from types import ModuleType
from typing import Any

from secagg import (
    client_cohort,
    client_phases,
    client_unmasking,
    opening,
    server_cohort,
    server_phases,
    server_unmasking,
)


def refusals(module: ModuleType, *errors: str) -> list[str]:
    """Return the source of every ``raise`` of these errors in a module."""
    return [
        ast.unparse(node)
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.Raise)
        and isinstance(node.exc, ast.Call)
        and isinstance(node.exc.func, ast.Name)
        and node.exc.func.id in errors
    ]


REFUSALS = ("CoordinatorMisbehaved", "InvalidMessage", "UnexpectedMessage", "TooFewClients", "ReconstructionFailed")
REFUSALS += ("ProtocolError", "_WrongSecret")


def checks_of(module: ModuleType) -> list[str]:
    """Return the source of every ``if`` that only refuses a message: with an error, or by not keeping a share."""
    found = []
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.If) and len(node.body) == 1 and not node.orelse:
            only = node.body[0]
            error = only.exc if isinstance(only, ast.Raise) else None
            raises = isinstance(error, ast.Call) and ast.unparse(error.func) in REFUSALS
            keeps_nothing = isinstance(only, ast.Return) and ast.unparse(only) == "return None"
            if raises or keeps_nothing:
                found.append(ast.unparse(node))
    return found


@cache
def variant(module: ModuleType, removed: tuple[str, ...], exchanged: tuple[tuple[str, str], ...]) -> ModuleType:
    """Return the module without the ``if`` that only refuses and holds each fragment, and with pieces replaced."""
    source = inspect.getsource(module)
    for old, new in exchanged:
        assert source.count(old) == 1, f"{old!r} is {source.count(old)} times in {module.__name__}"
        source = source.replace(old, new)
    tree: Any = ast.parse(source)
    for fragment in removed:
        remover = _Remover(fragment)
        tree = remover.visit(tree)
        assert remover.removed == 1, f"{fragment!r} fits {remover.removed} checks of {module.__name__}"
    naive = ModuleType(module.__name__)
    naive.__dict__.update({name: vars(module)[name] for name in ("__file__", "__package__") if name in vars(module)})
    exec(compile(tree, f"{module.__name__} without {removed} with {exchanged}", "exec"), naive.__dict__)
    return naive


class _Remover(ast.NodeTransformer):
    def __init__(self, fragment: str) -> None:
        self.fragment, self.removed = fragment, 0

    def visit_If(self, node: ast.If) -> ast.AST:
        if _only_refuses(node) and self.fragment in ast.unparse(node):
            self.removed += 1
            return ast.copy_location(ast.Pass(), node)
        return self.generic_visit(node)


def _only_refuses(node: ast.If) -> bool:
    return len(node.body) == 1 and isinstance(node.body[0], ast.Raise | ast.Return) and not node.orelse


@cache  # hundreds of scripts ask when tests are collected
def _removable(module: ModuleType) -> list[str]:
    nodes = ast.walk(ast.parse(inspect.getsource(module)))
    return [ast.unparse(node) for node in nodes if isinstance(node, ast.If) and _only_refuses(node)]


def changed(module: ModuleType, old: str, new: str) -> ModuleType:
    """Return the module with one piece of its source replaced."""
    return variant(module, (), ((old, new),))


_numbers = count()


@dataclass(frozen=True)
class Side:
    """The modules of one side's phases as one: an attribute is looked up in all of them, from the last on."""

    modules: tuple[ModuleType, ...]  # each imports from those before it

    def __getattr__(self, name: str) -> Any:
        for module in reversed(self.modules):
            if name in vars(module):
                return vars(module)[name]
        raise AttributeError(name)

    def refusals(self, *errors: str) -> list[str]:
        """As `refusals`."""
        return [text for module in self.modules for text in refusals(module, *errors)]

    def checks(self) -> list[str]:
        """As `checks_of`."""
        return [text for module in self.modules for text in checks_of(module)]

    def without(self, fragment: str) -> Side:
        """Return it without the one ``if`` that only refuses and whose source holds `fragment`."""
        return self.variant((fragment,))

    def changed(self, old: str, new: str) -> Side:
        """As `changed`."""
        return self.variant((), ((old, new),))

    def home(self, piece: str) -> ModuleType:
        """Return the one module that has a check with this fragment, or else this piece of source."""
        homes = [one for one in self.modules if any(piece in check for check in _removable(one))]
        homes = homes or [one for one in self.modules if piece in inspect.getsource(one)]
        assert len(homes) == 1, f"{piece!r} stands in {homes}"
        return homes[0]

    @cache  # noqa: B019 (the two real sides live as long as the process)
    def variant(self, removed: tuple[str, ...] = (), exchanged: tuple[tuple[str, str], ...] = ()) -> Side:
        """As `variant`; modules that import from a changed one use that."""
        found = {piece: self.home(piece) for piece in (*removed, *(old for old, _ in exchanged))}
        naive: dict[ModuleType, ModuleType] = {}
        imports: list[tuple[str, str]] = []  # of the real modules, and of the naive ones
        for module in self.modules:
            source = inspect.getsource(module)
            here = [pair for pair in exchanged if found[pair[0]] is module]
            here += [one for one in imports if one[0] in source]
            parts = tuple(part for part in removed if found[part] is module)
            if here or parts:
                naive[module] = variant(module, parts, tuple(here))
                name = f"naive_module_{next(_numbers)}"
                sys.modules[name] = naive[module]
                imports.append((f"from {module.__name__} import", f"from {name} import"))
        return Side(tuple(naive.get(module, module) for module in self.modules))


CLIENT = Side((client_cohort, client_unmasking, client_phases))
SERVER = Side((server_cohort, opening, server_unmasking, server_phases))


# A participant signs the u2 that it masked in; a naive one signs the u2 that it is sent last.
SIGNED = "survivor_statement(self._cohort.config, self._cohort.context, self._u2, u3)"
SAID = "survivor_statement(self._cohort.config, self._cohort.context, Subset(message.u2, self._cohort.u1), u3)"
