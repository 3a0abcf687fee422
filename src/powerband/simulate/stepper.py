"""The discrete-event core: requests wait, are prefilled, decode and finish; equal steps are taken at once."""

import heapq
import math
from collections import deque
from collections.abc import Sequence as SequenceOf

from powerband.records.workload import RequestSpec, Workload
from powerband.simulate.blocks import BlockPool
from powerband.simulate.clock import Clock, steps_until
from powerband.simulate.front_end import FrontEnd
from powerband.simulate.prefixes import PrefixCache, shares_prefixes
from powerband.simulate.scheduler import Limits
from powerband.simulate.sequence import Sequence
from powerband.simulate.slots import SlotTable, neighbours
from powerband.simulate.step_time import StepTime

# SGLang admits a prompt if a share of what the running answers may still need stays free; the share falls from 0.7 to
# 0.1 while nothing runs out. In steps (assumed).
RESERVED = 64


class Stepper:
    """Runs a workload to its end or ``deadline_s``; times are float seconds, steps are counted from 1.

    A token is given at the end of a step, and handed out by ``front``. ``stretches[i]`` lists (first step, tokens) of
    request i.
    """

    def __init__(
        self,
        requests: SequenceOf[RequestSpec],
        concurrency: int | None,
        clock: Clock,
        limits: Limits,
        deadline_s: float,
    ) -> None:
        self.requests = requests
        self.clock = clock
        self.limits = limits
        self.deadline_s = deadline_s
        self.now = 0.0
        self.step = 0
        self.front = FrontEnd(clock)
        self._last_start_s = 0.0  # of the last step
        self.arrived_s: list[float] = [math.nan] * len(requests)
        self.stretches: list[tuple[tuple[int, int], ...]] = [()] * len(requests)
        self.refused: set[int] = set()
        self.first_s: dict[int, float] = {}  # of first tokens that came from a pass of prompts alone, between steps
        self.preemptions = 0
        if limits.prompts_first:  # a first token may come before any step
            self.front.hand_out(0, 0, 0.0, 0.0, 0.0, 0)
        self._closed = concurrency is not None
        self._unsent = deque(range(len(requests) if concurrency != 0 else 0))
        self._waiting: deque[Sequence] = deque()
        self._prefilling: deque[Sequence] = deque()
        self._ends: list[tuple[int, int, Sequence]] = []
        self._decoding = 0
        self._context = 0  # tokens that the next decode step attends to, over all decoding sequences
        self._order: dict[int, Sequence] = {}  # those that hold blocks, in order of admission
        self._pool = self._make_pool()
        self._prefixes: PrefixCache | None = None
        self._slots = SlotTable(limits.slots) if limits.split_rows else None
        self._busy: set[int] = set()  # slots that decode
        for _ in range(len(requests) if concurrency is None else concurrency):
            self._send_next()

    def run(self) -> None:
        while self.now < self.deadline_s:
            self._admit()
            free_tokens = self._free_tokens() if self._prefilling else 0
            if free_tokens > 0 and self.limits.prompts_first:
                self._prompts_pass()
            elif free_tokens > 0 and (self.limits.batching == "continuous" or not self._decoding):
                self._mixed_step(free_tokens)
            elif self._decoding:
                self._decode_steps()
            elif (ready_s := self.front.next_ready_s()) < self.deadline_s:
                self.now = max(self.now, ready_s)
            else:
                break

    def share_prefixes(self, workload: Workload) -> None:
        """Give the engine a prefix cache, where it has one and the workload has something to share."""
        if self.limits.prefix_cache and shares_prefixes(workload):
            granule, room = self.limits.block_tokens, self.limits.kv_tokens
            self._prefixes = PrefixCache(workload.block_tokens, granule, room)

    def submit(self, index: int, at_s: float) -> None:
        """Hand in one request at ``at_s``, for a stepper that was built with a concurrency of 0 (nothing by itself)."""
        self.arrived_s[index] = at_s
        self.front.come(index, at_s)

    def advance(self, until_s: float) -> None:
        """Go on until a step ends at or after ``until_s``, or nothing is left to do."""
        self.deadline_s = until_s
        self.run()

    @property
    def outstanding(self) -> int:
        """Requests handed in and not yet answered."""
        return len(self.front) + len(self._waiting) + len(self._prefilling) + self._decoding

    @property
    def last_step_s(self) -> float:
        """When the last step ended; 0 where there was none."""
        return self.now if self.step or self.first_s else 0.0

    def _free_tokens(self) -> int:
        """Prompt tokens that the next step can hold."""
        free = self.limits.batch_tokens - self._decoding
        speculation = self.limits.speculation
        if speculation is not None and self._decoding:  # of the share of a step that gives one token
            checked = self._decoding * (1 + speculation.draft_tokens)
            free = max(int((self.limits.batch_tokens - checked) / speculation.tokens_per_step), 0)
        most = self.limits.prompt_tokens
        return free if most is None or most > free else most

    def _make_pool(self) -> BlockPool | None:
        if self.limits.kv_tokens is None:
            return None
        return BlockPool(self.limits.kv_tokens // self.limits.block_tokens, self.limits.block_tokens)

    def _send_next(self) -> None:
        """Schedule the next request: at its own time, or now where the loop is closed."""
        if not self._unsent:
            return
        index = self._unsent.popleft()
        at_s = max(self.now, self.front.given_s) if self._closed else self.requests[index].offset_ns * 1e-9
        self.arrived_s[index] = at_s
        self.front.come(index, at_s)

    def _admit(self) -> None:
        front, waiting = self.front, self._waiting
        front.take_in(self.now)
        runs_on = self.limits.ahead and (self._decoding or self._prefilling)
        until_s = self._last_start_s if runs_on else self.now
        while (index := front.ready(until_s)) is not None:
            spec = self.requests[index]
            if self.limits.never_fits(spec.input_tokens + spec.output_tokens):
                self.refused.add(index)
                if self._closed:
                    self._send_next()
                continue
            waiting.append(Sequence(index, max(spec.input_tokens, 1), max(spec.output_tokens, 1)))
        if waiting and not (self._decoding and self.limits.batching == "static"):
            self._fill_slots()

    def _fill_slots(self, done: int = 0) -> None:
        """Hand out the free slots, ``done`` of which prompts of this step hold.

        Where blocks can run out, one goes to the next that needs some: those behind it wait as well without.
        """
        waiting, prefilling = self._waiting, self._prefilling
        free = self.limits.slots - self._decoding - len(prefilling) - done
        if self._pool is not None:
            free = min(free, int(not prefilling or prefilling[-1].cached > 0))
        while waiting and free > 0:
            sequence = waiting.popleft()
            prefilling.append(sequence)
            if self._slots is not None:
                sequence.slot = self._slots.take()
            free -= 1

    def _prompts_pass(self) -> None:
        """A pass of prompts alone, which counts as no step: decoding sequences get nothing from it.

        It leaves them the blocks of their next RESERVED steps, lest they take them back from the new one at once.
        """
        reserved = self._pool.growth(self.step, RESERVED) if self._pool is not None else 0
        if self._pool is not None:
            self._pool.free -= reserved
        tokens, pairs, done = self._take_prompts(self.limits.most_prompt_tokens)
        if self._pool is not None:
            self._pool.free += reserved
        if not tokens:  # no blocks for the next prompt
            self._decode_steps()
            return
        self._last_start_s = self.now
        self.now += self.clock.mixed_s(0, 0.0, tokens, pairs, len(done))
        if self.now > self.deadline_s:
            return
        for sequence in done:
            if not sequence.emitted:
                self.first_s[sequence.index] = self.now
            self._join(sequence)
        self._finish_due()

    def _mixed_step(self, free_tokens: int) -> None:
        """One step that holds prompt tokens beside one token of each decoding sequence."""
        growth = 0
        if self._pool is not None:  # the running sequences take their blocks first
            if self._make_room():
                free_tokens = self._free_tokens()
            growth = self._pool.growth(self.step, 1)
            self._pool.free -= growth
        sequences = self._decoding
        tokens, pairs, done = self._take_prompts(free_tokens)
        if not tokens:  # no blocks for the next prompt: only the end of a running sequence can change that
            if self._pool is not None:
                self._pool.free += growth
            self._decode_steps()
            return
        if self._slots is not None and sequences:
            duration = self.clock.split_mixed_s(neighbours(self._busy), self._context, tokens, pairs, len(done))
        else:
            duration = self.clock.mixed_s(sequences, self._context, tokens, pairs, len(done))
        self._go_on(1, duration, 0.0, sequences + len(done))
        self._context += sequences
        for sequence in done:
            self._join(sequence)
        self._finish_due()

    def _take_prompts(self, free_tokens: int) -> tuple[int, float, list[Sequence]]:
        """Prompt tokens of this step, the (query, key) pairs they attend to, and the prompts it completes."""
        tokens = 0
        pairs = 0.0
        done: list[Sequence] = []
        prefilling, pool = self._prefilling, self._pool
        while free_tokens > 0:
            if not prefilling and self._waiting:
                self._fill_slots(len(done))
            if not prefilling:
                break
            sequence = prefilling[0]
            hit = 0
            if self._prefixes is not None and not sequence.cached:
                hit = self._prefixes.hit(self.requests[sequence.index])
            left = sequence.prompt - sequence.cached - hit
            take = left if left <= free_tokens else free_tokens
            if take < left and not self.limits.chunked and tokens + self._decoding:
                break  # a whole prompt or none
            if pool is not None and not sequence.cached:
                if not pool.extend(0, sequence.prompt):
                    break  # blocks for the whole prompt or none
                self._order[sequence.index] = sequence
            sequence.cached += hit
            pairs += take * (sequence.cached + (take + 1) / 2)
            tokens += take
            free_tokens -= take
            sequence.cached += take
            if take < left:
                break
            done.append(prefilling.popleft())
            if self._prefixes is not None:
                self._prefixes.add(self.requests[sequence.index])
        return tokens, pairs, done

    def _join(self, sequence: Sequence) -> None:
        """A prompt was completed: its next token came with this step, and it decodes from the next one on."""
        left = sequence.output - sequence.emitted
        sequence.joined_step = self.step
        sequence.finish_step = self.step + left - 1
        self._decoding += 1
        self._busy.add(sequence.slot)
        self._context += sequence.prompt + 1
        if self._pool is not None:
            self._pool.join(sequence.prompt, self.step)
        heapq.heappush(self._ends, (sequence.finish_step, sequence.index, sequence))

    def _decode_steps(self) -> None:
        """As many equal decode steps as pass before anything changes."""
        if self._pool is not None:
            self._make_room()
        if not self._decoding:
            return
        if self._slots is None:
            first_s, growth_s = self.clock.decode_s(self._decoding, self._context)
        else:
            first_s, growth_s = self.clock.decode_rows_s(neighbours(self._busy), self._context)
        steps = self._equal_steps(first_s, growth_s)
        if self._pool is not None:
            steps = self._pool.advance(self.step, steps)
        self._go_on(steps, first_s, growth_s, self._decoding)
        self._context += steps * self._decoding
        self._finish_due()

    def _equal_steps(self, first_s: float, growth_s: float) -> int:
        """Decode steps until a sequence ends (or would have, unpreempted), another may start or time is up."""
        steps = self._ends[0][0] - self.step
        may_start = self.limits.batching == "continuous" and self._decoding < self.limits.slots
        if may_start and not self._waiting and not self._prefilling:  # else it comes after those
            wait_s = self.front.next_ready_s() - self.now
            if wait_s < math.inf:
                ahead = int(self.limits.ahead and wait_s > 0)  # the step after that in which it is ready is made up
                steps = min(steps, steps_until(wait_s, first_s, growth_s) + ahead)
        if self.deadline_s < math.inf:
            steps = min(steps, steps_until(self.deadline_s - self.now, first_s, growth_s))
        return steps

    def _go_on(self, steps: int, first_s: float, growth_s: float, tokens: int) -> None:
        """Equal steps, each of which gives ``tokens``."""
        start_s = self.now
        self.now += steps * first_s + growth_s * (steps * (steps - 1) / 2)
        self._last_start_s = start_s if steps == 1 else self.now - first_s - growth_s * (steps - 1)
        self.front.hand_out(self.step, steps, start_s, first_s, growth_s, tokens)
        self.step += steps

    def _finish_due(self) -> None:
        ends, step = self._ends, self.step
        while ends and ends[0][0] <= step:
            end, _, sequence = heapq.heappop(ends)
            if sequence.joined_step < 0 or sequence.finish_step != end:
                continue  # it was preempted after this end was foreseen
            self._stop_decoding(sequence)
            if self._slots is not None:
                self._slots.release(sequence.slot)
            if self._pool is not None:
                self._pool.release(self._cached_tokens(sequence))
                del self._order[sequence.index]
            sequence.joined_step = -1
            if self._closed:
                self._send_next()

    def _cached_tokens(self, sequence: Sequence) -> int:
        """Tokens in the cache: the prompt and every token given but the last, which has not been fed back yet."""
        return sequence.prompt + self.step - sequence.joined_step

    def _stop_decoding(self, sequence: Sequence) -> None:
        tokens = self.step - sequence.joined_step + 1
        self.stretches[sequence.index] += ((sequence.joined_step, tokens),)
        sequence.emitted += tokens
        self._decoding -= 1
        self._busy.discard(sequence.slot)
        self._context -= self._cached_tokens(sequence) + 1
        if self._pool is not None:
            self._pool.leave(self._cached_tokens(sequence), self.step)

    def _make_room(self) -> bool:
        """Preempt the youngest sequences until every decoding one can take its next token; whether there were any."""
        pool = self._pool
        assert pool is not None
        if pool.growth(self.step, 1) <= pool.free:
            return False
        if self._prefilling and not self._prefilling[-1].cached:  # it has nothing to give up
            self._waiting.appendleft(self._prefilling.pop())
        while pool.growth(self.step, 1) > pool.free:
            self._preempt_youngest()
        return True

    def _preempt_youngest(self) -> None:
        """Give up the blocks of the last admitted sequence; it waits first in line and computes everything again."""
        assert self._pool is not None
        _, sequence = self._order.popitem()
        self.preemptions += 1
        if sequence.joined_step >= 0:
            self._pool.release(self._cached_tokens(sequence))
            self._stop_decoding(sequence)
            sequence.joined_step = -1
            sequence.prompt = self.requests[sequence.index].input_tokens + sequence.emitted
        else:
            self._pool.release(sequence.prompt)
            self._prefilling.remove(sequence)
        sequence.cached = 0
        self._waiting.appendleft(sequence)

    @property
    def end_s(self) -> float:
        """When the run was over: the last step's end, its tokens handed out, or the deadline where that came first."""
        return min(max(self.now, self.front.given_s), self.deadline_s)

    def close(self) -> None:
        """Count the tokens that unfinished sequences had given when the run was cut off."""
        for _, _, sequence in self._ends:
            if sequence.joined_step >= 0:
                self._stop_decoding(sequence)
                sequence.joined_step = -1


def run_steps(workload: Workload, step_time: StepTime, limits: Limits, deadline_s: float | None) -> Stepper:
    """A finished simulation of ``workload``."""
    stepper = Stepper(
        workload.requests,
        workload.concurrency,
        Clock(step_time, limits.speculation),
        limits,
        math.inf if deadline_s is None else deadline_s,
    )
    stepper.share_prefixes(workload)
    stepper.run()
    stepper.close()
    return stepper
