# SPDX-License-Identifier: Apache-2.0
"""Numbers of a model that keep changing, followed through the Python that a step runs.

A number is handed to the model as an object that is no number: whoever wants one has to ask it. Arithmetic
makes further ones, operators of torch are given the number, comparisons are kept as conditions, and whatever
else reads it (math.exp, a text, a key of a dictionary) ends the attempt: such a number is no input.

    beta ──► 1 - beta ──► torch.mul(x, …)      handed on: an argument of the graph follows it
      └────► beta > 0.5                        a condition: False, as long as the graph is right
"""

import operator

import torch

_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
_COMPARISONS = ("lt", "le", "eq", "ne", "ge", "gt")
# Of Tensor's, those written in Python that do nothing but arithmetic.
_OF_TENSORS = {
    getattr(torch.Tensor, f"__{name}__")
    for name in ("rsub", "rdiv", "rtruediv", "pow", "rpow", "ipow", "floordiv", "rfloordiv", "mod", "rmod")
    if hasattr(torch.Tensor, f"__{name}__")
}
_BUILT_IN = (type(torch.add), type(torch.Tensor.add), type(torch.Tensor.__add__))


class Unseen(Exception):
    """A number went where it cannot be followed."""


class Trace:
    """What one run has made of its numbers."""

    def __init__(self, values):
        self.values = list(values)  # of the numbers, then of each thing made of them
        self.numbers = len(values)
        self.made = []  # function, operands: (True, place among the values) or (False, a number)
        self.conditions = []  # function, operands, outcome
        self.handed = {}  # places of what torch was given, in order
        self.is_unseen = False
        self.objects = [Traced(self, place) for place in range(len(values))]

    def unseen(self):
        self.is_unseen = True
        raise Unseen("a number that changes is read in a way that cannot be followed")

    def operand(self, value):
        if isinstance(value, Traced):
            return (True, value._place)
        return (False, value) if type(value) in (int, float, bool) else None

    def make(self, function, *operands):
        operands = [self.operand(each) for each in operands]
        if None in operands:
            return NotImplemented
        self.values.append(function(*_at(self.values, operands)))
        self.made.append((function, operands))
        return Traced(self, len(self.values) - 1)

    def decide(self, function, *operands):
        operands = [self.operand(each) for each in operands]
        if None in operands:
            return NotImplemented
        outcome = function(*_at(self.values, operands))
        self.conditions.append((function, operands, outcome))
        return outcome

    def hand(self, value):
        if isinstance(value, Traced):
            self.handed[value._place] = None
            return self.values[value._place]
        if isinstance(value, list | tuple) and any(isinstance(each, Traced) for each in value):
            self.unseen()
        return value

    def at(self, numbers):
        """What torch would be given with other numbers, and what formulas of gradients make of it; None
        where a condition would go the other way."""
        try:
            values = list(numbers)
            for function, operands in self.made:
                values.append(function(*_at(values, operands)))
            for function, operands, outcome in self.conditions:
                now = function(*_at(values, operands))
                if type(now) is not type(outcome) or now != outcome:
                    return None
            handed = [values[place] for place in self.handed]
            return [form(each) for each in handed for form in _FORMS]
        except (ArithmeticError, ValueError):
            return None


def _at(values, operands):
    return [values[operand] if is_place else operand for is_place, operand in operands]


# In formulas of gradients: of x - βy, of x^β.
_FORMS = (lambda x: x, operator.neg, lambda x: x - 1)


class Traced:
    """Stands for a number while a model runs."""

    __slots__ = ("_trace", "_place")
    __array_ufunc__ = None

    def __init__(self, trace, place):
        self._trace = trace
        self._place = place

    @property
    def __class__(self):
        return type(self._trace.values[self._place])  # for isinstance()

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), named=None):
        named = named or {}
        [trace, *_] = [each._trace for each in (*arguments, *named.values()) if isinstance(each, Traced)]
        if not (isinstance(function, _BUILT_IN) or function in _OF_TENSORS):
            trace.unseen()
        arguments = [trace.hand(each) for each in arguments]
        result = function(*arguments, **{name: trace.hand(each) for name, each in named.items()})
        # Of constants alone: what Python reads of the result nobody would see.
        if not isinstance(result, torch.Tensor) or not torch._C._dispatch_keys(result).has(
            torch._C.DispatchKey.PrivateUse1
        ):
            trace.unseen()
        return result

    def __bool__(self):
        return self._trace.decide(bool, self)

    def __int__(self):
        return self._trace.decide(int, self)

    def __index__(self):
        return self._trace.decide(operator.index, self)

    def __round__(self, digits=None):
        return self._trace.decide(round, self) if digits is None else self._trace.unseen()

    def __floor__(self):
        return self._trace.decide(lambda x: x.__floor__(), self)

    def __ceil__(self):
        return self._trace.decide(lambda x: x.__ceil__(), self)

    def __trunc__(self):
        return self._trace.decide(lambda x: x.__trunc__(), self)

    def __neg__(self):
        return self._trace.make(operator.neg, self)

    def __pos__(self):
        return self._trace.make(operator.pos, self)

    def __abs__(self):
        return self._trace.make(operator.abs, self)

    def __getattr__(self, name):
        self._trace.unseen()

    def _unseen(self, *_):
        self._trace.unseen()

    __float__ = __complex__ = __hash__ = __repr__ = __str__ = __format__ = __reduce_ex__ = _unseen
    __copy__ = __deepcopy__ = __len__ = __iter__ = __array__ = __divmod__ = __rdivmod__ = _unseen


def _arithmetic(function):
    def there(self, other):
        return self._trace.make(function, self, other)

    def back(self, other):
        return self._trace.make(function, other, self)

    return there, back


def _comparison(function):
    return lambda self, other: self._trace.decide(function, self, other)


for _name in _ARITHMETIC:
    _there, _back = _arithmetic(getattr(operator, _name))
    setattr(Traced, f"__{_name}__", _there)
    setattr(Traced, f"__r{_name}__", _back)
for _name in _COMPARISONS:
    setattr(Traced, f"__{_name}__", _comparison(getattr(operator, _name)))


def nearby(history):
    """Other values to try, from the three that the numbers have had last, newest first."""
    now, *before = history
    tries = list(before)
    for share in (0.25, 0.5, 0.75):
        for other in before:
            tries.append([_between(a, b, share) for a, b in zip(now, other, strict=True)])
    tries.append([x + 1 if isinstance(x, int) else x * 1.25 + 0.0625 for x in now])
    tries.append([x + 2 if isinstance(x, int) else x * 1.5 + 0.03125 for x in now])
    return tries


def _between(a, b, share):
    return a + round((b - a) * share) if isinstance(a, int) else a + (b - a) * share
