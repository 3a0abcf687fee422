"""free + used = total, checked against a count of each sequence's own blocks."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from powerband.simulate.blocks import BlockPool

SIZE, TOTAL = 4, 40


class PoolAgainstCounts(RuleBasedStateMachine):
    """Sequences join with a prompt, all take steps together, some leave; each one's blocks are counted apart."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(TOTAL, SIZE)
        self.contexts: list[int] = []
        self.step = 0

    @rule(prompt=st.integers(1, 30))
    def start(self, prompt: int) -> None:
        need = -(-prompt // SIZE)
        took = self.pool.extend(0, prompt)
        assert took == (need <= TOTAL - self.used())
        if took:
            self.pool.join(prompt, self.step)
            self.contexts.append(prompt)

    @precondition(lambda self: self.contexts)
    @rule(wanted=st.integers(1, 20))
    def take_steps(self, wanted: int) -> None:
        most = 0
        while sum(-(-(context + most + 1) // SIZE) for context in self.contexts) <= TOTAL:
            most += 1
        assert self.pool.steps_within(self.step) == most
        steps = min(wanted, most)
        assert self.pool.advance(self.step, wanted) == steps
        self.step += steps
        self.contexts = [context + steps for context in self.contexts]

    @precondition(lambda self: self.contexts)
    @rule(which=st.integers(0, 100))
    def finish(self, which: int) -> None:
        context = self.contexts.pop(which % len(self.contexts))
        self.pool.leave(context, self.step)
        self.pool.release(context)

    @invariant()
    def free_and_used_make_the_total(self) -> None:
        assert self.pool.free + self.used() == TOTAL
        assert self.pool.free >= 0

    def used(self) -> int:
        return sum(-(-context // SIZE) for context in self.contexts)


PoolAgainstCounts.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestBlockPool = PoolAgainstCounts.TestCase
