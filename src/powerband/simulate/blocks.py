"""KV cache blocks of a paged engine: free + used = total at every step, counted without visiting each sequence."""


class BlockPool:
    """Blocks of ``size`` tokens held by prompts and by decoding sequences, which all grow by one token a step.

    A decoding sequence needs a new block whenever its context is a multiple of ``size``. Since all grow together, the
    steps at which it does are ``size`` apart: one counter per ``step mod size`` says how many blocks any number of
    steps will take. The counters stand twice in a row, so that any cycle of steps is one slice of them.
    """

    __slots__ = ("_decoding", "_due", "free", "size", "total")

    def __init__(self, total: int, size: int) -> None:
        self.total = self.free = total
        self.size = size
        self._due = [0] * (2 * size)
        self._decoding = 0

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.size)

    def extend(self, held_tokens: int, new_tokens: int) -> bool:
        """Take the blocks for ``new_tokens`` more of a prompt; False, and nothing taken, where they are not free."""
        need = self.blocks_for(held_tokens + new_tokens) - self.blocks_for(held_tokens)
        if need > self.free:
            return False
        self.free -= need
        return True

    def release(self, tokens: int) -> None:
        self.free += self.blocks_for(tokens)

    def join(self, context: int, step: int) -> None:
        """A sequence with ``context`` cached tokens starts to decode after ``step`` steps."""
        self._count((step - context) % self.size, 1)

    def leave(self, context: int, step: int) -> None:
        """The sequence, now with ``context`` cached tokens, stops decoding; its blocks stay held until released."""
        self._count((step - context) % self.size, -1)

    def _count(self, place: int, change: int) -> None:
        self._due[place] += change
        self._due[place + self.size] += change
        self._decoding += change

    def growth(self, step: int, steps: int) -> int:
        """Blocks that ``steps`` decode steps after ``step`` will take."""
        at = step % self.size
        if steps == 1:
            return self._due[at]
        cycles, rest = divmod(steps, self.size)
        return cycles * self._decoding + sum(self._due[at : at + rest])

    def steps_within(self, step: int) -> int:
        """How many decode steps the free blocks last for; a large number where nothing decodes."""
        if not self._decoding:
            return 1 << 40
        cycles, left = divmod(self.free, self._decoding)
        at = step % self.size
        ahead = 0
        while left >= self._due[at + ahead]:  # ends: one cycle takes more than what is left
            left -= self._due[at + ahead]
            ahead += 1
        return cycles * self.size + ahead

    def advance(self, step: int, steps: int) -> int:
        """Take the blocks of ``steps`` decode steps, or of as many as there are blocks for; how many steps that was."""
        need = self.growth(step, steps)
        if need > self.free:
            steps = self.steps_within(step)
            need = self.growth(step, steps)
        self.free -= need
        return steps
