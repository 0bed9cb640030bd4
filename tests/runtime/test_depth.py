"""The depth that finds itself: numbers in, depth out."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest

from specjax.decoding.settings import DraftConfig
from specjax.runtime.depth.control import DEPTHS, START, Choice, DepthControl, depths_up_to
from specjax.runtime.depth.costs import Costs
from specjax.runtime.depth.rates import MEMORY, Rates

AUTO = DraftConfig(n_max=8, auto=True)
ALL = range(9)
USUAL = 8  # rounds of a chunk


@dataclass
class Machine:
    """Rounds whose costs and acceptance are chosen by the test; the control learns of a chunk one chunk late.

    Attributes:
        cost: what a round of a depth takes.
        rows: B.
        noise: standard deviation of a chunk's time, relative to it.
        extra: what a chunk takes besides its rounds.
        unit: seconds of a round that costs 1.
    """

    cost: Callable[[int], float]
    rows: int = 1
    noise: float = 0.0
    extra: float = 0.0
    unit: float = 2e-4
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    ready: set[int] = field(default_factory=set)
    choices: list[Choice] = field(default_factory=list)
    unread: deque = field(default_factory=deque)

    def run(self, control: DepthControl, acceptance: float, tokens: int, want: DraftConfig = AUTO) -> float:
        """Emit so many tokens a row; returns tokens a unit of costs. Building programs takes no time."""
        said, spent = 0, 0.0
        while said < tokens * self.rows:
            choice = control.choose(dict.fromkeys(range(self.rows), want), self.ready, may_build=True, alone=True)
            self.ready.add(choice.depth)
            self.choices.append(choice)
            rounds = min(USUAL, choice.rounds or USUAL)
            accepted = np.cumprod(self.rng.random((rounds, self.rows, choice.depth)) < acceptance, axis=2).sum(axis=2)
            taken = (rounds * self.cost(choice.depth) + self.extra) * max(0.2, 1 + self.noise * self.rng.normal())
            self.unread.append((choice, np.full_like(accepted, choice.depth), accepted, self.unit * taken))
            if len(self.unread) > 1:
                control.saw(*self.unread.popleft())
            said += int(accepted.sum()) + accepted.size
            spent += taken
        return said / spent

    def best(self, acceptance: float) -> float:
        """Tokens a unit of costs of the best fixed depth."""
        tokens = {depth: self.rows * sum(acceptance**j for j in range(depth + 1)) for depth in depths_up_to(8)}
        return max(tokens[depth] / (self.cost(depth) + self.extra / USUAL) for depth in tokens)


def fast(depth: int) -> float:
    """As where reading the weights is what a round costs."""
    return 1 + 0.12 * depth


def slow(depth: int) -> float:
    """As where every row of a batch costs."""
    return 1 + 0.8 * depth


def settled(machine: Machine, acceptance: float) -> tuple[DepthControl, int]:
    """A control that has seen much of one acceptance, and the depth that it uses most in the end."""
    control = DepthControl(8, machine.rows)
    machine.run(control, acceptance, 2000)
    used = [choice.depth for choice in machine.choices if not choice.visit]
    return control, Counter(used[-50:]).most_common(1)[0][0]


@pytest.mark.parametrize(
    ("cost", "acceptance", "depth"),
    [(fast, 0.95, 8), (fast, 0.5, 2), (fast, 0.05, 0), (slow, 0.5, 0), (slow, 0.05, 0)],
)
def test_the_depth_with_most_tokens_a_second_is_found(
    cost: Callable[[int], float], acceptance: float, depth: int
) -> None:
    assert settled(Machine(cost, rows=4), acceptance)[1] == depth


@pytest.mark.parametrize("rows", [1, pytest.param(4, marks=pytest.mark.slow), 16])
@pytest.mark.parametrize(("cost", "extra"), [(fast, 0.0), (slow, 0.0), (slow, 3.0)])
def test_a_changing_acceptance_is_followed(cost: Callable[[int], float], extra: float, rows: int) -> None:
    """Close to the best fixed depth in every phase, and so never much slower than plain decoding."""
    machine = Machine(cost, rows, noise=0.05, extra=extra)
    control = DepthControl(8, rows)
    machine.run(control, 0.9, 1000)
    shares = [machine.run(control, acceptance, 3000) / machine.best(acceptance) for acceptance in (0.9, 0.5, 0.1, 0.9)]
    assert min(shares) > 0.88
    assert np.mean(shares) > 0.96


def test_visits_are_rare_and_what_they_lose_is_bounded() -> None:
    machine = Machine(slow)
    control, depth = settled(machine, 0.0)
    assert depth == 0
    machine.choices.clear()
    speed = machine.run(control, 0.0, 6000)
    visits = [choice for choice in machine.choices if choice.visit]
    assert 0 < len(visits) < 0.05 * len(machine.choices)
    assert 0.97 < speed < 1


def test_where_visits_cannot_be_timed_they_do_not_go_on_for_ever() -> None:
    """As where the host is always late; the drafter catches up after each visit."""
    control = DepthControl(8, 1)
    wants, visits = {0: AUTO}, 0
    for _ in range(400):
        choice = control.choose(wants, set(ALL), may_build=True, alone=True)
        drafted = np.full((choice.rounds or USUAL, 1), choice.depth)
        control.saw(choice, drafted, drafted * 0, None if choice.visit else 1e-3 * fast(choice.depth) * len(drafted))
        if choice.visit:
            control.lost(0.5 * 1e-3 * fast(3) * USUAL)
            visits += 1
    assert 0 < visits < 40


def test_what_is_to_be_measured_waits_for_a_chunk_whose_time_can_be_known() -> None:
    control, wants = DepthControl(8, 1), {0: AUTO}

    def visits(acceptance: int, *, alone: bool) -> int:
        count = 0
        for _ in range(800):
            choice = control.choose(wants, set(ALL), may_build=True, alone=alone)
            drafted = np.full((min(USUAL, choice.rounds or USUAL), 1), choice.depth)
            seconds = 2e-4 * fast(choice.depth) * len(drafted)
            control.saw(choice, drafted, drafted * acceptance, seconds if alone or not choice.visit else None)
            count += choice.visit
        return count

    assert visits(1, alone=False) == 0
    assert visits(1, alone=True) > 0
    visits(0, alone=True)
    assert visits(0, alone=False) > 0, "nothing else says whether acceptance has risen"


def test_where_no_draft_could_pay_bringing_the_drafter_up_takes_little_of_the_time() -> None:
    def hopeless(depth: int) -> float:
        return 1 + 1.5 * depth

    control, _ = settled(Machine(hopeless), 0.0)
    lost, took = 0.0, 0.0
    for _ in range(6000):
        choice = control.choose({0: AUTO}, set(ALL), may_build=True, alone=True)
        drafted = np.full((choice.rounds or 150, 1), choice.depth)
        if choice.visit:
            control.lost(0.02)
            lost += 0.02
        took += (seconds := 2e-4 * hopeless(choice.depth) * len(drafted))
        control.saw(choice, drafted, drafted * 0, seconds)
    assert 0 < lost < 0.002 * took


def test_a_stall_in_a_visit_does_not_end_visits() -> None:
    machine = Machine(slow)
    control, _ = settled(machine, 0.0)
    usual = machine.cost

    def stalls(depth: int) -> float:
        return usual(depth) if depth == 0 else 1000 * usual(depth)

    machine.cost, before = stalls, sum(choice.visit for choice in machine.choices)
    while sum(choice.visit for choice in machine.choices) == before:
        machine.run(control, 0.0, 50)
    machine.cost = usual
    machine.choices.clear()
    machine.run(control, 0.0, 24000)
    assert any(choice.visit for choice in machine.choices)


def test_rows_that_are_done_have_no_say_in_what_all_rows_show() -> None:
    rates = Rates(64, 1)
    one = np.ones((8, 64), int)
    for _ in range(20):
        rates.add(one, np.random.default_rng(0).integers(0, 2, (8, 64)))
    alone = one * (np.arange(64) == 0)
    for _ in range(3):
        rates.add(alone, alone)
    assert rates.common_hits == rates.common_trials, "what one row shows is a surprise, whatever others have shown"


@pytest.mark.parametrize("unit", [2e-4, 0.05])
def test_a_rise_of_acceptance_is_found_while_nothing_is_drafted(unit: float) -> None:
    machine = Machine(fast, unit=unit)
    control, depth = settled(machine, 0.0)
    assert depth == 0
    machine.choices.clear()
    machine.run(control, 0.9, 3000)
    used = [choice.depth for choice in machine.choices if not choice.visit]
    assert used[0] == 0
    assert used[-1] >= 5
    assert used.count(0) < 60, "visits come at least so often"


def test_depths_that_are_equally_fast_do_not_alternate() -> None:
    machine = Machine(lambda depth: (1.0, 1.5, 1.75, 1.875, 2, 2, 2, 2, 2.0)[depth], rows=4, noise=0.05)
    control, _ = settled(machine, 0.5)
    machine.choices.clear()
    machine.run(control, 0.5, 4000)
    used = [choice.depth for choice in machine.choices if not choice.visit]
    changes = sum(one != other for one, other in pairwise(used))
    assert changes < 0.05 * len(used)


def test_equal_numbers_give_equal_choices() -> None:
    machines = [Machine(fast, 4, 0.2), Machine(fast, 4, 0.2)]
    for machine in machines:
        machine.run(DepthControl(8, 4), 0.6, 500)
    assert machines[0].choices == machines[1].choices


def test_the_first_depth_is_the_usual_one_and_nothing_is_built_before_it_is_worth_it() -> None:
    control = DepthControl(8, 1)
    assert control.choose({0: AUTO}, set(), may_build=True, alone=True) == Choice(START)
    ones = np.ones((8, 1), int)
    for _ in range(30):  # every draft is accepted
        choice = control.choose({0: AUTO}, {START}, may_build=False, alone=True)
        assert choice == Choice(START)
        control.saw(choice, START * ones, START * ones, 1.0)
    assert control.choose({0: AUTO}, {START}, may_build=True, alone=True).visit


def test_a_short_limit_and_fixed_rows_are_kept() -> None:
    control = DepthControl(8, 2)
    assert control.depths == (0, 1, 2, 3, 5, 8)
    assert depths_up_to(2) == (0, 1, 2)
    fixed = {0: DraftConfig(n_max=2)}
    assert control.choose(fixed, (), may_build=True, alone=True) == Choice(8), (
        "nobody left it to the program: one is enough"
    )
    assert control.choose(fixed, (0, 1, 5, 8), may_build=True, alone=True) == Choice(5), "what has been built is used"
    machine = Machine(slow, 2)
    machine.run(control, 0.0, 500)
    for _ in range(20):
        wants = {0: AUTO, 1: DraftConfig(n_max=4)}
        assert control.choose(wants, ALL, may_build=True, alone=True).depth >= 4
    assert DEPTHS[0] == 0


def test_others_are_visited_also_where_all_of_them_are_much_slower_and_plain_decoding_is_not_allowed() -> None:
    """A row with one draft of its own beside one that leaves it to the program."""
    machine, control = Machine(slow, 2, ready=set(ALL)), DepthControl(8, 2)
    control.costs = Costs({0: 1.0, 1: 2.0, 8: 40.0})
    none, wants = np.zeros((8, 2), int), {0: AUTO, 1: DraftConfig(n_max=1)}
    choices = [control.choose(wants, (1, 8), may_build=False, alone=True)]
    while not choices[-1].visit and len(choices) < 3000:
        control.saw(choices[-1], none + 1, none, machine.unit * control.costs.of(choices[-1].depth))
        choices.append(control.choose(wants, (1, 8), may_build=False, alone=True))
    assert choices[-1].depth == 8


def test_only_drafts_that_were_reached_are_trials() -> None:
    rates = Rates(1, 3)
    rates.add(np.array([[3], [3], [1]]), np.array([[1], [3], [0]]))
    assert rates.trials.tolist() == [[3, 2, 1]]
    assert rates.hits.tolist() == [[2, 1, 1]]
    assert (np.diff(rates.believed()) <= 0.2).all()


def test_a_new_request_starts_from_what_all_rows_have_shown() -> None:
    rates = Rates(2, 2)
    for _ in range(20):
        rates.add(np.full((8, 2), 2), np.tile([2, 0], (8, 1)))
    before = rates.believed()
    assert before[0, 0] > 0.9
    assert before[1, 0] < 0.1
    rates.forget(1)
    assert 0.4 < rates.believed()[1, 0] < 0.6
    assert rates.believed()[0, 0] == before[0, 0]


def test_a_sudden_change_is_believed_after_two_chunks() -> None:
    rates = Rates(1, 3)
    for _ in range(MEMORY):
        rates.add(np.full((8, 1), 3), np.full((8, 1), 3))
    assert rates.believed().min() > 0.95
    for _ in range(2):
        rates.add(np.full((8, 1), 3), np.zeros((8, 1), int))
    assert rates.believed()[0, 0] < 0.3
    assert rates.believed()[0, 2] < 0.3, "what comes after a draft that fails is not believed to be better"


def test_costs_are_ratios_whatever_the_machine_does_meanwhile() -> None:
    costs = Costs()
    rng = np.random.default_rng(0)
    speed = 1.0
    for index in range(60):
        speed *= 1.03  # in the end five times as slow as in the beginning
        costs.add(3, 2.0 * speed * rng.uniform(0.9, 1.1))
        if index % 6 == 5:
            costs.add(0, 1.0 * speed * rng.uniform(0.9, 1.1), visit=True)
    assert costs.of(0) / costs.of(3) == pytest.approx(0.5, rel=0.25)
    assert 0.5 < costs.of(1) / costs.of(3) < 1
    assert costs.of(8) > costs.of(3)
    assert costs.known().keys() == {0, 3}
    assert Costs(costs.known()).of(0) == costs.of(0)


def test_nothing_is_visited_before_seconds_are_known() -> None:
    """Remembered costs have no seconds; a visit would set them by a depth of which nothing is known."""
    control = DepthControl(8, 1)
    control.costs = Costs({0: 1.0, 3: 2.0})
    ones = np.ones((8, 1), int)
    for seconds in (0.008, 0.001, 0.001):
        first = control.choose({0: AUTO}, ALL, may_build=True, alone=True)
        assert not first.visit
        assert not control.choose({0: AUTO}, ALL, may_build=True, alone=True).visit
        control.saw(first, first.depth * ones, first.depth * ones, seconds)
    assert control.costs.of(8) > control.costs.of(3)


@pytest.mark.parametrize("known", [{}, {0: 1.0, 3: 3.4}])
def test_a_first_chunk_that_takes_long_says_nothing_of_costs(known: dict[int, float]) -> None:
    costs = Costs(known)
    for index in range(20):
        costs.add(2, slow(2) * (8.0 if index == 0 else 1.0))
        if index % 4 == 3:
            costs.add(0, slow(0), visit=True)
    assert costs.of(0) / costs.of(2) == pytest.approx(slow(0) / slow(2), rel=0.3)


@pytest.mark.parametrize("rows", [1, 16])
def test_costs_that_were_remembered_wrongly_are_found_out(rows: int) -> None:
    """Drafts are believed to be almost free, and are dear; nobody accepts them."""
    machine, control = Machine(slow, rows, ready=set(ALL)), DepthControl(8, rows)
    control.costs = Costs({0: 1.0, 2: 0.3, 3: 1.1})
    machine.run(control, 0.4, 4000)
    machine.choices.clear()
    machine.run(control, 0.4, 1000)
    assert [choice.depth for choice in machine.choices if not choice.visit].count(0) > 0.9 * len(machine.choices)
