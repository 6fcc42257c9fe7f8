"""The two tasks of the sample data: arithmetic worked by hand, and arithmetic with a calculator.

By hand, a term for each digit column, units first, precedes the answer, as in long addition::

    47+385=  7+5=12;4+8+1=13;3+1=4;#432

With the calculator, the model writes a call, and the environment appends the reply in brackets::

    4*15-7?  <4*15>[60]<60-7>[53]#53
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

PAD, EOS = 0, 1
VOCABULARY = ("", "", *"0123456789+-*=;#?<>[]")  # padding and end-of-text have no text
TOKEN_IDS = {character: token for token, character in enumerate(VOCABULARY) if character}
CALL_END = TOKEN_IDS[">"]
SECOND_PRODUCT, WASTED_CALL = 0.6, 0.15  # probabilities of each in a calculator problem

Digits = Sequence[int]


@dataclass(frozen=True)
class Problem:
    """A prompt, its answer, and a worked solution for imitation."""

    domain: str
    prompt: str
    answer: int
    solution: str


@dataclass(frozen=True)
class Step:
    """The score of a calculator turn, and the state of the episode before it."""

    state: str
    score: float


def encode(text: str) -> list[int]:
    """Token ids of a text, one for each character."""
    return [TOKEN_IDS[character] for character in text]


def decode(tokens: Sequence[int]) -> str:
    """Text of token ids, without padding and end-of-text."""
    return "".join(VOCABULARY[token] for token in tokens)


def columns(number: int) -> list[int]:
    """Decimal digits, units first."""
    return [int(digit) for digit in reversed(str(number))]


def column_sums(a: Digits, b: Digits) -> Iterator[str]:
    """Column addition, as lines of working."""
    carry = 0
    for place in range(max(len(a), len(b))):
        terms = [*a[place : place + 1], *b[place : place + 1], *([1] if carry else [])]
        carry = int(sum(terms) > 9)
        yield f"{'+'.join(map(str, terms))}={sum(terms)};"


def column_differences(a: Digits, b: Digits) -> Iterator[str]:
    """Column subtraction with borrowing, as lines of working."""
    borrow = 0
    for place, digit in enumerate(a):
        taken = [*b[place : place + 1], *([1] if borrow else [])]
        borrow = int(sum(taken) > digit)
        top = digit + 10 * borrow
        yield f"{'-'.join(map(str, [top, *taken]))}={top - sum(taken)};"


def column_products(a: Digits, factor: int) -> Iterator[str]:
    """Multiplication by one digit, as lines of working."""
    carry = 0
    for digit in a:
        product = digit * factor + carry
        yield f"{digit}*{factor}{f'+{carry}' if carry else ''}={product};"
        carry = product // 10


def number(rng: np.random.Generator, most_digits: int) -> int:
    """A whole number, its count of digits uniform from 1 to `most_digits`."""
    digits = int(rng.integers(1, most_digits + 1))
    return int(rng.integers(10 ** (digits - 1), 10**digits))


def arithmetic_problem(rng: np.random.Generator) -> Problem:
    """One sum, difference or product, worked by hand."""
    domain = ("add", "sub", "mul")[rng.integers(3)]
    if domain == "mul":
        a, factor = number(rng, 3), int(rng.integers(2, 10))
        prompt, answer, work = f"{a}*{factor}=", a * factor, column_products(columns(a), factor)
    elif domain == "add":
        a, b = number(rng, 3), number(rng, 3)
        prompt, answer, work = f"{a}+{b}=", a + b, column_sums(columns(a), columns(b))
    else:
        b, a = sorted((number(rng, 3), number(rng, 3)))
        prompt, answer, work = f"{a}-{b}=", a - b, column_differences(columns(a), columns(b))
    return Problem(domain, prompt, answer, f"{''.join(work)}#{answer}")


def calculator_problem(rng: np.random.Generator) -> Problem:
    """A product and another (or a plain number), joined by one operator.

    The worked solution makes its calls in either order, and now and then one of them twice.
    """
    domain, joint = (("add", "+"), ("sub", "-"), ("mul", "*"))[rng.integers(3)]
    terms = [f"{number(rng, 2)}*{number(rng, 1)}", f"{number(rng, 2)}"]
    if rng.random() < SECOND_PRODUCT:
        terms[1] += f"*{number(rng, 1)}"
    values = [calculate(term) if "*" in term else int(term) for term in terms]
    calls = [term for term in terms if "*" in term]
    if rng.integers(2):
        calls.reverse()
    calls.append(f"{values[0]}{joint}{values[1]}")
    if rng.random() < WASTED_CALL:
        calls.insert(again := int(rng.integers(len(calls))), calls[again])
    answer = calculate(calls[-1])
    work = "".join(f"<{call}>[{calculate(call)}]" for call in calls)
    return Problem(domain, f"{joint.join(terms)}?", answer, f"{work}#{answer}")


def calculate(expression: str) -> int:
    """Value of `a+b`, `a-b` or `a*b`.

    Raises:
        ValueError: the expression is anything else.
    """
    match = re.fullmatch(r"(\d{1,6})([-+*])(\d{1,6})", expression)
    if match is None:
        raise ValueError(f"{expression!r} is not two numbers of at most six digits and + - or *")
    a, b = int(match[1]), int(match[3])
    return {"+": a + b, "-": a - b, "*": a * b}[match[2]]


def calculator(call: str) -> str:
    """The environment's reply to the text of a turn that ends in a call."""
    try:
        return f"[{calculate(call[call.rfind('<') + 1 : -1])}]"
    except ValueError:
        return "[?]"


def is_correct(problem: Problem, text: str) -> bool:
    """Whether the text ends in the answer."""
    return text.partition("#")[2] == str(problem.answer)


def arithmetic_rewards(problem: Problem, text: str, finish: str) -> tuple[float, float]:
    """Reward components: 1 for the right answer, -0.1 for broken working or none at all."""
    done = finish == "stop"
    tidy = done and re.fullmatch(r"(\d+([-+*]\d+)*=\d+;)+#\d+", text) is not None
    return float(done and is_correct(problem, text)), 0.0 if tidy else -0.1


def calculator_steps(problem: Problem, turns: Sequence[str]) -> list[Step]:
    """Score each turn: 0.1 for a call that helps, 1 or 0 for an answer, -0.1 for anything else.

    A call helps when the calculator understands it, its operands are known (from the prompt or from
    a reply) and it was not made before. The state is the prompt with the helpful calls so far,
    sorted, so that episodes that made the same calls in another order meet again in one state.
    """
    known = set(re.findall(r"\d+", problem.prompt))
    made: set[str] = set()
    steps = []
    for turn in turns:
        state = problem.prompt + ",".join(sorted(made))
        call = re.fullmatch(r"<((\d+)[-+*](\d+))>\[(-?\d+)\]", turn)
        if call and known.issuperset((call[2], call[3])) and call[1] not in made:
            made.add(call[1])
            known.add(call[4])
            steps.append(Step(state, 0.1))
        elif re.fullmatch(r"#-?\d+", turn):
            steps.append(Step(state, float(is_correct(problem, turn))))
        else:
            steps.append(Step(state, -0.1))
    return steps
