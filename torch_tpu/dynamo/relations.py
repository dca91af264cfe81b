"""How the numbers of several recordings follow from each other: which are sizes that differ, which are computed from
them. Found by trying simple formulas; whoever uses one for another recording checks it with `holds`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Column = tuple[int, ...]  # one number in every recording
Form = Callable[[Sequence[Any]], Any]  # what computes it from the symbols, which may be ints or symbolic ints


class Relations:
    """The numbers of recordings that are alike but for their sizes, as formulas of as few of them as possible."""

    def __init__(self, recordings: Sequence[Sequence[int]]) -> None:
        """Raises ValueError where a size that differs was 0 or 1, which PyTorch treats apart."""
        columns = list(zip(*recordings))
        self.columns: list[Column] = []  # of the symbols
        self._positions: list[int] = []  # the number that is the symbol
        self._found: dict[Column, Form] = {}
        for column in sorted(set(columns)):  # what is computed from sizes is mostly larger than they
            self._found[column] = self._form(column) or self._symbol(column, columns.index(column))
        self.forms = list(self._found.values())
        index = {column: i for i, column in enumerate(self._found)}
        self.form_of = [index[column] for column in columns]  # by number

    def symbols(self, numbers: Sequence[int]) -> Column:
        """The values of the symbols in a recording."""
        return tuple(numbers[position] for position in self._positions)

    def holds(self, numbers: Sequence[int]) -> bool:
        """Whether every formula gives what was recorded."""
        symbols = self.symbols(numbers)
        if min(symbols) < 2:
            return False
        values = [form(symbols) for form in self.forms]
        return all(values[form] == number for form, number in zip(self.form_of, numbers))

    def _symbol(self, column: Column, position: int) -> Form:
        if min(column) < 2:
            raise ValueError("a size that was 0 or 1")
        self.columns.append(column)
        self._positions.append(position)
        return _line(1, len(self.columns) - 1, 0)

    def _form(self, column: Column) -> Form | None:
        if len(set(column)) == 1:
            return lambda symbols: column[0]
        return self._found.get(column) or self._product(column) or self._sum(column)

    def _product(self, column: Column) -> Form | None:
        """What has a formula, times something else that has one."""
        for factor, form in self._found.items():
            if len(set(factor)) == 1 or any(number == 0 or number % size for number, size in zip(column, factor)):
                continue
            rest = self._form(tuple(number // size for number, size in zip(column, factor)))
            if rest is not None:
                return _product(form, rest)
        return None

    def _sum(self, column: Column) -> Form | None:
        """Some times a symbol and some more, one symbol and another and some more, or a part of one."""
        for i, symbol in enumerate(self.columns):
            rise, step = column[-1] - column[0], symbol[-1] - symbol[0]
            if step == 0 or rise % step or rise // step <= 0:
                continue
            slope = rise // step
            more = column[0] - slope * symbol[0]
            if all(number == slope * size + more for number, size in zip(column, symbol)):
                return _line(slope, i, more)
        for i, first in enumerate(self.columns):
            for j, second in enumerate(self.columns[:i]):
                rests = {number - a - b for number, a, b in zip(column, first, second)}
                if len(rests) == 1:
                    return _together(i, j, rests.pop())
        for i, symbol in enumerate(self.columns):
            by = max(size // max(number, 1) for number, size in zip(column, symbol))
            if by > 1 and all(number == size // by for number, size in zip(column, symbol)):
                return _part(i, by)
        return None


def _product(form: Form, rest: Form) -> Form:
    return lambda symbols: form(symbols) * rest(symbols)


def _line(slope: int, i: int, more: int) -> Form:
    return lambda symbols: slope * symbols[i] + more


def _together(i: int, j: int, more: int) -> Form:
    return lambda symbols: symbols[i] + symbols[j] + more


def _part(i: int, by: int) -> Form:
    return lambda symbols: symbols[i] // by
