"""The process in front of an engine: it takes requests in and hands tokens out, one thing after the other."""

import math
from array import array
from collections import deque

from powerband.simulate.clock import Clock, steps_until

# Its work comes in turns: at most so many requests that wait are taken in before the tokens of the next step are handed
# out (assumed; 2 and 16 differ little, none or all of 256 much).
TURN = 8


class FrontEnd:
    """A resource beside the engine's steps; without costs of its own a request is ready ``request_s`` after it came.

    Requests are taken in in the order in which they came and tokens handed out as their step ends, in turn where both
    wait: a burst of requests holds up the tokens of those before it, by a turn, and many tokens a step the requests.
    ``segments`` say when the tokens of each step were handed out: runs of steps, each as four numbers (steps before,
    start time, first duration, growth), in seconds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._coming: deque[tuple[float, int]] = deque()  # when requests come
        self._entering: deque[tuple[float, int]] = deque()  # when those taken in are ready for the scheduler
        self._free_s = 0.0  # when it has done what it was given
        self.given_s = 0.0  # when the last step's tokens were handed out
        self.segments = array("d")

    def __len__(self) -> int:
        """Requests that came and are not yet with the scheduler."""
        return len(self._coming) + len(self._entering)

    def come(self, index: int, at_s: float) -> None:
        """Request ``index`` comes at ``at_s``, after those before it."""
        self._coming.append((at_s, index))

    def next_ready_s(self) -> float:
        """When the next request is ready for the scheduler, at the earliest; infinite where none is to come."""
        if self._entering:
            return self._entering[0][0]
        if not self._coming:
            return math.inf
        clock = self._clock
        return max(self._coming[0][0], self._free_s) + clock.front_request_s + clock.request_s

    def take_in(self, until_s: float, turn: int = 0) -> None:
        """Work until ``until_s`` on what has come by then, and beyond it on ``turn`` more that wait."""
        coming, clock = self._coming, self._clock
        while coming and coming[0][0] <= until_s:
            if self._free_s > until_s:
                turn -= 1
                if turn < 0:
                    break
            at_s, index = coming.popleft()
            self._free_s = max(at_s, self._free_s) + clock.front_request_s
            self._entering.append((self._free_s + clock.request_s, index))

    def ready(self, until_s: float) -> int | None:
        """The next request that is with the scheduler by ``until_s``; None where there is none."""
        if self._entering and self._entering[0][0] <= until_s:
            return self._entering.popleft()[1]
        return None

    def hand_out(self, step: int, steps: int, start_s: float, first_s: float, growth_s: float, tokens: int) -> None:
        """``tokens`` of each of ``steps`` steps after ``step``, the first begun at ``start_s``.

        The k-th took ``first_s`` and k - 1 times ``growth_s``. What comes before a step's end has its turn before it.
        """
        each_s = tokens * self._clock.front_token_s
        if not each_s:
            self._pace(step, start_s, first_s, growth_s, steps)
            return
        coming = self._coming
        end_s = start_s + steps * first_s + growth_s * (steps * (steps - 1) / 2)
        self.take_in(start_s + first_s, TURN)
        while steps > 1 and coming and coming[0][0] <= end_s:  # so many steps end before the next one's turn
            run = min(max(steps_until(coming[0][0] - start_s, first_s, growth_s), 2), steps) - 1
            self._hand_out_run(step, run, start_s, first_s, growth_s, each_s)
            start_s += run * first_s + growth_s * (run * (run - 1) / 2)
            first_s += growth_s * run
            step += run
            steps -= run
            self.take_in(start_s + first_s, TURN)
        self._hand_out_run(step, steps, start_s, first_s, growth_s, each_s)

    def _hand_out_run(
        self, step: int, steps: int, start_s: float, first_s: float, growth_s: float, each_s: float
    ) -> None:
        """Steps between which no request has its turn: first those whose tokens wait for others, then those in time."""
        late_s = max(self._free_s - start_s - first_s, 0.0)  # the first one's tokens wait so long
        gain_s = first_s - each_s  # so much less the next one's
        behind = 0
        if gain_s <= 0 and growth_s <= 0:  # it sets the pace
            behind = steps
        elif gain_s <= 0 or late_s:
            behind = min(steps, steps_until(late_s + gain_s, gain_s, growth_s) - 1)
        if behind:
            self._pace(step, start_s + first_s + late_s, each_s, 0.0, behind)
        if behind < steps:
            past_s = behind * first_s + growth_s * (behind * (behind - 1) / 2)
            self._pace(step + behind, start_s + past_s + each_s, first_s + growth_s * behind, growth_s, steps - behind)
        self._free_s = self.given_s

    def _pace(self, step: int, start_s: float, first_s: float, growth_s: float, steps: int) -> None:
        self.segments.extend((step, start_s, first_s, growth_s))
        took_s = steps * first_s + growth_s * (steps * (steps - 1) / 2)  # added as the stepper does, to the last bit
        self.given_s = start_s + took_s
