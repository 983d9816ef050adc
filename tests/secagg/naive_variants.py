"""Protocol code without one of its checks: what shows that an attack is stopped by that check and by nothing else.

The module's source is read, the one ``if`` statement that refuses is taken out, and the rest is run as a module of
its own; the real module stays as it is.
"""

from __future__ import annotations

import ast
import inspect
import sys
from functools import cache
from types import ModuleType

from secagg import client_phases, server_phases, unmasking


def refusals(module: ModuleType, *errors: str) -> list[str]:
    """The source text of every ``raise`` of these errors in a module."""
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
    """The source of every ``if`` that only refuses what another has sent: with an error, or by not keeping a share."""
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


def without(module: ModuleType, fragment: str) -> ModuleType:
    """The module without the one ``if`` that only refuses and whose source, with what it raises, holds `fragment`."""
    return variant(module, (fragment,), ())


@cache
def variant(module: ModuleType, removed: tuple[str, ...], exchanged: tuple[tuple[str, str], ...]) -> ModuleType:
    """The module without some ``if`` as in `without`, and with pieces of its source exchanged as in `changed`."""
    source = inspect.getsource(module)
    for old, new in exchanged:
        assert source.count(old) == 1, f"{old!r} is {source.count(old)} times in {module.__name__}"
        source = source.replace(old, new)
    tree: ast.AST = ast.parse(source)
    for fragment in removed:
        remover = _Remover(fragment)
        tree = remover.visit(tree)
        assert remover.removed == 1, f"{fragment!r} fits {remover.removed} checks of {module.__name__}"
    tree = ast.fix_missing_locations(tree)
    naive = ModuleType(module.__name__)
    naive.__dict__.update({name: vars(module)[name] for name in ("__file__", "__package__") if name in vars(module)})
    exec(compile(tree, f"{module.__name__} without {removed} with {exchanged}", "exec"), naive.__dict__)
    return naive


class _Remover(ast.NodeTransformer):
    def __init__(self, fragment: str) -> None:
        self.fragment, self.removed = fragment, 0

    def visit_If(self, node: ast.If) -> ast.AST:
        only_refuses = len(node.body) == 1 and isinstance(node.body[0], ast.Raise | ast.Return) and not node.orelse
        if only_refuses and self.fragment in ast.unparse(node):
            self.removed += 1
            return ast.Pass()
        return self.generic_visit(node)


def client_without(fragment: str) -> ModuleType:
    """`secagg.client_phases` without one check."""
    return without(client_phases, fragment)


@cache
def server_without(fragment: str) -> ModuleType:
    """`secagg.server_phases` without one check, which may be one of `secagg.unmasking`."""
    if any(fragment in text for text in _checks(unmasking)):
        return _with_unmasking(without(unmasking, fragment), fragment)
    return without(server_phases, fragment)


def _checks(module: ModuleType) -> list[str]:
    return [ast.unparse(node) for node in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(node, ast.If)]


def changed(module: ModuleType, old: str, new: str) -> ModuleType:
    """The module with one piece of its source exchanged."""
    return variant(module, (), ((old, new),))


@cache
def server_changed(old: str, new: str) -> ModuleType:
    """`secagg.server_phases` with one piece exchanged, which may be one of `secagg.unmasking` and its base class."""
    if old not in inspect.getsource(unmasking):
        return changed(server_phases, old, new)
    return _with_unmasking(changed(unmasking, old, new), old + new)


def _with_unmasking(naive: ModuleType, name: str) -> ModuleType:
    """`secagg.server_phases` over a naive `secagg.unmasking`, which has the base class of all its phases."""
    module = f"naive_unmasking_{abs(hash(name))}"
    sys.modules[module] = naive
    return changed(server_phases, "from secagg.unmasking import", f"from {module} import")


def client_changed(old: str, new: str) -> ModuleType:
    """`secagg.client_phases` with one piece exchanged."""
    return changed(client_phases, old, new)


# A participant signs the u2 it masked in; a naive one signs the u2 it is told.
SIGNED = "survivor_statement(self._cohort.config, self._cohort.context, self._u2, u3)"
SAID = "survivor_statement(self._cohort.config, self._cohort.context, Subset(message.u2, self._cohort.u1), u3)"
